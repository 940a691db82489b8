package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// make test leaves the tests that match IN_TURN out of all packages in RACED, and has test-in-turn run them in some:
// elsewhere such a test would be run by nobody.
func TestEveryTestIsRun(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	makefile := string(content)
	of := func(pattern string) string {
		found := regexp.MustCompile(pattern).FindStringSubmatch(makefile)
		if found == nil {
			t.Fatalf("the Makefile has no %s", pattern)
		}
		return found[1]
	}
	inTurn := regexp.MustCompile(`(?m)^func (` + strings.TrimPrefix(of(`(?m)^IN_TURN *= (.*)$`), "^") + `\w*)\(t \*testing\.T\)`)
	runs := strings.Fields(of(`--packages="([^"]*)" -- \$\(FLAGS\) -run '\$\(IN_TURN\)'`))
	raced, n := strings.Fields(of(`(?m)^RACED *= (.*)$`)), 0
	for path, content := range prose(t) {
		if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, name := range inTurn.FindAllStringSubmatch(content, -1) {
			n++
			in := "./" + filepath.ToSlash(filepath.Dir(path))
			if contains(raced, in) && !contains(runs, in) {
				t.Errorf("%s: %s is left out of %s, and run by nobody", path, name[1], in)
			}
		}
	}
	if n < 20 {
		t.Errorf("%d tests match IN_TURN, want more: this looks at the wrong place", n)
	}
}

// contains reports whether a package is one of the patterns.
func contains(patterns []string, in string) bool {
	for _, p := range patterns {
		if dir, all := strings.CutSuffix(p, "/..."); in == p || all && strings.HasPrefix(in, dir) {
			return true
		}
	}
	return false
}
