// Package promtest runs Prometheus and promtool in tests. Debian has both in its package prometheus.
package promtest

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
)

// required makes a test without the programs fail; otherwise it is skipped.
const required = "POSTHASTE_PROMETHEUS"

// Find returns the path of a program of Prometheus.
func Find(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil && os.Getenv(required) == "required" {
		t.Fatalf("%s is not installed, and %s=required: apt-get install prometheus", program, required)
	}
	if err != nil {
		t.Skipf("%s is not installed: apt-get install prometheus", program)
	}
	return path
}

// Check runs promtool in a folder and reports what it complains about.
func Check(t testing.TB, folder string, stdin []byte, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), Find(t, "promtool"), args...)
	cmd.Dir, cmd.Stdin = folder, bytes.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", cmd, err, out)
	}
}
