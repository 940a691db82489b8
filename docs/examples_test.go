package docs_test

import (
	"path"
	"regexp"
	"strings"
	"testing"
)

// What pkg.go.dev shows of these packages has an example for each question that people ask first. A question is in the
// comment.
func TestExamplesAnswerQuestions(t *testing.T) {
	t.Parallel()
	example := regexp.MustCompile(`(?m)((?:^//.*\n)*)^func (Example\w*)\(\)`)
	n, of := 0, map[string]int{"outbox": 0, "dispatcher": 0, "operator": 0, "api": 0, "client": 0, "relay": 0}
	for file, text := range files(t, "_test.go") {
		if _, wanted := of[path.Dir(file)]; !wanted {
			continue
		}
		for _, m := range example.FindAllStringSubmatch(text, -1) {
			n++
			of[path.Dir(file)]++
			if !strings.Contains(m[1], "?") {
				t.Errorf("%s: the comment of %s asks no question", file, m[2])
			}
		}
	}
	t.Logf("%d examples: %v", n, of)
	for name, has := range of {
		if has == 0 {
			t.Errorf("package %s has no example", name)
		}
	}
	if n < 40 {
		t.Errorf("%d examples, want 40 at least", n)
	}
}
