package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// prose matches the pages that the rules below hold for. The others are evidence and internals: written by tools, or
// kept as they were when a decision was made.
var prose = regexp.MustCompile(`^(README|CHANGELOG|docs/(README|(start|guides|operate|migrate|reference|why)/[^/]+))\.md$`)

// denied are phrases that make a sentence harder to read than the one to put in its place. A phrase that is good
// English in some sentences has a budget, which may only fall.
var denied = []struct {
	phrase  *regexp.Regexp
	instead string
	budget  int
}{
	{regexp.MustCompile(`(?:^|[.:;] )Who (?:has|is|does|reads|asks|migrates|wants|needs|calls|may|can|runs|uses|only)\b[^?]*$`), "the role, the caller, the worker", 0},
	{regexp.MustCompile(`\b(?:[Oo]f|[Tt]o|[Ff]or|[Bb]y|[Ff]rom|[Ww]ith) who (?:has|is|does|reads|asks|wants|needs|calls|may|can|runs|uses)\b`), "the caller, people who …", 0},
	{regexp.MustCompile(`\b[Ww]hoever\b`), "anybody who, the process that", 0},
	{regexp.MustCompile(`\btold\b`), "reported, logged, notified; distinguished", 0},
	{regexp.MustCompile(`\b[Tt]ells?\b`), "reports, shows, returns, logs; distinguishes", 0},
	{regexp.MustCompile(`\blook(?:s|ed|ing)? (?:at|for)\b`), "read, check, query, poll", 0},
	{regexp.MustCompile(`\blooks\b[^ ]|\blooks [^l]`), "polls, queries, checks", 0},
	{regexp.MustCompile(`\b(?:an?|the|each|first) look\b`), "poll, query, check", 0},
	{regexp.MustCompile(`\bhears?\b|\bdeaf\b`), "receives notifications; is not connected", 0},
	{regexp.MustCompile(`\bin turns\b`), "interleaved, alternately", 0},
	{regexp.MustCompile(`\bby itself\b`), "automatically, alone", 0},
	{regexp.MustCompile(`\banew\b`), "again", 0},
	{regexp.MustCompile(`\bfor good\b`), "permanently", 0},
	{regexp.MustCompile(`\bof late\b`), "recently", 0},
	{regexp.MustCompile(`\bas ever\b`), "unchanged, as before", 0},
	{regexp.MustCompile(`\bgo(?:es)? by\b`), "uses", 0},
	{regexp.MustCompile(`\b[Bb]eside\b`), "in addition to, alongside, next to", 0},
	{regexp.MustCompile(`\bof (?:yours|ours|theirs|his|hers)\b`), "your, our, their", 0},
	{regexp.MustCompile(`\b(?:[Hh]e|[Hh]is|him|himself|[Ss]he)\b`), "they, the operator, the caller", 0},
	{regexp.MustCompile(`\b(?:is|are|was|were) (?:not |already |all )?there\b`), "exists", 0},
	{regexp.MustCompile(`\b[Tt]here (?:is|are|was|were)\b`), "exists, or the thing as the subject", 17},
	{regexp.MustCompile(`\b[Mm]akes\b`), "creates, writes, sends, causes", 24},
	{regexp.MustCompile(`\b(?:lanes?|laps?|purses?|haul|owed|heed|dear)\b`), "the field's term: cursor, skip scan, token bucket, batch, quota", 0},
	{regexp.MustCompile(`\b[Ss]ays?\b|\bsaid\b`), "logs, returns, states, lists, contains", 10},
	{regexp.MustCompile(`(?:^|[.:] )What (?:is|was|has|does|a|the|it|they|each)\b[^?]*\.$`), "name the thing: the rows that …", 0},
}

// helpTexts has in its blocks what --help prints, which is prose, too.
const helpTexts = "docs/reference/commands.md"

