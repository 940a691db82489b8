package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const errorsPage = `# Errors

For people who handle errors of Posthaste in a program or read them in a log: every code, generated from the source.

## Codes of failed attempts

The ` + "`error_code`" + ` of a job's attempt, if the handler sets none. [Retries](../guides/retries.md#error-codes) states what
happens to the job; in Go they are the constants of package ` + "`outbox/codes`" + `. Handlers behind
[webhooks](../guides/webhooks.md) add ` + "`http_STATUS`, `http_timeout` and `http_unreachable`" + `.

%s
## Codes of the relay

Of a sink in ` + "`posthaste relay list`" + `, and of messages that a broker refused ([relay](../operate/relay.md)).

%s
## Problems of the API

The ` + "`code`" + ` of a problem document; [the API](api.md#problems) explains each.

%s`

// docs/reference/errors.md is generated from the constants in the source and their comments. With -update this writes
// it.
func TestErrorsPageHasEveryCode(t *testing.T) {
	t.Parallel()
	attempts, relayed := constants(t, "outbox/codes/codes.go", "code"), constants(t, "relay/sink.go", "code")
	want := fmt.Sprintf(errorsPage, attempts, relayed, problems(t))
	if n := len(regexp.MustCompile("(?m)^\\| \\[?`").FindAllString(want, -1)); n < 50 {
		t.Fatalf("%d codes: this looks at the wrong place", n)
	}
	const page = "reference/errors.md"
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil || string(got) != want {
		t.Errorf("docs/%s is not what the source has, make docs-reference writes it (%v)", page, err)
	}
	for line := range strings.Lines(want) {
		if !strings.Contains(string(got), line) {
			t.Errorf("docs/%s lacks: %s", page, line)
		}
	}
}

// constants returns a table of a file's constants that are codes, with their comments.
func constants(t *testing.T, file, column string) string {
	t.Helper()
	var table strings.Builder
	fmt.Fprintf(&table, "| %s | meaning |\n| --- | --- |\n", column)
	ast.Inspect(parsed(t, file), func(n ast.Node) bool {
		spec, is := n.(*ast.ValueSpec)
		if !is || len(spec.Values) != 1 {
			return true
		}
		literal, is := spec.Values[0].(*ast.BasicLit)
		if !is || !regexp.MustCompile(`^"[a-z_]+"$`).MatchString(literal.Value) || file == "relay/sink.go" && !strings.HasPrefix(spec.Names[0].Name, "Code") {
			return true
		}
		meaning := strings.TrimSpace(spec.Comment.Text())
		if meaning == "" {
			t.Errorf("%s: %s has no comment", file, spec.Names[0])
		}
		fmt.Fprintf(&table, "| `%s` | %s |\n", strings.Trim(literal.Value, `"`), meaning)
		return true
	})
	return table.String()
}

// problems returns a table of the problems that api/problem.go declares.
func problems(t *testing.T) string {
	t.Helper()
	statuses := map[string]int{}
	for status := 400; status < 600; status++ {
		statuses["Status"+strings.ReplaceAll(http.StatusText(status), " ", "")] = status
	}
	var table strings.Builder
	table.WriteString("| code | status | title |\n| --- | --- | --- |\n")
	ast.Inspect(parsed(t, "api/problem.go"), func(n ast.Node) bool {
		literal, is := n.(*ast.CompositeLit)
		if !is {
			return true
		}
		if of, is := literal.Type.(*ast.Ident); !is || of.Name != "code" || len(literal.Elts) != 3 {
			return true
		}
		status := 0
		switch of := literal.Elts[1].(type) {
		case *ast.SelectorExpr:
			status = statuses[of.Sel.Name]
		case *ast.BasicLit:
			status, _ = strconv.Atoi(of.Value)
		}
		name, title := literal.Elts[0].(*ast.BasicLit).Value, literal.Elts[2].(*ast.BasicLit).Value
		if status == 0 {
			t.Errorf("the status of %s is unknown", name)
		}
		fmt.Fprintf(&table, "| [`%s`](api.md#%[1]s) | %d | %s |\n", strings.Trim(name, `"`), status, strings.Trim(title, `"`))
		return true
	})
	return table.String()
}

func parsed(t *testing.T, file string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(top, file), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
