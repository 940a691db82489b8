package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestEnqueueStoresWhatWasAsked(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	e := env{"DATABASE_URL": pool.Config().ConnString()}
	r := posthaste(t, e, "\x00\x01bytes", "enqueue", "greet", "-", "--content-type", "application/x-odd", "--queue", "mail", "--priority", "-3",
		"--run-at", "2099-01-01T00:00:00Z", "--max-attempts", "7", "--timeout", "90s", "--backoff", "0,5s,1m30s", "--key", "k", "--header", "user=a,b=c", "--header", "x=y",
		"--tenant", "00000000-0000-0000-0000-000000000009", "--idempotency-key", "once", "--deadline", "2099-01-02T00:00:00Z", "--hold")
	if r.code != exitOK {
		t.Fatalf("got %+v", r)
	}
	var got string
	err := pool.QueryRow(t.Context(), `SELECT concat_ws('|', kind, queue, priority, max_attempts, timeout, backoff, key, content_type, headers, encode(payload, 'escape'), tenant_id, run_at AT TIME ZONE 'UTC', deadline AT TIME ZONE 'UTC', status)
		FROM outbox.jobs WHERE id = $1`, strings.TrimSpace(r.out)).Scan(&got)
	want := `greet|mail|-3|7|00:01:30|{00:00:00,00:00:05,00:01:30}|k|application/x-odd|{"x": "y", "user": "a,b=c"}|\000\x01bytes|00000000-0000-0000-0000-000000000009|2099-01-01 00:00:00|2099-01-02 00:00:00|created`
	if want = strings.ReplaceAll(want, `\x01`, "\x01"); err != nil || got != want {
		t.Errorf("got  %q (%v)\nwant %q", got, err, want)
	}
	again := ok(t, e, "enqueue", "greet", "--tenant", "00000000-0000-0000-0000-000000000009", "--idempotency-key", "once")
	if again != r.out {
		t.Errorf("a repeat got %q, want the first job's id %q", again, r.out)
	}
	if r := posthaste(t, e, "", "enqueue", "greet", `{"a":`, "--queue", "a b"); r.code != exitUsage ||
		!strings.Contains(r.errOut, "PAYLOAD is not valid JSON") || !strings.Contains(r.errOut, `--queue is "a b"`) {
		t.Errorf("got %+v, want exit status 2 and both mistakes in the words of the command line", r)
	}
	if r := posthaste(t, e, "", "enqueue", "greet", "--backoff", "5s,soon"); r.code != exitUsage || !strings.Contains(r.errOut, `--backoff has "soon"`) {
		t.Errorf("got %+v, want exit status 2", r)
	}
	if r := posthaste(t, e, "", "enqueue", "greet", "--deadline", "tomorrow"); r.code != exitUsage || !strings.Contains(r.errOut, `--deadline is "tomorrow"`) {
		t.Errorf("got %+v, want exit status 2", r)
	}
	if r := posthaste(t, e, "", "enqueue", "greet", "--deadline", "2027-01-01T00:00:00Z", "--run-at", "2027-01-01T00:00:00Z"); r.code != exitUsage ||
		!strings.Contains(r.errOut, "--deadline is 2027-01-01T00:00:00Z, want it after --run-at") {
		t.Errorf("got %+v, want exit status 2", r)
	}
}

func TestEnqueueKnowsTheRulesOfKeys(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	e := env{"DATABASE_URL": pool.Config().ConnString()}
	ok(t, e, "enqueue", "a", "--key", "k", "--max-active", "3", "--on-lapse", "fail-stale")
	ok(t, e, "enqueue", "b", "--key", "k", "--ordered", "--sequence", "7", "--on-death", "park", "--park-after", "90m")
	var got string
	err := pool.QueryRow(t.Context(), `
		SELECT string_agg(concat_ws(' ', kind, max_active, ordered, line_position, on_death, park_after, on_lapse), '; ' ORDER BY kind) FROM outbox.jobs`).Scan(&got)
	if want := "a 3 fail-stale; b t 7 park 01:30:00"; err != nil || got != want {
		t.Errorf("stored %q (%v), want %q", got, err, want)
	}

	full := []string{"enqueue", "c", "--key", "full", "--max-queued", "1"}
	first := ok(t, e, full...)
	if r := posthaste(t, e, "", full...); r.code == exitOK || r.out != "" || !strings.Contains(r.errOut, "1 jobs waiting") {
		t.Errorf("a full key: %+v, want a refusal", r)
	}
	if again := ok(t, e, append(full, "--when-full", "coalesce")...); again != first {
		t.Errorf("coalesced into %q, want the job that waits, %q", again, first)
	}
	if other := ok(t, e, append(full, "--when-full", "replace-oldest")...); other == first {
		t.Error("nothing was replaced")
	}
	if r := posthaste(t, e, "", "enqueue", "c", "--max-active", "2", "--when-full", "wait"); r.code != exitUsage ||
		!strings.Contains(r.errOut, "--key is empty") || !strings.Contains(r.errOut, `--when-full is "wait"`) {
		t.Errorf("got %+v, want exit status 2 and both mistakes in the words of the command line", r)
	}
}

func TestAPayloadIsReadFromWhereItIs(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "payload.json")
	if err := os.WriteFile(file, []byte(`{"from":"file"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &program{stdin: strings.NewReader(`{"from":"input"}`)}
	for argument, want := range map[string]string{"": "{}", "@" + file: `{"from":"file"}`, "-": `{"from":"input"}`, `{"as":"is"}`: `{"as":"is"}`} {
		if got, err := p.payload(argument); string(got) != want || err != nil {
			t.Errorf("payload %q is %s, %v; want %s", argument, got, err, want)
		}
	}
	if _, err := p.payload("@" + file + ".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
}
