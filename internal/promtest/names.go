package promtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/source"
)

// Documented returns the metrics of docs/reference/metrics.md with their labels. A test of package app generates that
// table from what a process registers.
func Documented(t testing.TB) map[string][]string {
	t.Helper()
	dir, err := source.Dir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(dir, "docs/reference/metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string][]string{}
	for _, m := range regexp.MustCompile(
		"(?m)^\\| `([a-z_]+)` \\| (gauge|counter|histogram) \\| ([a-z_, ]*?) ?\\|").FindAllStringSubmatch(string(doc),
		-1) {
		labels := strings.FieldsFunc(m[3], func(r rune) bool { return r == ',' || r == ' ' })
		if m[2] != "histogram" {
			known[m[1]] = labels
			continue
		}
		known[m[1]+"_sum"], known[m[1]+"_count"], known[m[1]+"_bucket"] = labels, labels, append(labels, "le")
	}
	if len(known) < 70 {
		t.Fatalf("%d metrics are documented: this looks at the wrong place", len(known))
	}
	return known
}

var (
	quoted    = regexp.MustCompile(`"[^"]*"`)
	ranges    = regexp.MustCompile(`\[[^\]]*\]`)
	matchers  = regexp.MustCompile(`\{([^}]*)\}`)
	groupings = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right) ?\(([^)]*)\)`)
	words     = regexp.MustCompile(`[a-z_:][a-z0-9_:]*`)
	calls     = regexp.MustCompile(`[a-z0-9_]+ *\(`)
)

// Names returns which metrics of an expression, and which labels, there are not: every label has to be one of a metric
// of the expression. Labels of nil are any.
func Names(expr string, known map[string][]string) error {
	rest := ranges.ReplaceAllString(quoted.ReplaceAllString(expr, ""), "")
	var labels []string
	for _, pattern := range []*regexp.Regexp{matchers, groupings} {
		for _, m := range pattern.FindAllStringSubmatch(rest, -1) {
			labels = append(labels, words.FindAllString(m[1], -1)...)
		}
		rest = pattern.ReplaceAllString(rest, "")
	}
	rest = calls.ReplaceAllString(rest, "(")
	var errs []error
	has := []string{"instance", "job", "namespace"} // Prometheus adds them, the last one in Kubernetes
	anything := false
	metrics := 0
	for _, name := range words.FindAllString(rest, -1) {
		if slices.Contains([]string{"or", "and", "unless", "bool"}, name) {
			continue
		}
		metrics++
		of, ok := known[name]
		if !ok {
			errs = append(errs, fmt.Errorf("there is no metric %s", name))
		}
		has = append(has, of...)
		anything = anything || of == nil
	}
	for _, label := range labels {
		if !anything && !slices.Contains(has, label) {
			errs = append(errs, fmt.Errorf("no metric of it has a label %s", label))
		}
	}
	if metrics == 0 {
		errs = append(errs, errors.New("it names no metric"))
	}
	return errors.Join(errs...)
}
