package browsertest

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

//go:embed axe/vendor.txt
var vendored string

// The files that are from elsewhere are those that the list names, byte for byte.
func TestVendoredFilesAreAsListed(t *testing.T) {
	listed := map[string]bool{"vendor.txt": true}
	for line := range strings.Lines(vendored) {
		fields := strings.Fields(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		if len(fields) != 4 {
			t.Fatalf("%q is not a package, a file, a name and a sum", line)
		}
		content, err := os.ReadFile(filepath.Join("axe", fields[2]))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != fields[3] {
			t.Errorf("%s has the sum %x, want %s", fields[2], sum, fields[3])
		}
		listed[fields[2]] = true
	}
	files, err := os.ReadDir("axe")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !listed[f.Name()] {
			t.Errorf("axe/%s is not in axe/vendor.txt", f.Name())
		}
	}
}
