package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// longest is how many lines a function may have. Tests may have more: a story is told from its
// beginning to its end.
const longest = 60

func TestFunctionsAreShort(t *testing.T) {
	t.Parallel()
	for path, content := range prose(t) {
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "_templ.go") {
			continue
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, content, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, is := d.(*ast.FuncDecl)
			if !is {
				continue
			}
			first, last := files.Position(f.Pos()), files.Position(f.End())
			if lines := last.Line - first.Line + 1; lines > longest {
				t.Errorf("%s: %s has %d lines, %d are enough", first, f.Name.Name, lines, longest)
			}
		}
	}
}
