package ledger

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A line that a kill -9 has cut short is the last one of its file, and counts as not written. Any other line that
// cannot be read makes the ledger invalid.
func TestOnlyALastLineMayBeCutShort(t *testing.T) {
	t.Parallel()
	const line = `{"at":"2026-11-25T19:30:34.687069439Z","worker":"w7","pid":7,"event":"start","n":1}`
	for name, c := range map[string]struct {
		content string
		entries int
		err     string
	}{
		"whole":                {line + "\n" + line + "\n", 2, ""},
		"the last is cut":      {line + "\n" + line[:50], 1, ""},
		"only its end is lost": {line + "\n" + line, 1, ""},
		"one before is cut":    {line[:50] + "\n" + line + "\n", 0, "line 1 is torn"},
		"another comes after":  {line + "\n" + line[:50] + line + "\n", 1, "line 2 is torn"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			if err := os.WriteFile(filepath.Join(folder, "w7"+Suffix), []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			n := 0
			var failed error
			for _, err := range All(folder) {
				if failed = err; err == nil {
					n++
				}
			}
			if n != c.entries || (failed == nil) != (c.err == "") || failed != nil && !strings.Contains(failed.Error(), c.err) {
				t.Errorf("%d entries and the error %v, want %d and %q", n, failed, c.entries, c.err)
			}
		})
	}
}
