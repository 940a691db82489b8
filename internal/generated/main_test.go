package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWhatHasChangedIsNamed(t *testing.T) {
	root := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	put(sumsFile, "")
	for _, pattern := range append(inputs, outputs...) {
		put(strings.ReplaceAll(pattern, "*", "one"), pattern)
	}
	if err := run(root, false); err != nil {
		t.Fatal(err)
	}
	check := func(want ...string) {
		t.Helper()
		err := run(root, true)
		if err == nil && len(want) == 0 {
			return
		}
		if err == nil || !strings.HasPrefix(err.Error(), strings.Join(want, ", ")+" changed") {
			t.Errorf("got %v, want that %q changed", err, want)
		}
	}
	check()
	put("queries/one.sql", "SELECT 2")
	put("internal/sqlgen/one.go", "by hand")
	put("console/two_templ.go", "of no template")
	put("console/one.go", "is not generated")
	if err := os.Remove(filepath.Join(root, "migrations/functions/one.sql")); err != nil {
		t.Fatal(err)
	}
	put("migrations/functions/two.sql", "another")
	check("all inputs", "console/two_templ.go", "internal/sqlgen/one.go", "migrations/functions/one.sql", "migrations/functions/two.sql", "queries/one.sql")
	if err := run(root, false); err != nil {
		t.Fatal(err)
	}
	check()
	if err := os.RemoveAll(filepath.Join(root, "queries")); err != nil {
		t.Fatal(err)
	}
	if err := run(root, true); err == nil || !strings.Contains(err.Error(), "queries/*.sql") {
		t.Errorf("without queries: %v", err)
	}
}
