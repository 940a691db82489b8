// Package programtest finds the programs that some tests need and few machines have. Without them the tests are
// skipped; where POSTHASTE_PROGRAMS=required, as in CI, they fail.
package programtest

import (
	"os"
	"os/exec"
	"testing"
)

const required = "POSTHASTE_PROGRAMS"

// Find returns the path of a program that has one of these names, or ends the test. Debian has it in the packages.
func Find(t testing.TB, packages string, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	Missing(t, names[0]+" is not installed: apt-get install "+packages)
	return ""
}

// Missing ends the test, which needs a program that is missing.
func Missing(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv(required) == "required" {
		t.Fatalf("%s; and %s=required", reason, required)
	} else {
		t.Skip(reason)
	}
}