// Sentences of the pages keep to plain English: the actor, then the verb, then the object, by the field's own terms.
func TestProseUsesPlainWords(t *testing.T) {
	t.Parallel()
	pages := files(t, ".md")
	maps.DeleteFunc(pages, func(page, _ string) bool { return !prose.MatchString(page) })
	pages[helpTexts] = strings.NewReplacer("```text\n", "\n", "```\n", "\n").Replace(pages[helpTexts])
	maps.Copy(pages, printedTexts(t))
	for i, found := range findDenied(pages) {
		if d := denied[i]; len(found) > d.budget {
			t.Errorf("%d sentences, want at most %d, with %s:\n%s", len(found), d.budget, d.phrase, strings.Join(found, "\n"))
		}
	}
}

// The comments that pkg.go.dev shows use the same words as the pages. A phrase that has a budget there is
// good English in a comment of one sentence.
func TestDocCommentsUsePlainWords(t *testing.T) {
	t.Parallel()
	for i, found := range findDenied(docComments(t)) {
		if d := denied[i]; d.budget == 0 && len(found) > 0 {
			t.Errorf("%d sentences with %s:\n%s", len(found), d.phrase, strings.Join(found, "\n"))
		}
	}
}

// findDenied returns the sentences of each text, by its file, that have a denied phrase, a list for each phrase.
func findDenied(texts map[string]string) [][]string {
	found := make([][]string, len(denied))
	for _, file := range sortedKeys(texts) {
		for _, s := range sentences(texts[file]) {
			for i, d := range denied {
				for _, m := range d.phrase.FindAllString(s.text, -1) {
					found[i] = append(found[i], fmt.Sprintf("%s:%d: %q in %q: write %s",
						file, s.line, cutTo(strings.TrimLeft(m, ".:; "), 40), cutTo(s.text, 200), d.instead))
				}
			}
		}
	}
	return found
}

// docComments returns the doc comments of what the packages outside internal export, by their files. A comment keeps
// its lines, so that what is found in it has its place in the file.
func docComments(t *testing.T) map[string]string {
	t.Helper()
	all, n := map[string]string{}, 0
	for file, source := range files(t, ".go") {
		if regexp.MustCompile(`(^|/)internal/|_test\.go$|_templ\.go$`).MatchString(file) {
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, source, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.FileExports(parsed) // drops what is not exported, fields and methods included
		lines := make([]string, strings.Count(source, "\n")+1)
		add := func(doc *ast.CommentGroup, end string) {
			if doc == nil {
				return
			}
			n++
			first := set.Position(doc.Pos()).Line - 1
			for i, comment := range doc.List {
				if text, is := strings.CutPrefix(comment.Text, "//"); is && !strings.HasPrefix(text, "\t") {
					lines[first+i] = text + end
				}
			}
		}
		add(parsed.Doc, "")
		ast.Inspect(parsed, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.FuncDecl:
				add(node.Doc, "")
				return false
			case *ast.GenDecl:
				add(node.Doc, "")
			case *ast.TypeSpec:
				add(node.Doc, "")
			case *ast.ValueSpec:
				add(node.Doc, "")
				add(node.Comment, ".")
			case *ast.Field:
				add(node.Doc, "")
				add(node.Comment, ".")
			}
			return true
		})
		all[file] = strings.Join(lines, "\n")
	}
	if n < 2500 {
		t.Errorf("%d doc comments: this reads the wrong place", n)
	}
	return all
}

var words = regexp.MustCompile(`"((?:[^"\\]|\\.)* (?:[^"\\]|\\.)*)"`)

// printed are the files whose strings people read: what doctor prints, and what the console shows.
var printed = []string{
	"../doctor/*.go", "../console/*.templ", "../console/refusal.go", "../console/acts.go", "../console/instant.go",
	"../console/search.go",
}

// printedTexts returns those strings, by their files: strings in quotes that have a space, and the text of a template.
// SQL is in backquotes.
func printedTexts(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range printed {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("%d files are %s: %v", len(names), pattern, err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			source, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			for line := range strings.Lines(string(source)) {
				found := words.FindAllStringSubmatch(line, -1)
				if strings.HasSuffix(name, ".templ") && !strings.Contains(line, "//") {
					found = append(found, texts.FindAllStringSubmatch(line, -1)...)
				}
				for _, m := range found {
					text.WriteString(m[1] + ". ")
				}
				text.WriteString("\n")
			}
			all[strings.TrimPrefix(name, "../")] = text.String()
		}
	}
	return all
}

