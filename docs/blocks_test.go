package docs_test

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// manual matches the pages that users read; the others are evidence and internals, or written by tools.
var manual = regexp.MustCompile(`^(README|docs/(README|(start|guides|operate|migrate|reference|why)/[^/]+))\.md$`)

// block is a fenced block with its language, and the comment on the line before it, if there is one: that names the
// source of what is shown, or what runs it, or says why nothing does.
var block = regexp.MustCompile("(?m)^(?:<!-- (.*) -->\n+)?([ \t]*)```(\\w+)\n((?s:.*?))^[ \t]*```$")

// Each block with a language is checked. Go that is shown whole is compiled (examples/readme_test.go), and so is what
// names an example (guides_test.go); other parts have to parse, with … for what was left out. JSON and YAML have to
// parse; SELECTs are run on a database; commands and flags in sh are those of the program (cmd/posthaste/docs_test.go).
// Blocks of other languages say what runs them, or why nothing does.
func TestBlocksAreCheckedOrSayWhyNot(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	n := 0
	for page, text := range files(t, ".md") {
		if !manual.MatchString(page) {
			continue
		}
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			says, language, code := m[1], m[3], m[4]
			n++
			var err error
			switch {
			case ofExample.MatchString(says):
			case strings.HasPrefix(says, "examples/"), strings.HasPrefix(says, "run by "), strings.HasPrefix(says, "not run: "):
			case language == "sh", language == "text":
			case language == "go":
				err = parses(code)
			case language == "json":
				decoder := json.NewDecoder(strings.NewReader(code))
				for err == nil {
					var value any
					err = decoder.Decode(&value)
				}
				if errors.Is(err, io.EOF) {
					err = nil
				}
			case language == "sql" && strings.HasPrefix(code, "SELECT "):
				_, err = db.Exec(t.Context(), code)
			case language == "yaml":
				var value any
				err = yaml.Unmarshal([]byte(code), &value)
			default:
				err = errors.New("nothing runs it: put <!-- run by … --> or <!-- not run: why --> on the line before")
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

// parses returns what is wrong with a part of a Go program: declarations, statements or both.
func parses(code string) error {
	code = strings.ReplaceAll(code, "…", "")
	tries := []string{"package p\n" + code, "package p\nfunc _() {\n" + code + "\n}"}
	if at := strings.LastIndex(code, "\n\n"); at > 0 { // declarations first, then what uses them
		tries = append(tries, "package p\n"+code[:at]+"\nfunc _() {\n"+code[at:]+"\n}")
	}
	var err error
	for _, source := range append(tries, code) {
		if _, err = parser.ParseFile(token.NewFileSet(), "page.go", source, 0); err == nil {
			return nil
		}
	}
	_, err = parser.ParseFile(token.NewFileSet(), "page.go", tries[1], 0)
	return err
}
