package main

import (
	"cmp"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// rewrite gives the moved edits their new anchors in the Go files of dir.
func rewrite(dir string, moved []stray) error {
	anchors := map[[2]string]string{} // by the old anchor and the text
	for _, s := range moved {
		anchors[[2]string{s.edit.In, s.edit.Old}] = s.to
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	// Types show which literals are edits, and the values of the constants in them. Imports do not matter for that.
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	_, _ = (&types.Config{Error: func(error) {}}).Check("mutants", fset, files, info)

	for _, file := range files {
		var replaced []replacement
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			if !ok || !isEdit(info.Types[literal].Type) || len(literal.Elts) < 2 {
				return true
			}
			anchor := valueOf(literal.Elts[0])
			in, old := info.Types[anchor].Value, info.Types[valueOf(literal.Elts[1])].Value
			if in == nil || old == nil {
				return true
			}
			if to, ok := anchors[[2]string{constant.StringVal(in), constant.StringVal(old)}]; ok {
				replaced = append(replaced, replacement{
					start: fset.Position(anchor.Pos()).Offset,
					end:   fset.Position(anchor.End()).Offset,
					text:  strconv.Quote(to),
				})
			}
			return true
		})
		if err := replace(fset.Position(file.Pos()).Filename, replaced); err != nil {
			return err
		}
	}
	return nil
}

// valueOf returns the value of a field, with or without its name. The fields are in order.
func valueOf(field ast.Expr) ast.Expr {
	if pair, ok := field.(*ast.KeyValueExpr); ok {
		return pair.Value
	}
	return field
}

func isEdit(t types.Type) bool {
	named, ok := t.(*types.Named)
	return ok && named.Obj().Name() == "Edit"
}

// replacement replaces some bytes of a file with a text.
type replacement struct {
	start, end int
	text       string
}

func replace(path string, all []replacement) error {
	if len(all) == 0 {
		return nil
	}
	read, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text := string(read)
	slices.SortFunc(all, func(a, b replacement) int { return cmp.Compare(b.start, a.start) })
	for _, r := range all {
		text = text[:r.start] + r.text + text[r.end:]
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
