package codes_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/outbox/codes"
)

func TestTheDocumentationListsEveryErrorCode(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/guides/retries.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## Error codes\n")
	if !found {
		t.Fatal("docs/guides/retries.md has no section Error codes")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(section, -1) {
		documented = append(documented, row[1])
	}
	if codes := codes.All(); !slices.Equal(documented, codes) {
		t.Errorf("docs/guides/retries.md lists %v, the code %v", documented, codes)
	}
	if constants := slices.Sorted(maps.Values(declared(t))); !slices.Equal(constants, slices.Sorted(slices.Values(codes.All()))) {
		t.Errorf("All lists %v, and the constants are %v", codes.All(), constants)
	}
}

// declared returns the values of the package's constants by their names.
func declared(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			found[spec.Names[0].Name], _ = strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		}
		return true
	})
	return found
}

// A code that stands in the source as a literal is one that this package and the documentation do not list.
func TestTheSourceTakesItsErrorCodesFromHere(t *testing.T) {
	t.Parallel()
	var calls int
	for path := range sources(t, "../..", ".go") {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 || nameOf(call.Fun) != "WithCode" {
				return true
			}
			calls++
			if code, ok := call.Args[0].(*ast.BasicLit); ok {
				t.Errorf("%s: WithCode(%s, …): want a constant of outbox/codes", path, code.Value)
			}
			return true
		})
	}
	literal := regexp.MustCompile(`last_error_code\s+= '([a-z_]+)'`)
	for path, text := range sources(t, "../../queries", ".sql") {
		for _, m := range literal.FindAllStringSubmatch(text, -1) {
			calls++
			if !slices.Contains(codes.All(), m[1]) {
				t.Errorf("%s sets the error code %s, which outbox/codes does not have", path, m[1])
			}
		}
	}
	if calls < 20 {
		t.Errorf("%d places set an error code: this looks for the wrong ones", calls)
	}
}

func nameOf(fun ast.Expr) string {
	switch fun := fun.(type) {
	case *ast.SelectorExpr:
		return fun.Sel.Name
	case *ast.Ident:
		return fun.Name
	}
	return ""
}

// sources returns the files below a folder, except tests and examples of what programs do.
func sources(t *testing.T, root, suffix string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "examples" || d.Name() == "node_modules" || len(d.Name()) > 2 && d.Name()[0] == '.') {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, suffix) || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		found[path] = string(text)
		return err
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("%d files, %v", len(found), err)
	}
	return found
}
