package mutants

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode"
)

// Edit replaces a text that occurs exactly once in a declaration.
//
// In names the declaration by its folder, as go doc does: "dispatcher.queue.run" is a method,
// "internal/sqlgen.ClaimJobs" a statement, "migrations.outbox.enqueue" what the last CREATE of that name creates. It
// does not name the file, so that a file may be split or renamed. The search for Old ignores white space, so that code
// may be indented anew. It also ignores the numbers of a statement's parameters, which change when a parameter is added
// before them; New gets the current numbers.
type Edit struct {
	In       string
	Old, New string
}

// Folder returns the folder of the declaration, from the root of the module.
func (e Edit) Folder() string {
	dir, last := path.Split(e.In)
	name, _, _ := strings.Cut(last, ".")
	return dir + name
}

// Find returns the one declaration with the edit's name that contains its text exactly once.
func (e Edit) Find(declared []Declaration) (Declaration, error) {
	var found []Declaration
	var named []string // the positions of the declarations with the name
	for _, d := range declared {
		if d.Name != e.In {
			continue
		}
		named = append(named, d.Position())
		switch n := e.count(d.Text()); {
		case n == 1:
			found = append(found, d)
		case n > 1:
			return Declaration{}, fmt.Errorf("%s at %s has this text %d times, want once:\n%s", e.In, d.Position(), n, e.Old)
		}
	}
	switch {
	case len(named) == 0:
		return Declaration{}, fmt.Errorf("there is no %s, which had this text:\n%s", e.In, e.Old)
	case len(found) != 1:
		return Declaration{}, fmt.Errorf("%s at %s has this text %d times, want once:\n%s",
			e.In, strings.Join(named, " and "), len(found), e.Old)
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

// place returns where the text is in the declaration's file, and the text that replaces it. A text that matches exactly
// is replaced as a whole. If only white space differs, the white space around the text stays as it is.
func (e Edit) place(d Declaration) (start, end int, text string) {
	whole := d.Text()
	bare, places := squeeze(whole)
	old, _ := squeeze(e.Old)
	at := strings.Index(bare, old)
	start, end = places[at].start, places[at+len(old)-1].end
	trimmed := strings.TrimSpace(e.Old)
	if from := start - strings.Index(e.Old, trimmed); whole[start:end] == trimmed && from >= 0 &&
		strings.HasPrefix(whole[from:], e.Old) {
		return d.start + from, d.start + from + len(e.Old), e.New
	}
	return d.start + start, d.start + end, renumber(strings.TrimSpace(e.New), e.Old, whole[start:end])
}

// span is the part of a text from one byte up to, and not including, another.
type span struct{ start, end int }

// squeeze returns the text without white space and with all parameters renamed to $0, and for each byte of the result
// its place in the text.
func squeeze(text string) (bare string, places []span) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if c := text[i]; c < 0x80 && unicode.IsSpace(rune(c)) {
			continue
		}
		b.WriteByte(text[i])
		places = append(places, span{i, i + 1})
		digits := i + 1
		for digits < len(text) && '0' <= text[digits] && text[digits] <= '9' {
			digits++
		}
		if text[i] == '$' && digits > i+1 {
			b.WriteByte('0')
			places = append(places, span{i + 1, digits})
			i = digits - 1
		}
	}
	return b.String(), places
}

var parameter = regexp.MustCompile(`\$\d+`)

// renumber changes the numbers of the parameters in text from those in old to those in now.
func renumber(text, old, now string) string {
	numbers := map[string]string{}
	found := parameter.FindAllString(now, -1)
	for i, was := range parameter.FindAllString(old, -1) {
		numbers[was] = found[i]
	}
	return parameter.ReplaceAllStringFunc(text, func(was string) string { return cmp.Or(numbers[was], was) })
}