// texts matches a text of a template: between tags or expressions, or a line of its own.
var texts = regexp.MustCompile(`(?:^\s*|[>}])((?:[A-Z]|[a-z]+[ ,.])[^<>{}@]*[a-z.:,][^<>{}@=(]*)(?:[<{]|$)`)

type sentence struct {
	text string
	line int // where it begins
}

var sentenceEnd = regexp.MustCompile(`[.?!](?:\*\*|\))? `)

// sentences returns the sentences of a page, each in one line. A paragraph, an item of a list, a heading and a cell of
// a table end one; what stands in code is no prose.
func sentences(text string) []sentence {
	blank := func(block string) string { return strings.Repeat("\n", strings.Count(block, "\n")) }
	text = fenced.ReplaceAllStringFunc(text, blank)
	text = regexp.MustCompile(`(?s)<!--.*?-->`).ReplaceAllStringFunc(text, blank)
	text = inline.ReplaceAllString(text, "`x`")
	text = regexp.MustCompile(`\]\([^)\s]*\)`).ReplaceAllString(text, "]")
	var all []sentence
	var open sentence
	end := func() {
		if s := strings.TrimSpace(open.text); s != "" {
			all = append(all, sentence{s, open.line})
		}
		open = sentence{}
	}
	item := regexp.MustCompile(`^\s*(?:[-*] |\d+\. |> |#+ )`)
	for i, line := range strings.Split(text, "\n") {
		if strings.TrimSpace(line) == "" || item.MatchString(line) || strings.HasPrefix(line, "|") {
			end()
		}
		for _, cell := range strings.Split(item.ReplaceAllString(line, ""), "|") {
			rest := strings.TrimSpace(cell) + " "
			for at := sentenceEnd.FindStringIndex(rest); at != nil; at = sentenceEnd.FindStringIndex(rest) {
				if open.text == "" {
					open.line = i + 1
				}
				open.text += rest[:at[1]]
				end()
				rest = rest[at[1]:]
			}
			if open.text == "" {
				open.line = i + 1
			}
			if rest != " " {
				open.text += rest
			}
			if strings.HasPrefix(line, "|") {
				end()
			}
		}
		if strings.HasPrefix(line, "#") {
			end()
		}
	}
	end()
	return all
}

func TestSentencesOfAPage(t *testing.T) {
	t.Parallel()
	page := "# One heading\n\nA sentence\nover two lines. Another `told`.\n\n- an item, [a link](told.md)\n\n| a | cell |\n| --- | --- |\n\n```go\ntold\n```\nThe end"
	want := []sentence{
		{"One heading", 1},
		{"A sentence over two lines.", 3},
		{"Another `x`.", 4},
		{"an item, [a link]", 6},
		{"a", 8},
		{"cell", 8},
		{"---", 9},
		{"---", 9},
		{"The end", 14},
	}
	if got := sentences(page); !slices.Equal(got, want) {
		t.Errorf("sentences\n%v, want\n%v", got, want)
	}
}

// names may begin with a capital letter within a heading.
var names = strings.Fields(`Postgres NATS JetStream Kafka RabbitMQ Redis Streams Watermill Debezium River Oban API SQL Go Python Ruby Java GORM
	UTF-8 WAL DBA Helm Prometheus Grafana Kubernetes Patroni RDS PgBouncer AMQP HTTP JWT OIDC OpenTelemetry TLS CLI Posthaste Trellis
	JSON CPU MB I Node.js`)

