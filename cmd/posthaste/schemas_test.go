package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSchemasAreReadFromAFolder(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("receipt.send.schema.json", `{"type": "object", "required": ["to"]}`)
	schemas, err := readSchemas(folder)
	if err != nil || !schemas.Has("receipt.send") {
		t.Fatalf("readSchemas = %v", err)
	}
	if none, err := readSchemas(""); none != nil || err != nil {
		t.Errorf("no folder: %v, %v", none, err)
	}
	write("bad.schema.json", `{"type": 7}`)
	for _, where := range []string{folder, filepath.Join(folder, "nothing"), filepath.Join(folder, "bad.schema.json")} {
		if _, err := readSchemas(where); err == nil {
			t.Errorf("%s was taken", where)
		}
	}
	if _, err := readSchemas(folder); err == nil || !strings.Contains(err.Error(), `"bad"`) {
		t.Errorf("the mistake is told as %v", err)
	}
}
