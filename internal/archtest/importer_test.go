package archtest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAModuleThatImportsOutboxStaysSmall does what a user does: a module of its own that imports outbox, and
// go mod tidy. Its go.sum is what every scanner of the user's dependencies reads: it has what the tests of outbox
// import, too.
func TestAModuleThatImportsOutboxStaysSmall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// It begins with our go.sum, of which tidy keeps what is needed: so no checksum is asked for over the network.
	sums, err := os.ReadFile("../../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"go.mod":  "module example.com/shop\n\ngo 1.26.0\n\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + root + "\n",
		"go.sum":  string(sums),
		"shop.go": "package shop\n\nimport _ \"" + module + "/outbox\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tidy := exec.CommandContext(t.Context(), "go", "mod", "tidy")
	tidy.Dir = dir
	tidy.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if out, err := tidy.CombinedOutput(); err != nil {
		t.Fatalf("go mod tidy: %v\n%s", err, out)
	}
	sums, err = os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("go.sum has %d lines", bytes.Count(sums, []byte("\n")))
	if lines := bytes.Count(sums, []byte("\n")); lines > 45 || lines < 10 {
		t.Errorf("go.sum of a module that imports outbox has %d lines, want at most 45:\n%s", lines, sums)
	}
	for _, unwanted := range []string{"docker", "moby", "testcontainers", "opentelemetry"} {
		if strings.Contains(string(sums), unwanted) {
			t.Errorf("go.sum of a module that imports outbox names %s", unwanted)
		}
	}
}
