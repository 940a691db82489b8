package mutants

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Declaration is what an [Edit] is anchored to: a function, method, constant, variable or type of Go, or what a CREATE
// statement of SQL creates.
type Declaration struct {
	Name string // as in Edit.In, with the folder
	File string // from the root of the module, with slashes

	text       string // text of the whole file
	start, end int    // byte offsets of the declaration's lines in it
}

// Text returns the declaration, from the beginning of its first line to the end of its last one.
func (d Declaration) Text() string { return d.text[d.start:d.end] }

// Position returns where the declaration begins, as FILE:LINE.
func (d Declaration) Position() string {
	return fmt.Sprintf("%s:%d", d.File, 1+strings.Count(d.text[:d.start], "\n"))
}

// Declarations returns the declarations of a folder, and the SQL declarations of the folders below it. A name that is
// declared several times, such as init, is returned several times. Of SQL only the last definition counts, in the order
// in which the files are applied: those of the folder by name, then those of the folders below.
func Declarations(root, folder string) ([]Declaration, error) {
	files, err := sources(filepath.Join(root, filepath.FromSlash(folder)))
	if err != nil {
		return nil, err
	}
	var all []Declaration
	newest := map[string]int{} // index in all of an SQL declaration
	for _, path := range files {
		read, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		file, err := filepath.Rel(root, path)
		if err != nil {
			return nil, err
		}
		in := source{folder: folder, file: filepath.ToSlash(file), text: string(read)}
		if strings.HasSuffix(path, ".go") {
			found, err := in.goDeclarations()
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
			continue
		}
		for _, d := range in.sqlDeclarations() {
			if i, defined := newest[d.Name]; defined {
				all[i] = d
				continue
			}
			newest[d.Name] = len(all)
			all = append(all, d)
		}
	}
	return all, nil
}

// sources returns the folder's Go files and its SQL files, then the SQL files of the folders below.
func sources(folder string) (files []string, err error) {
	var below []string
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".")) && path != folder:
			return filepath.SkipDir
		case entry.IsDir():
		case filepath.Dir(path) != folder:
			if strings.HasSuffix(path, ".sql") {
				below = append(below, path)
			}
		case strings.HasSuffix(path, ".sql"), strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			files = append(files, path)
		}
		return nil
	})
	return append(files, below...), err
}

// source is a file to be cut into declarations.
type source struct {
	folder, file, text string
}

// declaration returns the declaration between two offsets, widened to whole lines, so that an edit may begin with an
// indentation.
func (s source) declaration(name string, start, end int) Declaration {
	start = strings.LastIndexByte(s.text[:start], '\n') + 1
	if rest := strings.IndexByte(s.text[end:], '\n'); rest >= 0 {
		end += rest + 1
	} else {
		end = len(s.text)
	}
	return Declaration{Name: s.folder + "." + name, File: s.file, text: s.text, start: start, end: end}
}

func (s source) goDeclarations() (found []Declaration, err error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, s.file, s.text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	add := func(name string, node ast.Node) {
		found = append(found, s.declaration(name, fset.Position(node.Pos()).Offset, fset.Position(node.End()).Offset))
	}
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(receiver(d)+d.Name.Name, d)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add(spec.Name.Name, spec)
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						add(name.Name, spec)
					}
				}
			}
		}
	}
	return found, nil
}

// receiver returns "T." for a method of T, *T or T[K].
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	of := d.Recv.List[0].Type
	for {
		switch x := of.(type) {
		case *ast.StarExpr:
			of = x.X
		case *ast.IndexExpr:
			of = x.X
		case *ast.IndexListExpr:
			of = x.X
		case *ast.Ident:
			return x.Name + "."
		default:
			return fmt.Sprintf("%T.", x)
		}
	}
}

var (
	create = regexp.MustCompile(`(?m)^ *CREATE (?:OR REPLACE )?(?:UNIQUE |CONSTRAINT )?` +
		`(?:FUNCTION|PROCEDURE|TABLE|INDEX|VIEW|TRIGGER|TYPE|DOMAIN|SEQUENCE) (?:IF NOT EXISTS )?([\w.]+)`)
	down = regexp.MustCompile(`(?m)^-- \+goose Down`)
	// sqlToken matches text that may contain a semicolon which ends no statement, and a semicolon that ends one.
	sqlToken = regexp.MustCompile(`--[^\n]*|'(?:[^']|'')*'|\$\w*\$|;`)
)

// sqlDeclarations returns the CREATE statements of a migration, except those of its Down section.
func (s source) sqlDeclarations() (found []Declaration) {
	up := s.text
	if at := down.FindStringIndex(up); at != nil {
		up = up[:at[0]]
	}
	for _, at := range create.FindAllStringSubmatchIndex(up, -1) {
		found = append(found, s.declaration(up[at[2]:at[3]], at[0], at[0]+statement(up[at[0]:])))
	}
	return found
}

// statement returns the length of the statement with which sql begins.
func statement(sql string) int {
	at := 0
	for {
		next := sqlToken.FindStringIndex(sql[at:])
		if next == nil {
			return len(sql)
		}
		found := sql[at+next[0] : at+next[1]]
		at += next[1]
		if found == ";" {
			return at
		}
		if found[0] != '$' {
			continue
		}
		body := strings.Index(sql[at:], found)
		if body < 0 {
			return len(sql)
		}
		at += body + len(found)
	}
}
