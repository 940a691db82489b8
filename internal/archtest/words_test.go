package archtest

import (
	"cmp"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// widest is how many columns a line of prose may have; a tab counts as four.
const widest = 120

// generated are the pages that programs write.
var generated = []string{"docs/proof.md", "docs/mutants.md", "docs/benchmarks.md"}

// paragraph is a piece of prose: a paragraph of a comment or of a page, or the comment behind a line of code.
type paragraph struct {
	line int // of its first line
	text string
}

// habit is a turn of phrase that makes readers read a sentence twice.
type habit struct {
	name    string
	pattern *regexp.Regexp
	except  *regexp.Regexp // nil, or what must not match within the match
	advice  string
}

var habits = []habit{
	{
		name:    "whoever",
		pattern: regexp.MustCompile(`(?i)\bwho(so)?ever('s)?\b`),
		advice:  `say which one: "a caller that …", "the owner of …", "callers without it"`,
	},
	{
		name:    "Who does",
		pattern: regexp.MustCompile(`(?:(?:^|[.!)] )Who|(?:: |; |\bso that |\bbecause |\bfor |\bof |\bthan )who) (?:is|are|was|were|has|had|does|did|may|must|can|only|then|now|also|never|just|[a-z]+s|[a-z]+ed|came|began|took|gave|made|found|lost|set|put|read) [^.?!]*(?:[.!;]|$)`),
		except:  regexp.MustCompile(`(?:: |\bof )who (?:acted|did|made|has|is|may|asked|held|holds|ran)\b`),
		advice:  `give the sentence a noun as its subject: "callers that …", "a reader that …"`,
	},
	{
		name:    "has A be B'd",
		pattern: regexp.MustCompile(`\b(?:[Hh]as|[Hh]ave|[Hh]ad|[Hh]aving) (?:[a-z']+ ){1,4}be [a-z]+`),
		except:  regexp.MustCompile(`\b(?:to|not|never|may|must|can|could|should|would|will|might|shall|cannot|that|which|if|what|where) (?:[a-z]+ )*?be\b`),
		advice:  `say who does it: "marks A B'd", "makes A do it"`,
	},
	{
		name:    "has A told",
		pattern: regexp.MustCompile(`\b(?:[Hh]as|[Hh]ave|[Hh]ad|[Hh]aving) (?:every|each|all|others|nobody|somebody|everybody|callers|them|him|it)(?: [a-z]+){0,2} (?:told|asked|wait|begin|go|look|try|run|stop|believe|see)\b`),
		advice:  `say who does it: "tells every process", "makes callers wait"`,
	},
}

// private are words of our own for things that the field has a word for. A word of a comment or of a name counts in any
// form that is listed.
var private = map[string]string{
	"lane": "cursor, or tenant and priority", "lanes": "cursors",
	"lap": "round", "laps": "rounds",
	"purse": "token bucket",
	"haul":  "batch", "hauls": "batches",
	"heed": "watch for cancellation", "heeds": "watches for cancellation", "heeded": "watched for",
	"owed": "deferred",
	"dear": "expensive", "dearer": "more expensive",
	"told": "sent, notified, logged, known", "untold": "not sent",
}

// inProse are such words that names may have: filepath.WalkDir.
var inProse = map[string]string{
	"walk": "read or scan an index", "walks": "reads, scans", "walked": "read, scanned", "walking": "reading, scanning",
}

// plain is where such a word means what everybody means by it: a worker is told to stop.
var plain = regexp.MustCompile(`(?i)\b(?:told (?:apart|from|to)|(?:as|than) told)\b`)

func TestCommentsAreInPlainWords(t *testing.T) {
	t.Parallel()
	for file, content := range prose(t) {
		for _, found := range check(file, content) {
			t.Error(found)
		}
	}
}

// prose returns the files of the whole tree that have comments or prose of ours, by their path from the top.
func prose(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, "../../"))
		if entry.IsDir() {
			if path != "../.." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || entry.Name() == "bin" || entry.Name() == "node_modules") || name == "internal/sqlgen" {
				return filepath.SkipDir
			}
			return nil
		}
		if slices.Contains(generated, name) || !slices.Contains([]string{".go", ".sql", ".md"}, filepath.Ext(name)) {
			return nil
		}
		content, err := os.ReadFile(path)
		files[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 500 {
		t.Fatalf("%d files: this looks at the wrong place", len(files))
	}
	return files
}

