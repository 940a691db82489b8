package prometheus

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/posthaste-dev/posthaste/internal/promtest"
)

// rule is an alert or, with a name in Record, a recording rule.
type rule struct {
	Alert, Record, Expr, For string
	Labels                   struct{ Severity string }
	Annotations              struct {
		Summary    string
		RunbookURL string `yaml:"runbook_url"`
	}
}

const (
	runbooks = "https://github.com/posthaste-dev/posthaste/blob/main/docs/operate/runbooks.md#"
	manual   = "../../docs/operate/"
)

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func rules(t *testing.T) (alerts, recorded []rule) {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []rule }
	}
	if err := yaml.Unmarshal([]byte(read(t, "posthaste.rules.yml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			if r.Alert != "" {
				alerts = append(alerts, r)
			} else {
				recorded = append(recorded, r)
			}
		}
	}
	if len(alerts) < 15 || len(recorded) < 5 {
		t.Fatalf("%d alerts and %d recording rules: this looks at the wrong place", len(alerts), len(recorded))
	}
	return alerts, recorded
}

// found returns what the first group of a pattern matches, sorted.
func found(text, pattern string) (all []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return all
}

// The tables of docs/operate/operations.md agree with the rule file.
func TestRulesAreDocumented(t *testing.T) {
	t.Parallel()
	alerts, recorded := rules(t)
	var want []string
	for _, a := range alerts {
		after := ""
		if a.For != "0m" {
			after = " for " + a.For
		}
		want = append(want, fmt.Sprintf("| [`%s`](runbooks.md#%s) | %s | `%s`%s |", a.Alert, strings.ToLower(a.Alert),
			a.Labels.Severity, strings.ReplaceAll(a.Expr, "|", `\|`), after))
	}
	for _, r := range recorded {
		want = append(want, fmt.Sprintf("| `%s` | `%s` |", r.Record, r.Expr))
	}
	slices.Sort(want)
	got := found(read(t, manual+"operations.md"), "(?m)^(\\| (?:\\[`Posthaste|`posthaste:).*)$")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the tables of docs/operate/operations.md (-rules +tables):\n%s", diff)
	}
}

// Each alert has a runbook and each runbook an alert, and few alerts page.
func TestEachAlertHasARunbook(t *testing.T) {
	t.Parallel()
	alerts, _ := rules(t)
	page := read(t, manual+"runbooks.md")
	shape := regexp.MustCompile("(?s)^\n\n\\*\\*Means:\\*\\* .+\n\n\\*\\*Users see:\\*\\* .+\n\n\\*\\*First look:\\*\\*.*\n\n" +
		"(?:<!-- [^\n]+ -->\n)?```(?:sh|sql)\n.+```\n.*\n\\*\\*Causes:\\*\\*.*\n\n- .+\n\\*\\*Over when\\*\\* .+" +
		"\n\n\\*\\*Escalate(?: when\\*\\*|:\\*\\*) .+\n\n\\*\\*Silence:\\*\\* `alertname`.+$")
	output := regexp.MustCompile("(?s)\n```\n\n\\*\\*Output:\\*\\* .+\n```text\n.+\\*\\*Causes:\\*\\*")
	var names []string
	pages := 0
	for _, a := range alerts {
		names = append(names, a.Alert)
		if want := runbooks + strings.ToLower(a.Alert); a.Annotations.RunbookURL != want {
			t.Errorf("the runbook_url of %s is %s, want %s", a.Alert, a.Annotations.RunbookURL, want)
		}
		if a.Annotations.Summary == "" || !strings.HasSuffix(a.Annotations.Summary, ".") {
			t.Errorf("the summary of %s is %q, want a sentence", a.Alert, a.Annotations.Summary)
		}
		switch a.Labels.Severity {
		case "page":
			pages++
		case "ticket":
		default:
			t.Errorf("the severity of %s is %q, want page or ticket", a.Alert, a.Labels.Severity)
		}
		_, section, _ := strings.Cut(page, "\n## "+a.Alert)
		section, _, _ = strings.Cut(section, "\n## ")
		if !shape.MatchString(section) {
			t.Errorf("the runbook of %s has not the shape Means, Users see, First look with a block, Causes as a list, Over when, Escalate when, Silence:\n%s",
				a.Alert, section)
		}
		if a.Labels.Severity == "page" && !output.MatchString(section) {
			t.Errorf("the runbook of %s, which pages, does not show what a command prints:\n%s", a.Alert, section)
		}
	}
	slices.Sort(names)
	if diff := cmp.Diff(names, found(page, `(?m)^## (.+)$`)); diff != "" {
		t.Errorf("docs/operate/runbooks.md (-alerts +sections):\n%s", diff)
	}
	if pages > 4 {
		t.Errorf("%d alerts page somebody, want 4 at most", pages)
	}
}

// Each alert has a case in which it fires and one in which it does not, and each recorded expression has a value.
func TestRulesAreTested(t *testing.T) {
	t.Parallel()
	alerts, recorded := rules(t)
	var file struct {
		Tests []struct {
			Alerts []struct {
				Name string `yaml:"alertname"`
				Want []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
			Expressions []struct {
				Expr string
				Want []any `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "posthaste.rules_test.yml")), &file); err != nil {
		t.Fatal(err)
	}
	fires, quiet, values := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, a := range test.Alerts {
			if len(a.Want) > 0 {
				fires[a.Name] = true
			} else {
				quiet[a.Name] = true
			}
		}
		for _, e := range test.Expressions {
			values[e.Expr] = len(e.Want) > 0
		}
	}
	for _, a := range alerts {
		if !fires[a.Alert] || !quiet[a.Alert] {
			t.Errorf("%s: a case in which it fires: %t; one in which it does not: %t", a.Alert, fires[a.Alert], quiet[a.Alert])
		}
	}
	for _, r := range recorded {
		if !values[r.Record] {
			t.Errorf("no case says what %s is", r.Record)
		}
	}
}

// Rules use only existing metrics and their labels.
func TestRulesNameMetricsThatExist(t *testing.T) {
	t.Parallel()
	alerts, recorded := rules(t)
	known := promtest.Documented(t)
	for _, r := range recorded {
		known[r.Record] = nil
	}
	for _, r := range slices.Concat(alerts, recorded) {
		if err := promtest.Names(r.Expr, known); err != nil {
			t.Errorf("%s%s: %v", r.Alert, r.Record, err)
		}
	}
}

// The configuration of Prometheus that docs/operate/operations.md shows loads the rules.
func TestPromtoolAcceptsTheConfigurationOfThePage(t *testing.T) {
	t.Parallel()
	shown := found(read(t, manual+"operations.md"), "(?s)<!-- run by deploy/prometheus/rules_test.go.*? -->\n```yaml\n(.*?)```\n")
	if len(shown) != 1 {
		t.Fatalf("docs/operate/operations.md shows %d configurations, want 1", len(shown))
	}
	folder := t.TempDir()
	for name, text := range map[string]string{"prometheus.yml": shown[0], "posthaste.rules.yml": read(t, "posthaste.rules.yml")} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	promtest.Check(t, folder, nil, "check", "config", "prometheus.yml")
}

func TestPromtoolAcceptsTheRules(t *testing.T) {
	t.Parallel()
	promtest.Check(t, "", nil, "check", "rules", "posthaste.rules.yml")
	promtest.Check(t, "", nil, "test", "rules", "posthaste.rules_test.yml")
}
