package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestAGroupWithoutACommandLists(t *testing.T) {
	t.Parallel()
	e := env{"DATABASE_URL": pgtest.URL(t)}
	for _, group := range []string{"jobs", "queues", "keys", "schedules", "tokens", "workers", "dlq", "audit"} {
		want := ok(t, e, group, "-o", "json")
		if group != "audit" {
			want = ok(t, e, group, "list", "-o", "json")
		}
		if got := ok(t, e, group, "-o", "json"); got != want {
			t.Errorf("%s printed %s, want %s", group, got, want)
		}
		if out := ok(t, e, group); out == "" {
			t.Errorf("%s printed nothing", group)
		}
		if out := ok(t, e, group, "--help"); !strings.Contains(out, "COMMANDS:") {
			t.Errorf("%s --help printed %s, want the commands", group, out)
		}
	}
	for _, args := range [][]string{{"jobs", "lst"}, {"jobs", "--nonsense"}, {"jobs", "--limit", "1", "list"}, {"migrate"}} {
		if r := posthaste(t, e, "", args...); r.code != exitUsage {
			t.Errorf("%v: exit status %d, want 2", args, r.code)
		}
	}
	if got, want := ok(t, e, "--version"), ok(t, e, "version"); got != want {
		t.Errorf("--version printed %q, want %q", got, want)
	}
}

func TestNumbersAreDecimal(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := env{"DATABASE_URL": url}
	ok(t, e, "enqueue", "greet", "--priority", "010", "--max-attempts", "09", "--key", "k", "--ordered", "--sequence", "011")
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var got [3]int
	if err := conn.QueryRow(t.Context(), `SELECT priority, max_attempts, line_position FROM outbox.jobs`).Scan(&got[0], &got[1], &got[2]); err != nil {
		t.Fatal(err)
	}
	if got != [3]int{10, 9, 11} {
		t.Errorf("stored %v, want 10, 9 and 11", got)
	}
	ok(t, e, "queues", "limit", "mail", "--max-running", "010", "--rate", "010/s")
	if out := ok(t, e, "queues"); !strings.Contains(out, "10/1s") {
		t.Errorf("the limits are %s, want 10/1s", out)
	}
	for _, v := range []string{"0x10", "0b1", "0o7", "1_000", "1e3", "1.0", ""} {
		for _, args := range [][]string{
			{"enqueue", "greet", "--priority", v},
			{"enqueue", "greet", "--sequence", v},
			{"jobs", "--limit", v},
			{"queues", "limit", "mail", "--max-running", v},
			{"queues", "limit", "mail", "--rate", v + "/s"},
			{"dlq", "replay", "--all", "--yes", "--rate", strings.ReplaceAll(v, "1.0", "inf")},
		} {
			if r := posthaste(t, e, "", args...); r.code != exitUsage {
				t.Errorf("%q: exit status %d, want 2: %s", args, r.code, r.errOut)
			}
		}
	}
}

// --key "$UNSET" must not store a job without the key, nor --queue "$UNSET" let an act
// concern all queues.
func TestAnEmptyFlagIsRefused(t *testing.T) {
	t.Parallel()
	e := env{"DATABASE_URL": pgtest.URL(t)}
	for _, args := range [][]string{
		{"enqueue", "greet", ""},
		{"enqueue", "greet", "--idempotency-key", ""},
		{"enqueue", "greet", "--key="},
		{"enqueue", "greet", "--run-at", ""},
		{"enqueue", "greet", "--run-at", "0001-01-01T00:00:00Z"},
		{"enqueue", "greet", "--run-at", "1969-12-31T23:59:59Z"},
		{"enqueue", "greet", "--header", ""},
		{"jobs", "cancel", "--queue", "", "--yes"},
		{"jobs", "cancel", "--queue", "mail", "--created-until", "0001-01-01T00:00:00Z", "--yes"},
		{"operations", "start", "edit", "--queue", "mail", "--set-priority", "1", "--set-run-at", "0001-01-01", "--yes"},
		{"dlq", "dismiss", "--failed-until", "0001-01-01T01:00:00+01:00", "--yes"},
		{"jobs", "--status", ""},
		{"dlq", "dismiss", "--kind", "", "--yes"},
		{"audit", "--actor", ""},
	} {
		if r := posthaste(t, e, "", args...); r.code != exitUsage {
			t.Errorf("%q: exit status %d, want 2: %s", args, r.code, r.errOut)
		}
	}
	if out := ok(t, e, "jobs", "-o", "csv"); strings.Count(out, "\n") != 1 {
		t.Errorf("there is %s, want no job", out)
	}
}

