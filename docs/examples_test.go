package docs_test

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What pkg.go.dev shows of these packages has an example for each question that people ask first. A question is in the
// comment.
func TestExamplesAnswerQuestions(t *testing.T) {
	t.Parallel()
	example := regexp.MustCompile(`(?m)((?:^//.*\n)*)^func (Example\w*)\(\)`)
	n := 0
	for file, text := range files(t, "_test.go") {
		if !slices.Contains([]string{"outbox", "dispatcher", "operator", "api", "client", "relay"}, path.Dir(file)) {
			continue
		}
		for _, m := range example.FindAllStringSubmatch(text, -1) {
			n++
			if !strings.Contains(m[1], "?") {
				t.Errorf("%s: the comment of %s asks no question", file, m[2])
			}
		}
	}
	t.Logf("%d examples", n)
	if n < 40 {
		t.Errorf("%d examples, want 40 at least", n)
	}
}