// check returns what is wrong with the prose of a file, a line each.
func check(file, content string) (found []string) {
	say := func(line int, text string) { found = append(found, fmt.Sprintf("%s:%d: %s", file, line, text)) }
	text, names := read(file, content)
	for line, w := range text.wide(content) {
		say(line, fmt.Sprintf("%d columns, %d are enough", w, widest))
	}
	for _, p := range text.paragraphs {
		for _, h := range habits {
			if m := h.find(p.text); m != "" {
				say(p.line, fmt.Sprintf("%s, in %q: %s", h.name, m, h.advice))
			}
		}
		for _, word := range words(plain.ReplaceAllString(p.text, "")) {
			if instead := cmp.Or(private[word], inProse[word]); instead != "" {
				say(p.line, fmt.Sprintf("%q is a word of our own: %s", word, instead))
			}
		}
	}
	for _, t := range text.texts {
		if recorded(file) {
			break
		}
		for _, h := range habits {
			if m := h.find(t.text); m != "" {
				say(t.line, fmt.Sprintf("%s, in the text %q: %s", h.name, m, h.advice))
			}
		}
		for _, word := range words(plain.ReplaceAllString(t.text, "")) {
			if instead := private[word]; instead != "" {
				say(t.line, fmt.Sprintf("%q in a text is a word of our own: %s", word, instead))
			}
		}
	}
	for line, name := range states(file, content) {
		say(line, fmt.Sprintf("the comment says what a function is, %q: say what it does or returns", name))
	}
	for _, n := range names {
		for _, word := range parts(n.text) {
			if instead := private[word]; instead != "" {
				say(n.line, fmt.Sprintf("the name %s has %q, a word of our own: %s", n.text, word, instead))
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// recorded reports whether the texts of a file are tests' own, or words by which records know a planted bug.
func recorded(file string) bool {
	return strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "internal/mutants/")
}

// find returns the first match in a paragraph, or "".
func (h habit) find(text string) string {
	for at := 0; at < len(text); {
		m := h.pattern.FindStringIndex(text[at:])
		if m == nil {
			return ""
		}
		match := text[at+m[0] : at+m[1]]
		if h.except == nil || !h.except.MatchString(match) {
			return match
		}
		at += m[0] + 1
	}
	return ""
}

// written is the prose of a file.
type written struct {
	paragraphs []paragraph
	lines      []int       // that have any of it, for their width
	texts      []paragraph // that people are shown: messages of errors, log lines, help
}

// wide returns the width of the lines that are too wide. A line that cannot be broken may be: it is one word and a URL.
func (w written) wide(content string) map[int]int {
	all := strings.Split(content, "\n")
	found := map[int]int{}
	for _, line := range w.lines {
		text := all[line-1]
		if columns := len([]rune(strings.ReplaceAll(text, "\t", "    "))); columns > widest && !strings.Contains(text, "://") {
			found[line] = columns
		}
	}
	return found
}

func read(file, content string) (written, []paragraph) {
	switch filepath.Ext(file) {
	case ".go":
		return readGo(content)
	case ".sql":
		return readSQL(content)
	default:
		return readMarkdown(content), nil
	}
}

// readGo returns the comments of a Go file, and its names.
func readGo(content string) (w written, names []paragraph) {
	var s scanner.Scanner
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(content))
	s.Init(file, []byte(content), nil, scanner.ScanComments)
	var block comment
	for {
		pos, tok, literal := s.Scan()
		line := file.Line(pos)
		if tok == token.COMMENT {
			if strings.HasPrefix(literal, "//") {
				block.add(&w, line, strings.TrimPrefix(literal, "//"))
				continue
			}
			for i, text := range strings.Split(strings.TrimSuffix(strings.TrimPrefix(literal, "/*"), "*/"), "\n") {
				block.add(&w, line+i, " "+strings.TrimSpace(text))
			}
			continue
		}
		if tok == token.EOF {
			block.end(&w)
			return w, names
		}
		switch tok {
		case token.IDENT:
			names = append(names, paragraph{line, literal})
		case token.STRING:
			w.texts = append(w.texts, paragraph{line, literal})
		}
	}
}

var (
	sqlComment = regexp.MustCompile(`^(?:[^']|'[^']*')*?--(.*)$`)
	sqlText    = regexp.MustCompile(`'[^']*'`)
	sqlName    = regexp.MustCompile(`\w+`)
)

// readSQL returns the comments of a SQL file, none of which has /* */, its texts and its names.
func readSQL(content string) (w written, names []paragraph) {
	var block comment
	for i, line := range strings.Split(content, "\n") {
		if m := sqlComment.FindStringSubmatchIndex(line); m != nil {
			block.add(&w, i+1, line[m[2]:])
			line = line[:m[2]-len("--")]
		}
		for _, text := range sqlText.FindAllString(line, -1) {
			w.texts = append(w.texts, paragraph{i + 1, text})
		}
		for _, name := range sqlName.FindAllString(sqlText.ReplaceAllString(line, ""), -1) {
			names = append(names, paragraph{i + 1, name})
		}
	}
	block.end(&w)
	return w, names
}

// comment gathers the lines of a comment into paragraphs.
type comment struct {
	paragraph
	last int
}

var (
	directive = regexp.MustCompile(`^(?:go:|nolint|line |export | name: |\s*\+goose)`)
	indented  = regexp.MustCompile(`^(?:\t|  )`)
	item      = regexp.MustCompile(`^\s*(?:[-*]|\d+\.) `)
)

// add takes the text of a comment on one line, without its mark.
func (c *comment) add(w *written, line int, text string) {
	if line != c.last+1 || strings.TrimSpace(text) == "" || item.MatchString(text) {
		c.end(w)
	}
	c.last = line
	if directive.MatchString(text) {
		return
	}
	if code := indented.MatchString(text) && !item.MatchString(text) && c.text == ""; code {
		return
	}
	w.lines = append(w.lines, line)
	if c.text == "" {
		c.line = line
	}
	c.text = strings.TrimSpace(c.text + " " + strings.TrimSpace(text))
}

func (c *comment) end(w *written) {
	if c.text != "" {
		w.paragraphs = append(w.paragraphs, c.paragraph)
	}
	c.text = ""
}

var (
	fence    = regexp.MustCompile("^\\s*(?:```|~~~)")
	codeSpan = regexp.MustCompile("`[^`]*`")
	target   = regexp.MustCompile(`\]\([^)]*\)`)
)

// readMarkdown returns the prose of a page, without tables, blocks of code, and what links point to.
func readMarkdown(content string) (w written) {
	var block comment
	code := false
	for i, line := range strings.Split(content, "\n") {
		if fence.MatchString(line) {
			block.end(&w)
			code = !code
			continue
		}
		if code || strings.HasPrefix(strings.TrimSpace(line), "|") {
			continue
		}
		block.add(&w, i+1, target.ReplaceAllString(line, "]"))
	}
	block.end(&w)
	for i := range w.paragraphs {
		w.paragraphs[i].text = codeSpan.ReplaceAllString(w.paragraphs[i].text, "``")
	}
	return w
}

// words returns the words of a sentence in small letters.
func words(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(c rune) bool { return !unicode.IsLetter(c) && c != '\'' })
}

// parts returns the words of a name in small letters: maxRoomLeft is max, room and left.
func parts(name string) (found []string) {
	start := 0
	for i, c := range name {
		if c == '_' || unicode.IsUpper(c) {
			found = append(found, strings.ToLower(strings.Trim(name[start:i], "_")))
			start = i
		}
	}
	return append(found, strings.ToLower(strings.Trim(name[start:], "_")))
}

func TestHabitsAreFoundAndNothingElse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Whoever holds the lock decides.":                                  "whoever",
		"It is for whoever waits.":                                         "whoever",
		"Who comes later starts another.":                                  "Who does",
		"It decides both under one lock: who comes later starts another":   "Who does",
		"Counted twice a minute, so that who asks for them need not wait.": "Who does",
		"It is read by one connection. Who is told so waits.":              "Who does",
		"tellOthers has every process be told.":                            "has A be B'd",
		"isAway has nothing be tried again for a while.":                   "has A be B'd",
		"It had all claims be made anew.":                                  "has A be B'd",
		"tellOthers has every process told that there may be jobs.":        "has A told",
		"It has callers wait for a while.":                                 "has A told",

		"Who acted, and why?":                                "",
		"Who may do what?":                                   "",
		"A reader who joins later starts another.":           "",
		"The audit row says who acted, what changed and why": "",
		"It writes the audit row: who acted, what changed.":  "",
		"It has to be claimed again.":                        "",
		"The job has not to be claimed.":                     "",
		"It has a name that must be known.":                  "",
		"It had never been claimed.":                         "",
		"Every process has been notified.":                   "",
		"It has each job once.":                              "",
	} {
		got := ""
		for _, h := range habits {
			if h.find(text) != "" {
				got = h.name
				break
			}
		}
		if got != want {
			t.Errorf("%q has the habit %q, want %q", text, got, want)
		}
	}
}

