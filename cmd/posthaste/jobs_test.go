package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/protect"
)

func listed(t *testing.T, e env, args ...string) []map[string]any {
	t.Helper()
	var rows []map[string]any
	out := ok(t, e, append(append([]string{"jobs", "list"}, args...), "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return rows
}

func TestJobsListAndShow(t *testing.T) {
	t.Parallel()
	e := env{"DATABASE_URL": pgtest.URL(t)}
	if rows := listed(t, e); len(rows) != 0 {
		t.Errorf("got %v of an empty database, want none", rows)
	}
	first := strings.TrimSpace(ok(t, e, "enqueue", "greet", `{"name": "Ada"}`, "--header", "user=7"))
	second := strings.TrimSpace(ok(t, e, "enqueue", "mail.send", "--queue", "mail"))

	rows := listed(t, e)
	if len(rows) != 2 || rows[0]["id"] != second || rows[1]["id"] != first || rows[1]["status"] != "pending" || rows[1]["finished_at"] != nil {
		t.Errorf("got %v, want both pending jobs, newest first", rows)
	}
	for name, args := range map[string][]string{
		"kind": {"--kind", "greet"}, "queue": {"--queue", "default"}, "page": {"--before", second}, "kind and status": {"--kind", "greet", "--status", "pending,dead"},
	} {
		if rows := listed(t, e, args...); len(rows) != 1 || rows[0]["id"] != first {
			t.Errorf("by %s got %v, want the first job", name, rows)
		}
	}
	if rows := listed(t, e, "--status", "dead"); len(rows) != 0 {
		t.Errorf("got %v dead, want none", rows)
	}
	if rows := listed(t, e, "--limit", "1"); len(rows) != 1 || rows[0]["id"] != second {
		t.Errorf("with a limit of 1 got %v, want the newest", rows)
	}
	if out := ok(t, e, "jobs", "list"); !strings.Contains(out, "STATUS") || !strings.Contains(out, first) {
		t.Errorf("got %q, want a table", out)
	}

	var shown struct {
		ID, Kind string
		Payload  struct{ Name string }
		Headers  map[string]string
		Attempts []any
	}
	if err := json.Unmarshal([]byte(ok(t, e, "jobs", "show", first, "-o", "json")), &shown); err != nil {
		t.Fatal(err)
	}
	if shown.ID != first || shown.Payload.Name != "Ada" || shown.Headers["user"] != "7" || shown.Attempts == nil {
		t.Errorf("got %+v, want the first job with its payload and headers", shown)
	}
	if out := ok(t, e, "jobs", "show", first); !strings.Contains(out, `{"name": "Ada"}`) {
		t.Errorf("got %q, want the payload in it", out)
	}
	if r := posthaste(t, e, "", "jobs", "show", outbox.NewID().String()); r.code != exitFailed || !strings.Contains(r.errOut, "not found") {
		t.Errorf("got %+v of a job that does not exist, want exit status 1", r)
	}
}

func TestLongListsAreReadPageByPage(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	requests := make([]outbox.Request, 450)
	for i := range requests {
		requests[i].Args = outbox.Raw{KindName: "greet", Payload: []byte(`{}`)}
	}
	if _, err := outbox.EnqueueMany(t.Context(), pool, requests); err != nil {
		t.Fatal(err)
	}
	rows := listed(t, env{"DATABASE_URL": pool.Config().ConnString()}, "--limit", "430")
	seen := map[any]bool{}
	for _, row := range rows {
		seen[row["id"]] = true
	}
	if len(rows) != 430 || len(seen) != 430 {
		t.Errorf("got %d jobs, %d of them different, want 430", len(rows), len(seen))
	}
}

// pagesOnly is a list that has nothing but pages, some of them short.
type pagesOnly struct{ asked []operator.Filter }

func (p *pagesOnly) Page(_ context.Context, f operator.Filter) (operator.JobPage, error) {
	p.asked = append(p.asked, f)
	n := byte(len(p.asked))
	if n == 4 {
		return operator.JobPage{}, nil
	}
	return operator.JobPage{Jobs: make([]operator.Job, n%2), Next: outbox.ID{n}}, nil
}

// A page in a bounded time may be short, even empty, and not be the last.
func TestShortPagesAreGoneThrough(t *testing.T) {
	t.Parallel()
	p := &pagesOnly{}
	jobs, err := collectJobs(t.Context(), p, operator.Filter{Kind: "rare"}, 50)
	if err != nil || len(jobs) != 2 || len(p.asked) != 4 || p.asked[3].Before != (outbox.ID{3}) || p.asked[3].Limit != 48 {
		t.Errorf("%d jobs, %v, after %+v", len(jobs), err, p.asked)
	}
}

func TestRetryAndDismissDeadLetters(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	e := env{"DATABASE_URL": pool.Config().ConnString()}
	var ids []string
	for range 2 {
		ids = append(ids, strings.TrimSpace(ok(t, e, "enqueue", "greet")))
	}
	// What claims and failures leave behind, without a dispatcher.
	for _, step := range []string{
		`UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = 1, lease_owner = 'w', lease_expires_at = now(), started_at = now()`,
		`UPDATE outbox.jobs SET status = 'dead', epoch = 2, lease_owner = NULL, lease_expires_at = NULL, last_error_code = 'http_500'`,
	} {
		if _, err := pool.Exec(t.Context(), step); err != nil {
			t.Fatal(err)
		}
	}
	if rows := listed(t, e, "--status", "failed", "--status", "dead"); len(rows) != 2 || rows[0]["error_code"] != "http_500" {
		t.Errorf("got %v, want two dead letters", rows)
	}
	ok(t, e, "jobs", "retry", ids[0])
	r := posthaste(t, e, "", "jobs", "dismiss", "--yes", ids[0], ids[1])
	if r.code != exitFailed || r.out != ids[1]+"\n" || !strings.Contains(r.errOut, "it is pending") {
		t.Errorf("got %+v, want the second dismissed and the first refused", r)
	}
	if rows := listed(t, e, "--status", "dismissed"); len(rows) != 1 || rows[0]["id"] != ids[1] {
		t.Errorf("got %v dismissed, want the second job", rows)
	}
}

func TestCancelAndRelease(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	e := env{"DATABASE_URL": pool.Config().ConnString()}
	held := strings.TrimSpace(ok(t, e, "enqueue", "greet", "--hold", "--deadline", "2099-01-02T00:00:00Z"))
	waiting := strings.TrimSpace(ok(t, e, "enqueue", "greet"))
	running := strings.TrimSpace(ok(t, e, "enqueue", "greet"))
	_, err := pool.Exec(t.Context(), `UPDATE outbox.jobs
		SET status = 'running', attempt = 1, epoch = 1, lease_owner = 'w', lease_expires_at = now(), started_at = now() WHERE id = $1`, running)
	if err != nil {
		t.Fatal(err)
	}
	if out := ok(t, e, "jobs", "release", held); out != held+"\n" {
		t.Errorf("release printed %q", out)
	}
	if r := posthaste(t, e, "", "jobs", "release", waiting); r.code != exitFailed || !strings.Contains(r.errOut, "it is pending") {
		t.Errorf("release of a job that is not held: %+v", r)
	}
	for range 2 { // to repeat it is harmless
		r := posthaste(t, e, "", "jobs", "cancel", "--yes", waiting, running)
		if r.code != exitOK || r.out != waiting+"\n"+running+"\n" || r.errOut != running+" is running: its handler has been asked to stop\n" {
			t.Errorf("cancel: %+v", r)
		}
	}
	rows := listed(t, e)
	if len(rows) != 3 || rows[0]["cancel_requested_at"] == nil || rows[0]["status"] != "running" || rows[1]["status"] != "cancelled" ||
		rows[2]["status"] != "pending" || !strings.HasPrefix(rows[2]["deadline"].(string), "2099-01-0") {
		t.Errorf("got %v", rows)
	}
	if out := ok(t, e, "jobs", "show", running); !strings.Contains(out, "cancel_requested_at") {
		t.Errorf("got %q, want the request in it", out)
	}
}

// Of what is sealed the size and type are printed; only machines get the bytes.
func TestASealedResultIsNotShownAsText(t *testing.T) {
	t.Parallel()
	ring, err := protect.NewKeyring(protect.Key{ID: "k", Secret: [32]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	folder, err := protect.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = folder.Close() })
	for as, p := range map[string]outbox.Protector{protect.SealedType: ring, protect.ClaimCheckType: &protect.ClaimCheck{Store: folder, Above: 1}} {
		sealed, err := protect.SealResult(t.Context(), p, outbox.RootTenant, outbox.NewID(), []byte(`{"iban":"DE02"}`))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := readableResult(sealed), fmt.Sprintf("%d bytes, sealed: %s", len(sealed), as); got != want {
			t.Errorf("people see %q, want %q", got, want)
		}
		var shown struct {
			Sealed string
			Base64 []byte
		}
		text, err := json.Marshal(resultObject(sealed))
		if err := errors.Join(err, json.Unmarshal(text, &shown)); err != nil || shown.Sealed != as || !bytes.Equal(shown.Base64, sealed) {
			t.Errorf("machines see %s, %v", text, err)
		}
	}
	plain := []byte(`{"sent":1}`)
	if text, err := json.Marshal(resultObject(plain)); err != nil || !bytes.Equal(text, plain) || readableResult(plain) != string(plain) {
		t.Errorf("a plain result is shown as %s and %s, %v", text, readableResult(plain), err)
	}
}

// SQL stores times that JSON does not have. A row with one is shown, and so are the
// others of its list.
func TestAFarTimeBlindsNoList(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := env{"DATABASE_URL": url}
	first := strings.TrimSpace(ok(t, e, "enqueue", "greet"))
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), farTimes); err != nil {
		t.Fatal(err)
	}
	rows := listed(t, e)
	if len(rows) != 3 || rows[1]["id"] != first {
		t.Fatalf("got %v, want all three jobs", rows)
	}
	for i, want := range map[int]string{0: "9999-12-31T23:59:59.999999Z", 2: "0000-01-01T00:00:00Z"} {
		if rows[i]["run_at"] != want || rows[i]["deadline"] != "9999-12-31T23:59:59.999999Z" || rows[i]["created_at"] != want {
			t.Errorf("got %v, want its times at %s", rows[i], want)
		}
		ok(t, e, "jobs", "show", rows[i]["id"].(string), "-o", "json")
	}
	for _, format := range []string{"table", "csv", "json"} {
		if out := ok(t, e, "schedules", "list", "-o", format); !strings.Contains(out, "far") {
			t.Errorf("schedules as %s: %s", format, out)
		}
		ok(t, e, "jobs", "list", "-o", format)
		ok(t, e, "stats", "-o", format)
		ok(t, e, "queues", "list", "-o", format)
	}
}

// farTimes are rows as they were stored before a constraint refused them.
const farTimes = `
	ALTER TABLE outbox.jobs DROP CONSTRAINT jobs_values;
	ALTER TABLE outbox.schedules DROP CONSTRAINT schedules_next_at_is_a_time;
	INSERT INTO outbox.jobs (id, kind, payload, run_at, created_at, deadline)
	VALUES ('00000000-0000-0000-0000-00000000000a', 'greet', '{}', '4000-01-01 BC', '4000-01-01 BC', '290000-01-01'),
	       ('ffffffff-0000-0000-0000-00000000000b', 'greet', '{}', '20000-01-01', '20000-01-01', '20000-01-02');
	INSERT INTO outbox.schedules (name, every, kind, payload, next_at, last_at)
	VALUES ('far', '1 h', 'greet', '{}', '20000-01-01', '4000-01-01 BC');`
