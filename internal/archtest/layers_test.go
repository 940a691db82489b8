package archtest

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// layered are the folders whose files are layers: what their doc.go lists further down knows nothing of what stands
// above it.
var layered = []string{"dispatcher"}

func TestReferencesBetweenFilesPointDownwards(t *testing.T) {
	t.Parallel()
	for _, folder := range layered {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			p := checkFolder(t, folder)
			layers := listedFiles(t, folder)
			for file := range p.files {
				if !slices.Contains(layers, file) {
					t.Errorf("%s/doc.go does not list %s", folder, file)
				}
			}
			for _, file := range layers {
				if p.files[file] == nil {
					t.Errorf("%s/doc.go lists %s, which does not exist", folder, file)
				}
			}
			for _, r := range p.references() {
				if slices.Index(layers, r.from) > slices.Index(layers, r.to) {
					t.Errorf("%s uses %s of %s, which stands above it", r.at, r.name, r.to)
				}
			}
		})
	}
}

var listedFile = regexp.MustCompile(`(?m)^//\t([a-z_]+\.go) +\S`)

// listedFiles returns the files that a folder's doc.go lists, each with a sentence, from the top down.
func listedFiles(t *testing.T, folder string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", folder, "doc.go"))
	if err != nil {
		t.Fatal(err)
	}
	files := []string{"doc.go"}
	for _, m := range listedFile.FindAllStringSubmatch(string(text), -1) {
		files = append(files, m[1])
	}
	return files
}

// checked is a package whose names are resolved.
type checked struct {
	fset  *token.FileSet
	files map[string]*ast.File // by name, without tests
	info  types.Info
}

func checkFolder(t *testing.T, folder string) checked {
	t.Helper()
	p := checked{token.NewFileSet(), map[string]*ast.File{}, types.Info{Uses: map[*ast.Ident]types.Object{}}}
	names, err := filepath.Glob(filepath.Join("../..", folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(p.fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, file)
		p.files[filepath.Base(name)] = file
	}
	config := types.Config{Importer: importer.ForCompiler(p.fset, "gc", exports(t, folder))}
	if _, err := config.Check(folder, p.fset, all, &p.info); err != nil {
		t.Fatal(err)
	}
	return p
}

// exports finds what the compiler has written of the packages that a folder's imports.
func exports(t *testing.T, folder string) importer.Lookup {
	t.Helper()
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "./"+folder)
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	where := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		where[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(where[path]) }
}

// reference is a use of what another file declares.
type reference struct{ from, to, name, at string }

// references returns the references to what a package declares outside of functions: types, their fields and methods,
// functions, constants and variables.
func (p *checked) references() (all []reference) {
	for used, object := range p.info.Uses {
		if object.Pkg() == nil || !object.Pos().IsValid() {
			continue
		}
		from, to := p.fset.Position(used.Pos()), p.fset.Position(object.Pos())
		file := filepath.Base(to.Filename)
		if p.files[file] == nil || from.Filename == to.Filename || filepath.Dir(from.Filename) != filepath.Dir(to.Filename) {
			continue
		}
		at := fmt.Sprintf("%s:%d", filepath.Base(from.Filename), from.Line)
		all = append(all, reference{filepath.Base(from.Filename), file, object.Name(), at})
	}
	slices.SortFunc(all, func(a, b reference) int { return strings.Compare(a.at, b.at) })
	return all
}