// --database-url "$UNSET" must not act on the database that the environment names.
func TestAnEmptyDirectionIsRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	onDatabase := env{"DATABASE_URL": url}
	throughAPI := env{"DATABASE_URL": url, "OUTBOX_API_URL": "http://127.0.0.1:1", "OUTBOX_API_TOKEN": "ph_of_the_environment"}
	check := func(e env, flag, line string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // of serve, if it does
		defer cancel()
		r := posthasteUntil(ctx, e, "", append(strings.Fields(line), flag, "")...)
		if want := flag + " is empty: leave it out, or give it a value"; r.code != exitUsage || !strings.Contains(r.errOut, want) {
			t.Errorf("%s %s %q: exit status %d, want 2 and %q: %s", line, flag, "", r.code, want, r.errOut)
		}
	}
	for _, line := range []string{"jobs", "jobs cancel --kind mail --yes", "dlq replay --all --yes", "queues pause mail", "relay list", "enqueue greet"} {
		check(onDatabase, "--database-url", line)
		check(throughAPI, "--database-url", line)
		check(throughAPI, "--api", line)
		check(throughAPI, "--token", line)
	}
	for _, line := range []string{"publish order.paid", "tokens list", "migrate status", "migrate up", "doctor", "relay tail", "config", "serve --admin-addr off --role dispatch"} {
		check(onDatabase, "--database-url", line)
	}
	for line, none := range map[string]string{"jobs -o csv": "1 job", "queues -o csv": "1 queue"} {
		if out := ok(t, onDatabase, strings.Fields(line)...); strings.Count(out, "\n") != 1 {
			t.Errorf("there is %s, want not %s", out, none)
		}
	}
	if r := posthaste(t, onDatabase, "", "config", "--listen-url", "", "--console-url", ""); r.code != exitOK {
		t.Errorf("of serve an empty setting that is no direction is one that is not there: %+v", r)
	}
}

// verify would look in the database of the environment.
func TestAFlagBeforeTheCommandItIsForIsRefused(t *testing.T) {
	t.Parallel()
	e := env{"DATABASE_URL": pgtest.URL(t)}
	for _, line := range []string{
		"audit --database-url postgres://127.0.0.1:1/x verify", "audit -o json verify", "audit --actor ada verify",
		"relay replays --database-url postgres://127.0.0.1:1/x stop orders 01976f0e-7a5c-7d3e-8f4b-0123456789ab",
	} {
		if r := posthaste(t, e, "", strings.Fields(line)...); r.code != exitUsage || !strings.Contains(r.errOut, "go behind its name") {
			t.Errorf("%s: exit status %d, want 2: %s", line, r.code, r.errOut)
		}
	}
	ok(t, e, "audit", "verify", "-o", "json")
	ok(t, e, "audit", "-o", "json")
}

func TestHelpIsNoWiderThanAScreen(t *testing.T) {
	for _, args := range [][]string{{}, {"serve"}, {"enqueue"}, {"jobs"}, {"jobs", "list"}, {"dlq", "replay"}, {"tokens", "create"}, {"config"}, {"keys", "unblock"}} {
		out := ok(t, nil, append(args, "--help")...)
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(line) - 1; n > helpWidth && strings.Contains(strings.TrimSpace(line), " ") {
				t.Errorf("%v: %d columns: %s", args, n, line)
			}
		}
	}
	word := strings.Repeat("word ", 30)
	got := fold("   --flag string  " + word)
	if len(got) < 2 || strings.Join(strings.Fields(strings.Join(got, " ")), " ") != "--flag string "+strings.TrimSpace(word) {
		t.Errorf("folded to %q", got)
	}
	for _, line := range got[1:] {
		if !strings.HasPrefix(line, strings.Repeat(" ", 18)+"word") {
			t.Errorf("folded to %q, want the words under each other", got)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestWhatCannotBePrintedIsAFailure(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	for _, args := range [][]string{{"version"}, {"--help"}, {"jobs"}, {"jobs", "-o", "csv"}, {"openapi"}, {"config"}, {"enqueue", "greet"}} {
		var errOut bytes.Buffer
		code := run(t.Context(), append([]string{"posthaste"}, args...), func(name string) string { return env{"DATABASE_URL": url}[name] }, strings.NewReader(""), full{}, &errOut)
		if code != exitFailed || !strings.Contains(errOut.String(), "no space left") {
			t.Errorf("%v: exit status %d, want 1: %s", args, code, errOut.String())
		}
	}
}
