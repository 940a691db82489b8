package docs_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// manual matches the pages that users read; the others are evidence and internals, or written by tools.
var manual = regexp.MustCompile(`^(README|docs/(README|(start|guides|operate|migrate|reference|why)/[^/]+))\.md$`)

// block is a fenced block with its language, and the comment on the line before it, if there is one: that names the
// source of what is shown, or what runs it, or says why nothing does.
var block = regexp.MustCompile("(?m)^(?:<!-- (.*) -->\n+)?([ \t]*)```(\\w+)\n((?s:.*?))^[ \t]*```$")

// whole are pages that a test takes as they are: what a block of such a page needs in place of a comment.
var whole = map[string]*regexp.Regexp{
	// api/docs_test.go runs the commands, and compares what they print with the JSON right after them.
	"docs/reference/api.md": regexp.MustCompile("(?m)^```sh\n(?s:.*?)^```$(?:\n```json\n.*\n```$)?"),
	// cmd/posthaste/reference_test.go compares the page with the help of the program.
	"docs/reference/commands.md": regexp.MustCompile("(?ms)^```text\n.*?^```$"),
}

// Each block of every page, those for contributors included, has a language, and runs in a test or says why not: in a
// comment before it, which names a compiled example, the file that runs or compares it, or a reason. Without a comment,
// SELECTs are run here on a database.
func TestBlocksRunOrSayWhyNot(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := 0
	for page, text := range files(t, ".md") {
		for _, line := range withoutLanguage(text) {
			t.Errorf("%s:%d: a block without a language", page, line)
		}
		if pattern := whole[page]; pattern != nil {
			text = pattern.ReplaceAllString(text, "")
		}
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			says, language, code := m[1], m[3], m[4]
			n++
			err := runs(page, says)
			if says == "" && language == "sql" && strings.HasPrefix(code, "SELECT ") {
				_, err = db.Exec(t.Context(), code)
			}
			if err != nil {
				t.Errorf("%s, a block of %s: %v\n%s", page, language, err, code)
			}
		}
	}
	if n < 80 {
		t.Errorf("%d blocks: this looks at the wrong place", n)
	}
}

// withoutLanguage returns the lines of a page at which a block without a language begins.
func withoutLanguage(text string) (lines []int) {
	inside := false
	n := 0
	for line := range strings.Lines(text) {
		n++
		fence, found := strings.CutPrefix(strings.TrimSpace(line), "```")
		if found && !inside && fence == "" {
			lines = append(lines, n)
		}
		inside = inside != found
	}
	return lines
}

var (
	runBy  = regexp.MustCompile(`^run by ([\w./-]+)`)
	notRun = regexp.MustCompile(`^not run: (\S+ .{8,})$`)
)

// runs returns what is wrong with the comment before a block: it has to name what runs the block, or why nothing does.
// guides_test.go compares those of examples, and examples/readme_test.go those that name a source.
func runs(page, says string) error {
	if source, ok := strings.CutPrefix(says, "examples/"); ok {
		list, err := os.ReadFile("../examples/readme_test.go")
		if err == nil && (!strings.Contains(string(list), `"`+page+`"`) || !strings.Contains(string(list), `"examples/`+source+`"`)) {
			err = errors.New("examples/readme_test.go does not compare it")
		}
		return err
	}
	if m := runBy.FindStringSubmatch(says); m != nil {
		test, err := os.ReadFile(filepath.Join(top, m[1]))
		if err == nil && !strings.Contains(string(test), filepath.Base(page)) && !strings.Contains(string(test), "run by "+m[1]) {
			err = fmt.Errorf("%s reads no such page, and no blocks that name it", m[1])
		}
		return err
	}
	if ofExample.MatchString(says) || notRun.MatchString(says) {
		return nil
	}
	return errors.New("nothing runs it: put <!-- run by FILE --> or <!-- not run: why, in some words --> on the line before")
}
