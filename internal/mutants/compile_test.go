package mutants

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The code of every mutant compiles: otherwise no test could catch the mutant, and its run would prove nothing. The
// test checks the packages with changed files against the unchanged others.
func TestEveryMutantCompiles(t *testing.T) {
	t.Parallel()
	abs, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	together := groups(All())
	changed := make([]map[string]string, len(together)) // texts by file
	folders := map[string]bool{}
	for i, mutants := range together {
		var all Mutant
		for _, m := range mutants {
			all.Edits = append(all.Edits, m.Edits...)
		}
		changed[i] = goFiles(t, abs, all)
		for file := range changed[i] {
			folders["./"+path.Dir(file)] = true
		}
	}
	c := listPackages(t, abs, slices.Sorted(maps.Keys(folders)))
	for i, mutants := range together {
		if c.check(abs, changed[i]) == nil {
			continue
		}
		for _, m := range mutants { // one of them does not compile, or two cannot be planted together
			if err := c.check(abs, goFiles(t, abs, m)); err != nil {
				t.Errorf("%s: %s", m.Name, err)
			}
		}
	}
}

// groups puts mutants of a folder together that change different declarations: most of them compile together as they do
// alone.
func groups(mutants []Mutant) [][]Mutant {
	const most = 10
	type group struct {
		mutants  []Mutant
		declared map[string]bool
	}
	open := map[string][]*group{} // by folder
	for _, m := range mutants {
		folder := m.Edits[0].Folder()
		fits := func(g *group) bool {
			return len(g.mutants) < most && !slices.ContainsFunc(m.Edits, func(e Edit) bool { return g.declared[e.In] })
		}
		i := slices.IndexFunc(open[folder], fits)
		if i < 0 {
			i = len(open[folder])
			open[folder] = append(open[folder], &group{declared: map[string]bool{}})
		}
		g := open[folder][i]
		g.mutants = append(g.mutants, m)
		for _, e := range m.Edits {
			g.declared[e.In] = true
		}
	}
	var all [][]Mutant
	for _, folder := range slices.Sorted(maps.Keys(open)) {
		for _, g := range open[folder] {
			all = append(all, g.mutants)
		}
	}
	return all
}

// goFiles returns the Go files that a mutant changes, with their new texts.
func goFiles(t *testing.T, root string, m Mutant) map[string]string {
	t.Helper()
	files, err := m.Changed(root)
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(files, func(file, _ string) bool { return !strings.HasSuffix(file, ".go") })
	return files
}

// compiler checks types as the compiler does, against packages that are compiled already.
type compiler struct {
	files    *token.FileSet
	compiled types.Importer
	packages []listed // each after the packages that it imports
	parsed   map[string]*ast.File
	checked  map[string]*types.Package // packages that the mutant changes
}

type listed struct {
	ImportPath, Dir, Export string
	GoFiles, Imports        []string
	Standard                bool
}

// listPackages compiles the packages and those that they import, unless they are in the build cache.
func listPackages(t *testing.T, root string, folders []string) *compiler {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Imports,Standard"}, folders...)...)
	list.Dir = root
	var said bytes.Buffer
	list.Stderr = &said
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", list, err, said.Bytes())
	}
	c := &compiler{files: token.NewFileSet(), parsed: map[string]*ast.File{}}
	exports := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if strings.HasPrefix(p.Dir+"/", root+"/") {
			c.packages = append(c.packages, p)
		}
	}
	c.compiled = importer.ForCompiler(c.files, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("nothing that is changed imports %s", path)
		}
		return os.Open(exports[path])
	})
	return c
}

// Import returns the package as the mutant changes it.
func (c *compiler) Import(path string) (*types.Package, error) {
	if p := c.checked[path]; p != nil {
		return p, nil
	}
	return c.compiled.Import(path)
}

// check checks the packages of the changed files, which are named from the root, and the packages that import them.
func (c *compiler) check(root string, changed map[string]string) error {
	c.checked = map[string]*types.Package{}
	left := map[string]bool{} // the folders with a change
	for file := range changed {
		left[filepath.Join(root, filepath.FromSlash(path.Dir(file)))] = true
	}
	for _, p := range c.packages {
		between := slices.ContainsFunc(p.Imports, func(path string) bool { return c.checked[path] != nil })
		if len(left) == 0 || !left[p.Dir] && !between {
			continue
		}
		delete(left, p.Dir)
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := c.parse(root, filepath.Join(p.Dir, name), changed)
			if err != nil {
				return err
			}
			files = append(files, file)
		}
		var err error
		if c.checked[p.ImportPath], err = (&types.Config{Importer: c}).Check(p.ImportPath, c.files, files, nil); err != nil {
			return err
		}
	}
	return nil
}

// parse parses the mutant's version of a file or, once, the unchanged file.
func (c *compiler) parse(root, path string, changed map[string]string) (*ast.File, error) {
	name, err := filepath.Rel(root, path)
	if err != nil {
		return nil, err
	}
	if text, is := changed[filepath.ToSlash(name)]; is {
		return parser.ParseFile(c.files, path, text, parser.SkipObjectResolution)
	}
	if c.parsed[path] == nil {
		if c.parsed[path], err = parser.ParseFile(c.files, path, nil, parser.SkipObjectResolution); err != nil {
			return nil, err
		}
	}
	return c.parsed[path], nil
}