// A page begins with a paragraph that states for whom it is and what for, and its headings are in sentence case.
func TestPagesBeginWithTheirPurpose(t *testing.T) {
	t.Parallel()
	reader := regexp.MustCompile(`\bFor |\byour?\b|\bfor (?:people|programs|engineers|callers|operators)\b`)
	pages := files(t, ".md")
	for _, page := range sortedKeys(pages) {
		if !prose.MatchString(page) {
			continue
		}
		blocks := strings.SplitN(strings.TrimSpace(pages[page]), "\n\n", 3)
		if len(blocks) < 2 || !strings.HasPrefix(blocks[0], "# ") || regexp.MustCompile("^(?:[#|<`-]|\\d+\\.)").MatchString(blocks[1]) {
			t.Errorf("%s does not begin with a title and a paragraph", page)
		} else if page != "README.md" && !reader.MatchString(blocks[1]) {
			t.Errorf("%s does not state for whom it is: %s", page, cutTo(blocks[1], 200))
		}
		for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(pages[page], ""), -1) {
			title := inline.ReplaceAllString(m[1], "x")
			for _, part := range regexp.MustCompile(`[:.?] `).Split(title, -1) {
				for i, word := range strings.Fields(part) {
					word = strings.Trim(word, `,;:.?!()*"`)
					if i > 0 && word != "" && word[0] >= 'A' && word[0] <= 'Z' && !slices.Contains(names, strings.TrimSuffix(word, "'s")) {
						t.Errorf("%s, heading %q: %s begins with a capital letter and is not among the names", page, m[1], word)
					}
				}
			}
		}
	}
}

// A number, a duration, a pointer, a function or a channel in an exported Config has a default, or is required: its
// comment states which. Of names, addresses and lists the empty one is none.
func TestFieldsOfConfigsStateTheirDefault(t *testing.T) {
	t.Parallel()
	states := regexp.MustCompile(`(?i)default|\bzero\b|\b0\b|required|\bnone\b|\bnil\b|\bif set\b|\bis set if\b`)
	n := 0
	for file, source := range files(t, ".go") {
		private := regexp.MustCompile(`(^|/)(internal|cmd|bench|tools|examples)/`).MatchString(file) || strings.HasSuffix(file, "_test.go")
		if private || !strings.Contains(source, "Config struct {") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(node ast.Node) bool {
			spec, is := node.(*ast.TypeSpec)
			if !is || !spec.Name.IsExported() || !strings.HasSuffix(spec.Name.Name, "Config") {
				return true
			}
			fields, is := spec.Type.(*ast.StructType)
			if !is {
				return true
			}
			for _, field := range fields.Fields.List {
				if !defaulted(field.Type) || len(field.Names) == 0 || !field.Names[0].IsExported() {
					continue
				}
				n++
				if comment := field.Doc.Text() + field.Comment.Text(); !states.MatchString(comment) {
					t.Errorf("%s: %s.%s does not state its default: %q", file, spec.Name, field.Names[0], comment)
				}
			}
			return true
		})
	}
	if n < 40 {
		t.Errorf("%d fields of configs: this looks at the wrong place", n)
	}
}

func defaulted(of ast.Expr) bool {
	switch of := of.(type) {
	case *ast.StarExpr, *ast.FuncType, *ast.ChanType:
		return true
	case *ast.Ident:
		return slices.Contains([]string{"int", "int32", "int64", "float64"}, of.Name)
	case *ast.SelectorExpr:
		return of.Sel.Name == "Duration"
	}
	return false
}

// Variables that pages name are settings of the program.
func TestSettingsThatPagesNameExist(t *testing.T) {
	t.Parallel()
	reference, err := os.ReadFile(filepath.Join(top, "docs", "reference", "settings.md"))
	if err != nil {
		t.Fatal(err)
	}
	variable := regexp.MustCompile(`\bOUTBOX_[A-Z][A-Z_]*[A-Z]\b`)
	for page, text := range files(t, ".md") {
		if !prose.MatchString(page) {
			continue
		}
		for _, name := range variable.FindAllString(text, -1) {
			if !strings.Contains(string(reference), "`"+name+"`") {
				t.Errorf("%s names %s, which is not in docs/reference/settings.md", page, name)
			}
		}
	}
}

func sortedKeys[V any](of map[string]V) []string { return slices.Sorted(maps.Keys(of)) }

func cutTo(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}
