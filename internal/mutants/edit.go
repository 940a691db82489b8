package mutants

import (
	"fmt"
	"path"
	"strings"
	"unicode"
)

// Edit replaces a text that occurs exactly once in a declaration.
//
// In names the declaration by its folder, as go doc does: "dispatcher.queue.run" is a method,
// "internal/sqlgen.ClaimJobs" a statement, "migrations.outbox.enqueue" what the last CREATE of that name makes. The
// file is not part of it, so that a file may be split or renamed. White space does not count where Old is looked for:
// what is indented anew stays the same place.
type Edit struct {
	In       string
	Old, New string
}

// Folder is where the declaration is, from the root of the module.
func (e Edit) Folder() string {
	dir, last := path.Split(e.In)
	name, _, _ := strings.Cut(last, ".")
	return dir + name
}

// Find returns the one declaration that is named in the edit and has its text once.
func (e Edit) Find(declared []Declaration) (Declaration, error) {
	var found []Declaration
	named := 0
	for _, d := range declared {
		if d.Name != e.In {
			continue
		}
		named++
		switch n := e.count(d.Text()); {
		case n == 1:
			found = append(found, d)
		case n > 1:
			return Declaration{}, fmt.Errorf("%s in %s has this text %d times, want once:\n%s", e.In, d.File, n, e.Old)
		}
	}
	switch {
	case named == 0:
		return Declaration{}, fmt.Errorf("there is no %s", e.In)
	case len(found) != 1:
		return Declaration{}, fmt.Errorf("%d of %d declarations of %s have this text, want one:\n%s",
			len(found), named, e.In, e.Old)
	}
	return found[0], nil
}

// Fits reports whether the edit could be made in the declaration, whatever its name.
func (e Edit) Fits(d Declaration) bool { return e.count(d.Text()) == 1 }

func (e Edit) count(text string) int {
	bare, _ := squeeze(text)
	old, _ := squeeze(e.Old)
	if old == "" {
		return 0
	}
	return strings.Count(bare, old)
}

// place is where the text is in the declaration's file, and what is to stand there. What is there word for word is
// replaced word for word. Where only white space differs, that around it stays as it is.
func (e Edit) place(d Declaration) (start, end int, text string) {
	whole := d.Text()
	if at := strings.Index(whole, e.Old); at >= 0 {
		return d.start + at, d.start + at + len(e.Old), e.New
	}
	bare, places := squeeze(whole)
	old, _ := squeeze(e.Old)
	at := strings.Index(bare, old)
	return d.start + places[at], d.start + places[at+len(old)-1] + 1, strings.TrimSpace(e.New)
}

// squeeze returns the text without white space, and for each byte of that its place in the text.
func squeeze(text string) (bare string, places []int) {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c >= 0x80 || !unicode.IsSpace(rune(c)) {
			b.WriteByte(c)
			places = append(places, i)
		}
	}
	return b.String(), places
}
