// Package invalidtest finds the fields that packages refuse, for tests of what words about them others have.
package invalidtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ofStruct matches a field of a struct, as an outbox.InvalidError names it.
var ofStruct = regexp.MustCompile(`^[A-Z][A-Za-z]*(\.[A-Z][A-Za-z]*)+$`)

// refusing are the functions of our packages of which the first argument is a field, or maps fields.
var refusing = []string{"Field", "limited", "pageLimit", "validPerSecond", "validTexts"}

// Fields returns the fields that the package in a folder names in outbox.InvalidErrors: those of its structs, and
// arguments of its functions.
func Fields(t testing.TB, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var fields []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			fields = append(fields, in(n)...)
			return true
		})
	}
	slices.Sort(fields)
	fields = slices.Compact(fields)
	if len(fields) == 0 {
		t.Fatalf("%s refuses no field", folder)
	}
	return fields
}

// in returns the fields that a node itself names.
func in(n ast.Node) (fields []string) {
	switch n := n.(type) {
	case *ast.BasicLit:
		if text := literal(n); ofStruct.MatchString(text) {
			return []string{text}
		}
	case *ast.CallExpr:
		name := ""
		switch called := n.Fun.(type) {
		case *ast.Ident:
			name = called.Name
		case *ast.SelectorExpr:
			name = called.Sel.Name
		}
		if !slices.Contains(refusing, name) || len(n.Args) == 0 {
			return nil
		}
		if texts, ok := n.Args[0].(*ast.CompositeLit); ok {
			return keys(texts)
		}
		if text := literal(n.Args[0]); text != "" {
			return []string{text}
		}
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Field" && literal(n.Value) != "" {
			return []string{literal(n.Value)}
		}
	}
	return nil
}

func keys(of *ast.CompositeLit) (found []string) {
	for _, element := range of.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok && literal(pair.Key) != "" {
			found = append(found, literal(pair.Key))
		}
	}
	return found
}

// literal returns the text of a string literal, "" for anything else.
func literal(e ast.Expr) string {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return ""
	}
	text, _ := strconv.Unquote(l.Value) // cannot fail: it was just parsed
	return text
}
