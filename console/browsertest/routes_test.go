package browsertest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// noPages are the paths that answer a GET, and with no page to look at.
var noPages = map[string]string{
	"":               "leads to the first page of the navigation",
	"find":           "leads to a job or to the list",
	"provider":       "leads to the provider; TestAPersonOfAProvider opens it",
	"callback":       "leads to the page that was asked for; TestAPersonOfAProvider opens it",
	"payload":        "is a file",
	"result":         "is a file",
	"jobs-export":    "is a file",
	"letters-export": "is a file",
	"audit-export":   "is a file",
	"robots.txt":     "is a file",
	"rows":           "is a part of a page, which live.js puts into it",
	"events":         "is a stream",
}

// readRoutes reads from the console's sources which paths answer a GET: the rows of its table, and of the table of
// acts, each of which has a page.
func readRoutes(t *testing.T) (paths []string) {
	t.Helper()
	files, err := filepath.Glob("../*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			list, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			array, _ := list.Type.(*ast.ArrayType)
			if array == nil {
				return true
			}
			of, _ := array.Elt.(*ast.Ident)
			if of == nil || of.Name != "route" && of.Name != "act" {
				return true
			}
			for _, row := range list.Elts {
				words := wordsOf(row)
				switch {
				case of.Name == "act":
					paths = append(paths, words[0])
				case words[0] == "GET":
					paths = append(paths, words[1])
				}
			}
			return false
		})
	}
	return paths
}

// wordsOf returns the two values that a row begins with, as far as they are strings.
func wordsOf(row ast.Expr) (words [2]string) {
	literal, _ := row.(*ast.CompositeLit)
	if literal == nil {
		return words
	}
	for i := range min(len(words), len(literal.Elts)) {
		if word, ok := literal.Elts[i].(*ast.BasicLit); ok {
			words[i], _ = strconv.Unquote(word.Value)
		}
	}
	return words
}

// unseen returns the paths that are pages, and that none of the pages has.
func unseen(paths, pages []string) (missing []string) {
	seen := map[string]bool{}
	for _, page := range pages {
		path, _, _ := strings.Cut(page, "?")
		seen[path] = true
	}
	for _, path := range paths {
		if _, none := noPages[path]; !none && !seen[path] {
			missing = append(missing, path)
		}
	}
	return missing
}

// The table is found where it is, and each exception is a row of it.
func TestTheTableIsRead(t *testing.T) {
	t.Parallel()
	paths := readRoutes(t)
	for path := range noPages {
		if !slices.Contains(paths, path) {
			t.Errorf("/%s is an exception, and no row of the table", path)
		}
	}
	for _, path := range []string{"problems", "sink", "job-edit", "operation-stop", "undo"} {
		if !slices.Contains(paths, path) {
			t.Errorf("/%s is not among the rows that were read: %q", path, paths)
		}
	}
	if got := unseen([]string{"jobs", "sink", "rows"}, []string{"jobs?status=dead"}); !slices.Equal(got, []string{"sink"}) {
		t.Errorf("of jobs, sink and rows, with jobs looked at, %q are missing, want sink", got)
	}
}
