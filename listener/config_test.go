package listener_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/posthaste-dev/posthaste/listener"
)

const dsn = "postgres://ada@db.internal/shop"

func TestConfigReportsEveryMistake(t *testing.T) {
	_, err := listener.New("", "no-dashes", nil, listener.Config{AppName: strings.Repeat("x", 55), CanaryInterval: -time.Second})
	want := `configure listener: the connection string is empty
channel is "no-dashes", want 1 to 63 letters, digits and underscores
the wake signal has 0 slots, want 1 (see NewSignal)
AppName has 55 bytes, want at most 54
CanaryInterval is -1s, want a positive duration`
	if err == nil {
		t.Fatal("New = nil, want an error")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestChannelNames(t *testing.T) {
	tests := map[string]bool{
		"outbox_jobs":           true,
		"Jobs2":                 true,
		strings.Repeat("c", 63): true,
		strings.Repeat("c", 64): false,
		"":                      false,
		"a b":                   false,
		"a\n":                   false,
		`a"; DROP TABLE jobs--`: false,
		"ümlaut":                false,
	}
	for name, valid := range tests {
		if _, err := listener.New(dsn, name, listener.NewSignal(), listener.Config{}); (err == nil) != valid {
			t.Errorf("channel %q: error = %v, want valid = %t", name, err, valid)
		}
	}
}

func TestErrorsDoNotQuoteTheConnectionString(t *testing.T) {
	for _, malformed := range []string{
		"postgres://ada:pass/sw0rdfish@db/shop?sslmode=never",
		"host=db password=sw0rdfish port=none",
		"host=db password = sw0rdfish sslmode",
		"postgres://ada:sw0rdfish@[db/shop",
	} {
		_, err := listener.New(malformed, channel, listener.NewSignal(), listener.Config{})
		if err == nil {
			t.Errorf("New(%q) = nil, want an error", malformed)
		} else if strings.Contains(err.Error(), "sw0rdfish") {
			t.Errorf("New tells the password: %v", err)
		}
	}
}

func TestMetricsStartAtZeroAndAreDocumented(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	if _, err := listener.New(dsn, channel, listener.NewSignal(), listener.Config{Registerer: reg}); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("lint = %v, %v", problems, err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
		if len(f.GetMetric()) != 1 {
			t.Errorf("%s has %d series, want one that starts at zero", f.GetName(), len(f.GetMetric()))
		}
		if !strings.HasSuffix(f.GetHelp(), ".") {
			t.Errorf("help of %s is %q, want a full sentence", f.GetName(), f.GetHelp())
		}
	}
	want := []string{
		"job_notification_received_total",
		"outbox_listener_canary_failures_total",
		"outbox_listener_canary_seconds",
		"outbox_listener_connected",
		"outbox_listener_reconnects_total",
		"outbox_listener_wakeups_coalesced_total",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
