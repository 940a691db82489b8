package archtest

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// maxNames is how many names package outbox may export: package-level names, and methods of exported types.
// Fields and the methods of interfaces are part of the name that has them. Counted like this it was 176 at f5c5a88.
const maxNames = 100

// TestThePublicPackageStaysSmall counts what package outbox promises to everybody, and wants each name documented:
// an exported type by a comment, and a constant, variable or field by one of its own, beside it, or of its group.
func TestThePublicPackageStaysSmall(t *testing.T) {
	t.Parallel()
	names, bare := exportedNames(t, "../../outbox")
	if len(names) > maxNames {
		t.Errorf("outbox exports %d names, want at most %d; what only our packages need belongs in internal/engine:\n%s",
			len(names), maxNames, strings.Join(names, " "))
	}
	for _, name := range bare {
		t.Errorf("outbox.%s has no comment", name)
	}
}

// TestNamesWithoutACommentAreFound plants some.
func TestNamesWithoutACommentAreFound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source := `// Package p is planted.
package p

// Told has a comment.
type Told struct {
	Fine int // has one, too
	Bare int
}

type Silent struct{}

func (Told) Mute() {}

func Bare() {}

const Alone = 1

// A group has one for all.
const (
	Two = 2
	Three = 3
)
`
	if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	names, bare := exportedNames(t, dir)
	if got, want := strings.Join(names, " "), "Two Three Alone Bare Silent Told Told.Mute"; got != want {
		t.Errorf("names: %q, want %q", got, want)
	}
	if got, want := strings.Join(bare, " "), "Alone Bare Silent Told.Mute Told.Bare"; got != want {
		t.Errorf("without a comment: %q, want %q", got, want)
	}
}

// exportedNames returns the names that a package exports, fields included, and those of them without a comment.
func exportedNames(t *testing.T, dir string) (names, bare []string) {
	t.Helper()
	set := token.NewFileSet()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var parsed []*ast.File
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, f)
	}
	p, err := doc.NewFromFiles(set, parsed, "planted/outbox", doc.PreserveAST)
	if err != nil {
		t.Fatal(err)
	}
	add := func(name, comment string) {
		names = append(names, name)
		if comment == "" {
			bare = append(bare, name)
		}
	}
	values := func(all []*doc.Value) {
		for _, v := range all {
			for _, s := range v.Decl.Specs {
				spec := s.(*ast.ValueSpec)
				for _, id := range spec.Names {
					if id.IsExported() {
						add(id.Name, v.Doc+spec.Doc.Text()+spec.Comment.Text())
					}
				}
			}
		}
	}
	functions := func(all []*doc.Func, of string) {
		for _, f := range all {
			add(of+f.Name, f.Doc)
		}
	}
	values(p.Consts)
	values(p.Vars)
	functions(p.Funcs, "")
	for _, typ := range p.Types {
		add(typ.Name, typ.Doc)
		values(typ.Consts)
		values(typ.Vars)
		functions(typ.Funcs, "")
		functions(typ.Methods, typ.Name+".")
		bare = append(bare, bareFields(typ)...)
	}
	return names, bare
}

// bareFields returns the exported fields of a struct that have no comment, if another field has one. If none has, the
// comment of the type covers all fields.
func bareFields(typ *doc.Type) (names []string) {
	for _, s := range typ.Decl.Specs {
		fields, ok := s.(*ast.TypeSpec).Type.(*ast.StructType)
		if !ok {
			continue
		}
		some := false
		for _, f := range fields.Fields.List {
			some = some || f.Doc != nil || f.Comment != nil
		}
		for _, f := range fields.Fields.List {
			for _, id := range f.Names {
				if some && id.IsExported() && f.Doc == nil && f.Comment == nil {
					names = append(names, typ.Name+"."+id.Name)
				}
			}
		}
	}
	return names
}