func TestProseIsReadWhereItStands(t *testing.T) {
	t.Parallel()
	wide := strings.Repeat("word ", 30)
	for name, test := range map[string]struct {
		file, content string
		want          []int // lines with a finding
	}{
		"a comment over two lines":      {"a.go", "package a\n\n// It is for\n// whoever waits.\n", []int{3}},
		"a comment behind code":         {"a.go", "package a\n\nvar b int // whoever waits\n", []int{3}},
		"a wide comment behind code":    {"a.go", "package a\n\nvar b int // " + wide + "\n", []int{3}},
		"a wide line without a comment": {"a.go", "package a\n\nvar b = \"" + wide + "\"\n", nil},
		"a text":                        {"a.go", "package a\n\nvar b = \"for whoever waits\"\n", []int{3}},
		"a test's text":                 {"a_test.go", "package a\n\nvar b = \"// whoever is told\"\n", nil},
		"a name":                        {"a.go", "package a\n\nvar maxLanes int\n", []int{3}},
		"another name":                  {"a.go", "package a\n\nvar planes, purser int\n", nil},
		"code in a comment":             {"a.go", "package a\n\n// It does:\n//\n//\twhoever waits\n", nil},
		"a directive":                   {"a.go", "package a\n\n//go:generate " + wide + "\n", nil},
		"a list":                        {"a.go", "package a\n\n// It does:\n//   - whoever waits\n", []int{4}},
		"SQL":                           {"a.sql", "SELECT 1 -- whoever waits\n", []int{1}},
		"SQL, a text":                   {"a.sql", "SELECT '-- whoever waits'\n", []int{1}},
		"SQL, a name":                   {"a.sql", "SELECT 1 AS last_lap -- fine\n", []int{1}},
		"a page":                        {"a.md", "# A\n\nIt is for\nwhoever waits.\n", []int{3}},
		"a table":                       {"a.md", "| whoever waits | " + wide + " |\n", nil},
		"a block of code":               {"a.md", "```\nwhoever waits " + wide + "\n```\nwhoever waits\n", []int{4}},
		"a code span":                   {"a.md", "It is `whoever`.\n", nil},
		"a URL":                         {"a.md", "See https://example.com/" + strings.Repeat("x", 120) + "\n", nil},
		"told apart":                    {"a.md", "They cannot be told apart.\n", nil},
		"a walk":                        {"a.go", "package a\n\n// It walks.\nvar walk int\n", []int{3}},
		"told":                          {"a.md", "They are told.\n", []int{1}},
	} {
		var got []int
		for _, f := range check(test.file, test.content) {
			line, _ := strconv.Atoi(strings.Split(f, ":")[1])
			got = append(got, line)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: findings in lines %v, want %v: %q", name, got, test.want, check(test.file, test.content))
		}
	}
}
