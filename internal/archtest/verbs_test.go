package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// states returns, by line, the functions and methods whose comment begins with "Name is": a function does or returns
// something. Functions that return only a bool are left out, whose comments begin with "Name reports whether".
func states(file, content string) map[int]string {
	if filepath.Ext(file) != ".go" {
		return nil
	}
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(parsed) {
		return nil
	}
	found := map[int]string{}
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || returnsBool(f) {
			continue
		}
		words := strings.Fields(f.Doc.Text())
		if len(words) > 1 && words[0] == f.Name.Name && slices.Contains([]string{"is", "are", "was", "were"}, words[1]) {
			found[fset.Position(f.Doc.Pos()).Line] = words[0] + " " + words[1]
		}
	}
	return found
}

func returnsBool(f *ast.FuncDecl) bool {
	if f.Type.Results == nil || len(f.Type.Results.List) != 1 {
		return false
	}
	name, ok := f.Type.Results.List[0].Type.(*ast.Ident)
	return ok && name.Name == "bool"
}

func TestStatesAreFoundInCommentsOfFunctions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"// size is how many there are.\nfunc size() int { return 0 }":           true,
		"// size is\n// how many there are.\nfunc (t T) size() (n int, ok bool)": true,
		"// names are those of the rows.\nfunc names() []string { return nil }":  true,
		"// size returns how many there are.\nfunc size() int { return 0 }":      false,
		"// isOpen is whether it is open.\nfunc isOpen() bool { return true }":   false,
		"// size is how many there are.\nconst size = 1":                         false,
		"// size is how many there are.\ntype size int":                          false,
		"func size() int { return 0 }":                                           false,
	} {
		if got := states("a.go", "package a\n\n"+text+"\n"); (len(got) > 0) != want || want && got[3] == "" {
			t.Errorf("%q: found %v, want a finding: %t", text, got, want)
		}
	}
}
