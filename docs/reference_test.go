package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	referenceRecipe = regexp.MustCompile(`(?m)^\t\$\(GO\) test -count=1 \./(\S+) -run '?([^' ]+)'? -(update\S*)$`)
	goFunction      = regexp.MustCompile(`(?ms)^func (\w+)\(.*?^}`)
)

// make docs-reference runs every test that writes a page: each has a name that a pattern of its recipe matches.
func TestMakeWritesEveryGeneratedPage(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile(filepath.Join(top, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	_, recipe, _ := strings.Cut(string(makefile), "\ndocs-reference:")
	recipe, _, _ = strings.Cut(recipe, "\n\n")
	runs := referenceRecipe.FindAllStringSubmatch(recipe, -1)
	if len(runs) != 3 {
		t.Fatalf("docs-reference has %d lines that run tests, want 3:\n%s", len(runs), recipe)
	}
	sources := files(t, "_test.go")
	for _, run := range runs {
		folder, pattern, flag := run[1], regexp.MustCompile(run[2]), run[3]
		flag = map[string]string{"update": "update", "update-reference": "updateReference"}[flag]
		tests := writers(sources, folder, flag)
		if len(tests) == 0 {
			t.Errorf("no test of %s reads -%s", folder, run[3])
		}
		for _, name := range tests {
			if !pattern.MatchString(name) {
				t.Errorf("%s of %s writes a page, and make docs-reference does not run it: -run %s", name, folder, run[2])
			}
		}
	}
}

// writers returns the tests of a folder that read a flag, or call a function there that does.
func writers(sources map[string]string, folder, flag string) (tests []string) {
	bodies := map[string]string{}
	for file, source := range sources {
		if filepath.Dir(file) == folder {
			for _, f := range goFunction.FindAllStringSubmatch(source, -1) {
				bodies[f[1]] = f[0]
			}
		}
	}
	reads := []string{`\*` + flag + `\b`}
	for name, body := range bodies {
		if strings.Contains(body, "*"+flag+" ") && !strings.HasPrefix(name, "Test") {
			reads = append(reads, `\b`+name+`\(`)
		}
	}
	reading := regexp.MustCompile(strings.Join(reads, "|"))
	for _, name := range sortedKeys(bodies) {
		if strings.HasPrefix(name, "Test") && reading.MatchString(bodies[name]) {
			tests = append(tests, name)
		}
	}
	return tests
}
