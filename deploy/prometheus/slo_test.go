package prometheus

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	prom "github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/posthaste-dev/posthaste/internal/promtest"
)

// The example of a service level in docs/operate/operations.md fires while one job of five starts late, only as a
// ticket for one of ten, and not for one of a hundred. It names a bucket that the histogram has.
func TestTheServiceLevelOfThePage(t *testing.T) {
	t.Parallel()
	shown := found(read(t, manual+"operations.md"), "(?s)<!-- run by deploy/prometheus/slo_test.go.*? -->\n```yaml\n(.*?)```\n")
	if len(shown) != 1 {
		t.Fatalf("docs/operate/operations.md shows %d service levels, want 1", len(shown))
	}
	bucket := regexp.MustCompile(`^4[.]768.*$`)
	const buckets = "prometheus.ExponentialBuckets(0.0005, 2.5, 14)"
	if le := strconv.FormatFloat(prom.ExponentialBuckets(0.0005, 2.5, 14)[10], 'g', -1, 64); !bucket.MatchString(le) ||
		!strings.Contains(read(t, "../../dispatcher/metrics.go"), buckets) {
		t.Errorf("the bucket is %s, want one of %s that %s matches", le, buckets, bucket)
	}
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal([]byte(shown[0]), &file); err != nil || len(file.Groups) != 1 {
		t.Fatalf("%d groups, %v", len(file.Groups), err)
	}
	known := promtest.Documented(t)
	for _, r := range file.Groups[0].Rules {
		known[r.Record] = nil
	}
	for _, r := range file.Groups[0].Rules {
		if err := promtest.Names(r.Expr, known); err != nil {
			t.Errorf("%s%s: %v", r.Alert, r.Record, err)
		}
	}
	folder := t.TempDir()
	for name, text := range map[string]string{"slo.yml": shown[0], "test.yml": burns("80") + burns("90") + burns("99")} {
		if name == "test.yml" {
			text = "rule_files: [slo.yml]\ntests:\n" + text
		}
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	promtest.Check(t, folder, nil, "check", "rules", "slo.yml")
	promtest.Check(t, folder, nil, "test", "rules", "test.yml")
}

// burns returns a case in which so many of 100 jobs a minute start in time.
func burns(inTime string) string {
	alert := func(name, severity string, fires bool) string {
		text := "      - {eval_time: 7h, alertname: " + name
		if fires {
			text += ", exp_alerts: [{exp_labels: {severity: " + severity + "}}]"
		}
		return text + "}\n"
	}
	const metric = "outbox_dispatcher_enqueue_to_start_seconds"
	return `  - interval: 1m
    input_series:
      - {series: '` + metric + `_bucket{le="4.76837158203125"}', values: '0+` + inTime + `x420'}
      - {series: '` + metric + `_count', values: '0+100x420'}
    alert_rule_test:
` + alert("StartBudgetBurnsFast", "page", inTime == "80") + alert("StartBudgetBurnsSlowly", "ticket", inTime != "99")
}
