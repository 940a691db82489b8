package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// mostFiles is how many files the methods of a type may be in: a type is one concept, from top to bottom.
const mostFiles = 3

// facades are types that are an interface of many verbs, or routes, scenarios or steps, with a file for each.
var facades = map[string]bool{
	"api.server":                         true,
	"client.Client":                      true,
	"cmd/posthaste.program":              true,
	"cmd/posthaste.remote":               true,
	"console.site":                       true,
	"console.visit":                      true,
	"internal/bench.rig":                 true,
	"internal/verify.Run":                true,
	"internal/verify/model.KeyedMachine": true,
	"internal/verify/model.Machine":      true,
	"operator.Operator":                  true,
	"outbox.Claimed":                     true,
}

// undivided are types that are still several concepts.
var undivided = map[string]bool{
	"app.process":    true,
	"bridge.bridge":  true,
	"console.search": true,
}

func TestMethodsOfATypeStandTogether(t *testing.T) {
	t.Parallel()
	found := map[string][]string{} // files, by package and type
	for file, content := range prose(t) {
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, content, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if ast.IsGenerated(parsed) {
			continue
		}
		for _, d := range parsed.Decls {
			f, is := d.(*ast.FuncDecl)
			if !is || f.Recv == nil {
				continue
			}
			name := path.Dir(file) + "." + receiver(f.Recv.List[0].Type)
			if !slices.Contains(found[name], path.Base(file)) {
				found[name] = append(found[name], path.Base(file))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		files, excepted := found[name], facades[name] || undivided[name]
		switch {
		case len(files) > mostFiles && !excepted:
			slices.Sort(files)
			t.Errorf("%s has methods in %d files, want at most %d: %s", name, len(files), mostFiles, strings.Join(files, ", "))
		case len(files) <= mostFiles && excepted:
			t.Errorf("%s has methods in %d files: it needs no exception any more", name, len(files))
		}
	}
	for _, exceptions := range []map[string]bool{facades, undivided} {
		for name := range exceptions {
			if found[name] == nil {
				t.Errorf("%s is an exception, and no type", name)
			}
		}
	}
}

// receiver returns the name of the type that has a method.
func receiver(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return receiver(of.X)
	case *ast.IndexExpr:
		return receiver(of.X)
	case *ast.IndexListExpr:
		return receiver(of.X)
	case *ast.Ident:
		return of.Name
	}
	return "?"
}
