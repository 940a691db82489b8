package main

import (
	"context"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestEverySettingHasAFlagAVariableAndADefaultThatParses(t *testing.T) {
	name := regexp.MustCompile(`^(OUTBOX|DATABASE)_[A-Z_]+$`)
	for _, s := range slices.Concat(allSettings, apiSettings) {
		if s.flag == "" || len(s.envs) == 0 || s.usage == "" {
			t.Errorf("%+v lacks something", s.flag)
		}
		for _, env := range s.envs {
			if !name.MatchString(env) {
				t.Errorf("--%s has the variable %s, want OUTBOX_…", s.flag, env)
			}
		}
		if s.fallback == "" {
			continue
		}
		if err := s.parse(new(settings), s.fallback); err != nil {
			t.Errorf("the default %q of --%s: %v", s.fallback, s.flag, err)
		}
	}
}

func TestBadVariablesAreAllNamedWithWhatIsWanted(t *testing.T) {
	r := posthaste(t, env{
		"DATABASE_URL": "postgres://ada:hush@:x:y", "OUTBOX_DISPATCH": "maybe", "OUTBOX_POLL_INTERVAL": "fast", "OUTBOX_QUEUES": "mail=none",
		"OUTBOX_WEBHOOKS": "greet=ftp://u:hush@x", "OUTBOX_NOTIFY": "loud", "OUTBOX_LEASE_TTL": "1ms", "OUTBOX_ADMIN_ADDR": "9090",
		"OUTBOX_LOG_LEVEL": "loud", "OUTBOX_LOG_FORMAT": "xml", "OUTBOX_KEEP": "23h", "OUTBOX_WORKER": "a b",
		"OUTBOX_API_RATE": "NaN",
	}, "", "serve")
	if r.code != exitUsage {
		t.Errorf("got exit status %d, want 2", r.code)
	}
	for _, want := range []string{
		"DATABASE_URL is not acceptable: invalid port",
		`OUTBOX_DISPATCH is "maybe": want on or off`,
		`OUTBOX_POLL_INTERVAL is "fast": want a duration of 10ms to 1h`,
		`OUTBOX_QUEUES is "mail=none": the queue "mail" has "none" jobs at once, want 1 to 100000`,
		`OUTBOX_WEBHOOKS is not acceptable: of kind "greet"`,
		`OUTBOX_NOTIFY is "loud": want off, transactional or coalesced`,
		`OUTBOX_LEASE_TTL is "1ms": want a duration of 1s to 1d`,
		`OUTBOX_ADMIN_ADDR is "9090": want HOST:PORT`,
		`OUTBOX_LOG_LEVEL is "loud": want one of debug, info, warn, error`,
		`OUTBOX_LOG_FORMAT is "xml"`, `OUTBOX_KEEP is "23h": want a duration of 1d to`, `OUTBOX_WORKER is "a b"`,
		`OUTBOX_API_RATE is "NaN": want 0.01 to 1000000 a second`,
	} {
		if !strings.Contains(r.errOut, want) {
			t.Errorf("got\n%swant a line with %q", r.errOut, want)
		}
	}
	if strings.Contains(r.errOut, "hush") {
		t.Errorf("a password is shown:\n%s", r.errOut)
	}
}

func TestConfigTellsValuesAndSourcesWithoutSecrets(t *testing.T) {
	out := ok(t, env{
		"DATABASE_URL":          "postgres://ada:hush@db:5433/shop?sslmode=require&sslpassword=hush",
		"OUTBOX_LISTEN_URL":     "host=/run/pg user=ada password=hush dbname=shop",
		"OUTBOX_WEBHOOKS":       "greet=https://u:hush@example.com/x?token=hush",
		"OUTBOX_WEBHOOK_SECRET": "whsec_aHVzaGh1c2hodXNoaHVzaGh1c2hodXNo",
		"OUTBOX_LISTEN":         "off",
		"OUTBOX_GRACE_PERIOD":   "",
		"OUTBOX_API_URL":        "https://jobs.example.com/x",
		"OUTBOX_API_TOKEN":      "ph_1_hush",
	}, "config", "-o", "json", "--listen", "on", "--lease-ttl=1m")
	var rows []map[string]string
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, row := range rows {
		got[row["setting"]] = row["value"] + " from " + row["source"]
	}
	if all := len(allSettings) + len(apiSettings); len(got) != all {
		t.Errorf("got %d settings, want all %d", len(got), all)
	}
	for name, want := range map[string]string{
		"database-url":   "postgres://ada:REDACTED@db:5433/shop from DATABASE_URL",
		"listen-url":     "host=/run/pg port=5432 user=ada dbname=shop password=REDACTED from OUTBOX_LISTEN_URL",
		"webhook":        "greet=https://example.com/… from OUTBOX_WEBHOOKS",
		"webhook-secret": "REDACTED from OUTBOX_WEBHOOK_SECRET",
		"listen":         "on from --listen",
		"lease-ttl":      "1m from --lease-ttl",
		"grace-period":   "20s from default",
		"api":            "https://jobs.example.com/x from OUTBOX_API_URL",
		"token":          "REDACTED from OUTBOX_API_TOKEN",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if strings.Contains(out, "hush") || strings.Contains(out, "aHVzaG") {
		t.Errorf("a secret is shown:\n%s", out)
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"30s": 30 * time.Second, "14d": 14 * 24 * time.Hour, "1d12h": 36 * time.Hour, "0s": 0,
		"": -1, "5": -1, "-1s": -1, "d": -1, "1d-1h30": -1, "9999999d": -1, "40d": -1,
	} {
		got, err := parseDuration(text, 0, 30*24*time.Hour)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("parseDuration(%q) is %s, want %s", text, got, want)
		}
	}
}

func TestParseQueues(t *testing.T) {
	got, err := parseQueues("default=64, mail=8,slow")
	want := map[string]dispatcher.QueueConfig{"default": {Concurrency: 64}, "mail": {Concurrency: 8}, "slow": {}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("got %v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"", "a=0", "a=x", "=3", "a,a", "a b", "a=100001", ","} {
		if got, err := parseQueues(bad); err == nil {
			t.Errorf("parseQueues(%q) is %v, want an error", bad, got)
		}
	}
}

func TestOnlyTheDefaultAdminAddressIsOptional(t *testing.T) {
	for name, test := range map[string]struct {
		env  env
		args []string
		want bool
	}{
		"default":  {nil, nil, true},
		"flag":     {nil, []string{"--admin-addr", "127.0.0.1:9090"}, false},
		"variable": {env{"OUTBOX_ADMIN_ADDR": "127.0.0.1:9090"}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := &program{getenv: func(name string) string { return test.env[name] }}
			var got settings
			command := &cli.Command{Flags: flags("admin-addr"), Action: func(_ context.Context, c *cli.Command) (err error) {
				got, err = p.load(c, "admin-addr")
				return err
			}}
			if err := command.Run(t.Context(), append([]string{"posthaste"}, test.args...)); err != nil || got.app.AdminOptional != test.want {
				t.Errorf("optional is %t, %v; want %t", got.app.AdminOptional, err, test.want)
			}
		})
	}
}

func TestParseWebhooks(t *testing.T) {
	got, err := parseWebhooks("a=http://x/?q=1%2C2, b.c=https://y")
	want := []webhookRoute{{"a", "http://x/?q=1%2C2"}, {"b.c", "https://y"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(webhookRoute{})); err != nil || diff != "" {
		t.Errorf("got %v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"http://x", "a=", "a=x", "a=http://x,a=http://y", "a=http://x/?q=1,2", "a b=http://x"} {
		if got, err := parseWebhooks(bad); err == nil {
			t.Errorf("parseWebhooks(%q) is %v, want an error", bad, got)
		}
	}
}

func TestParseWebhookSecrets(t *testing.T) {
	const one, two = "whsec_aHVzaGh1c2hodXNoaHVzaGh1c2hodXNo", "whsec_bm93bm93bm93bm93bm93bm93bm93bm93"
	if got, err := parseWebhookSecrets(one + "," + two); err != nil || !slices.Equal(got.Secrets, []string{one, two}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"hush", "whsec_aHVzaA==", one + "," + two + "," + one, one + ","} {
		if _, err := parseWebhookSecrets(bad); err == nil || strings.Contains(err.Error(), bad) {
			t.Errorf("parseWebhookSecrets(%q): %v, want an error without it", bad, err)
		}
	}
}

func TestShort(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"10ms": 10 * time.Millisecond, "1h": time.Hour, "5m": 5 * time.Minute, "1d": 24 * time.Hour, "10s": 10 * time.Second,
		"1h30m": 90 * time.Minute, "10m": 10 * time.Minute, "0s": 0,
	} {
		if got := short(d); got != want {
			t.Errorf("short(%s) is %q, want %q", d, got, want)
		}
	}
}

func TestKeepIsADurationAndThoseOfOutcomes(t *testing.T) {
	keep, byStatus, byQueue, err := parseKeep("14d, succeeded=2d,cancelled=36h,dead=60d,mail:succeeded=1d, a:b:failed=30h")
	want := map[outbox.Status]time.Duration{outbox.Succeeded: 48 * time.Hour, outbox.Cancelled: 36 * time.Hour, outbox.Dead: 60 * 24 * time.Hour}
	if err != nil || keep != 14*24*time.Hour || !maps.Equal(byStatus, want) {
		t.Errorf("got %s, %v, %v, want 336h, %v", keep, byStatus, err, want)
	}
	if len(byQueue) != 2 || byQueue["mail"][outbox.Succeeded] != 24*time.Hour || byQueue["a:b"][outbox.Failed] != 30*time.Hour {
		t.Errorf("got %v for queues", byQueue)
	}
	keep, byStatus, byQueue, err = parseKeep("succeeded=0,mail:cancelled=0s,30d")
	if none, says := byStatus[outbox.Succeeded]; err != nil || keep != 30*24*time.Hour || none != 0 || !says {
		t.Errorf("of succeeded jobs got %s, %t, %v; want that none is kept", none, says, err)
	}
	if none, says := byQueue["mail"][outbox.Cancelled]; none != 0 || !says {
		t.Errorf("of cancelled jobs of mail got %s, %t; want that none is kept", none, says)
	}
	for _, bad := range []string{"", "14d,15d", "running=2d", "succeeded=", "succeeded=-1h", "23h", "14d,succeeded=23h59m", "mail:dead=1h", "0", "0s,succeeded=1d", "14d,nonsense=2d", ":succeeded=1d", "mail:running=1d", "mail:=1d"} {
		if keep, byStatus, _, err := parseKeep(bad); err == nil {
			t.Errorf("parseKeep(%q) is %s, %v, want an error", bad, keep, byStatus)
		}
	}
}
