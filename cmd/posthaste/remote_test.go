package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/internal/apitest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ways returns two environments that lead to one database: directly, and through the API.
func ways(t *testing.T) (db *pgxpool.Pool, direct, through env) {
	t.Helper()
	return waysWithin(t, 0)
}

// waysWithin has the API spend so long on a request.
func waysWithin(t *testing.T, timeout time.Duration) (db *pgxpool.Pool, direct, through env) {
	t.Helper()
	db = pgtest.New(t)
	handler, err := api.New(api.Config{Pool: db, Authenticator: access.NewTokens(db, access.TokensConfig{}), Producer: outbox.NewProducer(db, outbox.NotifyOff), Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(apitest.Checked(t, handler))
	t.Cleanup(server.Close)
	direct = env{"DATABASE_URL": db.Config().ConnString()}
	return db, direct, env{"OUTBOX_API_URL": server.URL, "OUTBOX_API_TOKEN": newToken(t, direct)}
}

func newToken(t *testing.T, direct env) string {
	t.Helper()
	return strings.TrimSpace(ok(t, direct, "tokens", "create", "ops", "--all-tenants", "-c", strings.Join(capabilityNames(), ",")))
}

// bury makes dead letters of all jobs of a kind.
func bury(t *testing.T, db *pgxpool.Pool, kind string) {
	t.Helper()
	sqlExec(t, db, claimSQL, kind)
	sqlExec(t, db, `UPDATE outbox.jobs SET status = 'dead', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL, last_error_code = 'http_500',
		last_error_message = 'no', error_fingerprint = 'f1', failed_at = now() WHERE kind = $1`, kind)
}

// values decodes what a command printed.
func values(t *testing.T, out string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return v
}

// dropUnknown takes what the API does not tell from two listings, where it says so by null.
func dropUnknown(want, got any) {
	wanted, _ := want.([]any)
	gotten, _ := got.([]any)
	for i := range min(len(wanted), len(gotten)) {
		wanted, gotten := wanted[i].(map[string]any), gotten[i].(map[string]any)
		for _, name := range []string{"content_type", "generation"} {
			if v, there := gotten[name]; there && v == nil {
				delete(wanted, name)
				delete(gotten, name)
			}
		}
	}
}

func TestListingsAreTheSameThroughTheAPI(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	ok(t, direct, "enqueue", "greet", `{"name": "Ada"}`, "--header", "user=7", "--deadline", "2099-01-02T00:00:00Z", "--timeout", "3s", "--backoff", "1s,1m30s")
	ok(t, direct, "enqueue", "raw", "--queue", "mail", "--hold")
	id := strings.TrimSpace(ok(t, direct, "enqueue", "doomed"))
	bury(t, db, "doomed")
	sqlExec(t, db, `UPDATE outbox.jobs SET deadline = '2099-01-02Z', parent_id = id WHERE kind = 'doomed'`)
	ok(t, direct, "enqueue", "line", "--key", "k", "--ordered", "--queue", "mail")
	sqlExec(t, db, `INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing, seen_at)
		VALUES ('shop-1', 'v1.2.3', '{default,mail}', '{64,3}', '{greet}', true, now()), ('shop-2', 'v1', '{mail}', '{3}', '{}', false, now() - interval '5 minutes')`)
	sqlExec(t, db, `INSERT INTO outbox.schedules (tenant_id, name, expression, time_zone, missed, missed_limit, streamed, kind, queue, payload, content_type, next_at)
		VALUES ('00000000-0000-0000-0000-000000000001', 'nightly', '0 3 * * *', 'UTC', 'once', 1, true, 'greet', 'mail', '{}', 'application/json', now() + interval '1 hour')`)
	sqlExec(t, db, `INSERT INTO outbox.sinks (sink, top, owner, lease_expires_at, published, moved_at, away_since, away_code, away_message, holes)
		VALUES ('orders', 5, 'host-1', now() + interval '5 minutes', 7, now(), now(), 'relay_full', 'no space', '{[2,4)}'), ('lake', 0, NULL, NULL, 0, NULL, NULL, NULL, NULL, '{}')`)
	ok(t, direct, "publish", "order.paid", "{}")
	ok(t, direct, "relay", "pause", "lake")
	ok(t, direct, "relay", "replay", "orders", "--since", "1h", "--rate", "5", "--key", "k", "--dry-run")
	ok(t, direct, "relay", "replay", "orders", "--since", "1h", "--rate", "5", "--topic", "order.*", "--again", "--detach", "--reason", "lost")
	ok(t, direct, "queues", "pause", "mail")
	ok(t, direct, "queues", "limit", "mail", "--max-running", "7", "--rate", "10/90s")
	for _, line := range []string{
		"jobs list", "jobs list --kind greet --status pending,dead", "jobs list --limit 2", "jobs list --before " + id, "jobs show " + id,
		"dlq list", "dlq list --error-code http_500 --status dead", "dlq groups", "queues list", "workers list", "kinds list", "keys show k --queue mail", "keys list",
		"schedules list", "relay list", "relay replays orders", "relay replay orders --since 2020-01-01T00:00:00Z --until 2099-01-01T00:00:00Z --topic order.* --rate 2/s --dry-run", "audit", "audit --act queue.pause",
	} {
		if strings.HasSuffix(line, "--dry-run") {
			if want, got := ok(t, direct, strings.Fields(line)...), ok(t, through, strings.Fields(line)...); want != got {
				t.Errorf("%s: directly %q, through the API %q", line, want, got)
			}
			continue
		}
		args := append(strings.Fields(line), "-o", "json")
		want, got := values(t, ok(t, direct, args...)), values(t, ok(t, through, args...))
		dropUnknown(want, got)
		if letters, _ := want.([]any); line == "dlq list" && (letters[0].(map[string]any)["deadline"] != "2099-01-02T00:00:00Z" || letters[0].(map[string]any)["parent"] != id) {
			t.Errorf("a dead letter is listed as %v, without its deadline and its parent", letters[0])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: directly (-) and through the API (+):\n%s", line, diff)
		}
	}
	if out := ok(t, through, "stats", "-o", "csv"); !strings.Contains(out, "open,4\n") || !strings.Contains(out, "dead_letters,1\n") || !strings.Contains(out, "oldest_due_age_seconds") {
		t.Errorf("stats: got %s", out)
	}
	// The API has counted before this: what it shows is of then, not of now.
	var counted struct{ AsOf time.Time }
	askAPI(t, through, "/overview", &counted)
	for _, row := range rows(t, through, "stats") {
		if row["name"] == "as_of" && row["value"] != counted.AsOf.Format(time.RFC3339Nano) {
			t.Errorf("stats are as of %v, the API counted at %s", row["value"], counted.AsOf)
		}
	}
	// What a token may not see is null, not a number that there might be.
	reader := env{"OUTBOX_API_URL": through["OUTBOX_API_URL"], "OUTBOX_API_TOKEN": strings.TrimSpace(ok(t, direct, "tokens", "create", "reader", "-c", "jobs.read"))}
	seen := rows(t, reader, "jobs", "list", "--kind", "greet")[0]
	for _, name := range []string{"attempt", "max_attempts", "worker", "lost_leases", "epoch", "tenant", "timeout", "backoff", "error_message", "content_type", "payload_bytes"} {
		if v, there := seen[name]; !there || v != nil {
			t.Errorf("a reader is told %s: %v, want null", name, v)
		}
	}
	out := ok(t, through, "top", "-n", "2", "--interval", "100ms")
	if strings.Count(out, "oldest due  ") != 2 || strings.Contains(out, "not known") || strings.Count(out, "1 present") != 2 || strings.Count(out, " (when the API counted)") != 2 {
		t.Errorf("top: got %s", out)
	}
	through["OUTBOX_API_TOKEN"] = strings.TrimSpace(ok(t, direct, "tokens", "create", "one", "-c", "admin.read"))
	if out := ok(t, through, "top"); !strings.Contains(out, "dispatchers not known (only tokens of all tenants may see it)") || !strings.Contains(out, "open        4:") || strings.Count(out, "not known") != 3 {
		t.Errorf("top of one tenant: got %s", out)
	}
	if out := ok(t, through, "stats"); strings.Contains(out, "oldest") || strings.Contains(out, "recent") {
		t.Errorf("stats of one tenant: got %s", out)
	}
	if r := posthaste(t, through, "", "kinds"); r.code != exitFailed || !strings.Contains(r.errOut, "forbidden") {
		t.Errorf("kinds for one tenant: %+v", r)
	}
	through["OUTBOX_API_TOKEN"] = strings.TrimSpace(ok(t, direct, "tokens", "create", "none", "-c", "jobs.read"))
	if r := posthaste(t, through, "", "top"); r.code != exitFailed || !strings.Contains(r.errOut, "forbidden") {
		t.Errorf("top without admin.read: %+v", r)
	}
}

// askAPI decodes the answer to a GET of the API.
func askAPI(t *testing.T, through env, path string, to any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, through["OUTBOX_API_URL"]+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+through["OUTBOX_API_TOKEN"])
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if err := json.NewDecoder(answer.Body).Decode(to); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", path, answer.Status, err)
	}
}

func TestActsThroughTheAPI(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	waiting := strings.TrimSpace(ok(t, direct, "enqueue", "waiting"))
	running := strings.TrimSpace(ok(t, direct, "enqueue", "running"))
	held := strings.TrimSpace(ok(t, direct, "enqueue", "held", "--hold"))
	sqlExec(t, db, claimSQL, "running")
	for _, way := range []env{direct, through} {
		for act, want := range map[string]string{"cancel": "would cancel " + waiting + "\nwould cancel " + held + "\n", "release": "would release " + held + "\n", "retry": "would retry " + waiting + "\n", "dismiss": ""} {
			r := posthaste(t, way, "", "jobs", act, "--dry-run", waiting, held)
			if r.out != want || (r.code == exitOK) != (act == "cancel") || act != "cancel" && !strings.Contains(r.errOut, act+" job ") {
				t.Errorf("%s --dry-run: %+v, want %q", act, r, want)
			}
		}
	}
	if rows := listed(t, direct, "--status", "pending,created"); len(rows) != 2 {
		t.Errorf("a dry run has left %v, want both as they were", rows)
	}
	r := posthaste(t, through, "", "jobs", "cancel", "--yes", waiting, running)
	if r.code != exitOK || r.out != waiting+"\n"+running+"\n" || r.errOut != running+" is running: its handler has been asked to stop\n" {
		t.Errorf("cancel: %+v", r)
	}
	ok(t, through, "jobs", "release", held)
	r = posthaste(t, through, "", "jobs", "release", held)
	if r.code != exitFailed || !strings.Contains(r.errOut, "The job is pending") || !strings.Contains(r.errOut, "job_status_conflict, request ") {
		t.Errorf("a second release: %+v", r)
	}
	ok(t, through, "jobs", "retry", held)
	ok(t, through, "queues", "pause", "mail")
	ok(t, through, "queues", "resume", "mail")
	for _, step := range []struct{ flags, want string }{
		{"--max-running 5 --rate 100/1m", "mail: 5 running at once, 100 starts in 1m\n"},
		{"--no-rate", "mail: 5 running at once\n"},
		{"--no-max-running --rate 3/100ms", "mail: 3 starts in 100ms\n"},
	} {
		if got := ok(t, through, append([]string{"queues", "limit", "mail"}, strings.Fields(step.flags)...)...); got != step.want {
			t.Errorf("limit %s printed %q, want %q", step.flags, got, step.want)
		}
	}
	if r := posthaste(t, through, "", "jobs", "show", outbox.NewID().String()); r.code != exitFailed || !strings.Contains(r.errOut, "job_not_found") {
		t.Errorf("show of a job that does not exist: %+v", r)
	}
	sqlExec(t, db, `INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	event := strings.Fields(ok(t, direct, "publish", "order.paid", "{}"))[0]
	for _, act := range []struct{ verb, argument, want string }{
		{"pause", "", "paused: orders\n"}, {"resume", "", "resumed: orders\n"}, {"skip", event, "skipped: " + event + " for orders\n"},
	} {
		if got := ok(t, through, strings.Fields("relay "+act.verb+" orders "+act.argument+" --reason mended")...); got != act.want {
			t.Errorf("relay %s printed %q, want %q", act.verb, got, act.want)
		}
	}
	if r := posthaste(t, through, "", "relay", "skip", "orders", event); r.code != exitFailed || !strings.Contains(r.errOut, "event_not_waiting") {
		t.Errorf("a second skip: %+v", r)
	}
	replay := strings.TrimSpace(ok(t, through, "relay", "replay", "orders", "--since", "1h", "--detach", "--reason", "mended"))
	if got := ok(t, through, "relay", "replays", "stop", "orders", replay, "--reason", "mended"); got != "stopped: "+replay+"\n" {
		t.Errorf("replays stop printed %q", got)
	}
	if r := posthaste(t, through, "", "relay", "replay", "none", "--since", "1h"); r.code != exitFailed || !strings.Contains(r.errOut, "sink_not_found") {
		t.Errorf("replay to no sink: %+v", r)
	}
	sqlExec(t, db, `INSERT INTO outbox.schedules (name, every, kind, payload, next_at) VALUES ('nightly', '1 hour', 'mail', '{}', now() + interval '1 hour')`)
	if out := ok(t, through, "schedules", "delete", "nightly"); out != "deleted: nightly\n" || len(rows(t, direct, "schedules", "list")) != 0 {
		t.Errorf("schedules delete printed %q", out)
	}
	if r := posthaste(t, through, "", "schedules", "delete", "nightly"); r.code != exitFailed || !strings.Contains(r.errOut, "schedule_not_found") {
		t.Errorf("schedules delete of none: %+v", r)
	}
	var names []string
	for _, row := range values(t, ok(t, direct, "audit", "-o", "json")).([]any) {
		if row := row.(map[string]any); row["actor"] == "ops" && row["request"] != "" {
			names = append(names, row["act"].(string))
			if row["target"] == "orders" && row["reason"] != "mended" {
				t.Errorf("%s has the reason %v", row["act"], row["reason"])
			}
		}
	}
	if got := strings.Join(names, " "); got != "schedule.delete sink.stop_replay sink.replay sink.skip sink.resume sink.pause queue.limit queue.limit queue.limit queue.resume queue.pause job.retry job.release job.cancel job.cancel" {
		t.Errorf("the audit has %s", got)
	}
}

func TestDeadLettersThroughTheAPI(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	requests := make([]outbox.Request, 1200) // more than one request acts on
	for i := range requests {
		requests[i].Args = outbox.Raw{KindName: "many", Payload: []byte(`{}`)}
	}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	one := strings.TrimSpace(ok(t, direct, "enqueue", "one"))
	edited := strings.TrimSpace(ok(t, direct, "enqueue", "edited"))
	for _, kind := range []string{"many", "one", "edited"} {
		bury(t, db, kind)
	}
	if out := ok(t, through, "dlq", "replay", "--all", "--dry-run"); out != "would replay 1202\n" {
		t.Errorf("dry run: %s", out)
	}
	if out := ok(t, through, "dlq", "replay", "--kind", "many", "--yes", "--reason", "mended"); out != "replay: 1200 done, 0 passed over\n" {
		t.Errorf("replay: %s", out)
	}
	if out := ok(t, through, "dlq", "replay", one); out != one+"\n" {
		t.Errorf("replay of one: %s", out)
	}
	ok(t, through, "dlq", "replay", edited, "--payload", `{"to": "Ada"}`)
	if out := ok(t, direct, "jobs", "show", edited); !strings.Contains(out, `{"to": "Ada"}`) { // byte for byte
		t.Errorf("got %s, want the new payload", out)
	}
	bury(t, db, "one")
	if out := ok(t, through, "dlq", "replay", one, "--reason", "again"); out != one+"\n" {
		t.Errorf("replay of one with a reason: %s", out)
	}
	bury(t, db, "one")
	var reasons []any
	for _, act := range rows(t, direct, "audit", "--job", one) {
		reasons = append(reasons, act["reason"])
	}
	if !slices.Contains(reasons, any("again")) {
		t.Errorf("reasons = %v, want the one that was given", reasons)
	}
	if out := ok(t, through, "dlq", "dismiss", "--all", "--yes"); out != "dismiss: 1 done, 0 passed over\n" {
		t.Errorf("dismiss: %s", out)
	}
}

// The same row is stored either way, but for the caller that the API notes.
func TestJobsAreEnqueuedThroughTheAPI(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	through["OUTBOX_API_TOKEN"] = strings.TrimSpace(ok(t, direct, "tokens", "create", "shop", "-c", "jobs.enqueue"))
	stored := func(way env, kind string, args ...string) (row string) {
		t.Helper()
		id := strings.TrimSpace(ok(t, way, append([]string{"enqueue", kind}, args...)...))
		if err := db.QueryRow(t.Context(), `
			SELECT to_jsonb(jobs) - '{id,kind,created_at,payload,headers,line_position}'::text[] || jsonb_build_object('payload', convert_from(payload, 'UTF8')::jsonb, 'headers', coalesce(headers, '{}') - '{caller-service,caller-user,correlation-id}'::text[])
			FROM outbox.jobs WHERE id = $1 AND kind = $2`, id, kind).Scan(&row); err != nil {
			t.Fatal(err)
		}
		return row
	}
	tried := map[string]bool{
		"database-url": true, "api": true, "token": true, "notify": true, // the ways
		// These have tests of their own below.
		"idempotency-key": true, "delay": true, "max-queued": true, "when-full": true, "content-type": true, "tenant": true,
	}
	for kind, args := range map[string][]string{
		"options": {
			`{"name": "Ada", "n": 12345678901234567890}`, "--queue", "mail", "--priority", "-3", "--run-at", "2099-01-01T00:00:00Z", "--max-attempts", "7",
			"--timeout", "90s", "--backoff", "5s,1m30s", "--header", "user=a,b=c", "--header", "x=y", "--deadline", "2099-01-02T00:00:00Z", "--hold", "--key", "k", "--max-active", "3", "--on-lapse", "fail-stale", "--streamed",
		},
		"line": {"--key", "l", "--ordered", "--sequence", "7", "--on-death", "park", "--park-after", "90m", "--run-at", "2099-01-01T00:00:00Z"},
	} {
		if diff := cmp.Diff(stored(direct, "d-"+kind, args...), stored(through, "a-"+kind, args...)); diff != "" {
			t.Errorf("%s: directly (-) and through the API (+):\n%s", kind, diff)
		}
		for _, arg := range args {
			tried[strings.TrimPrefix(arg, "--")] = true
		}
	}
	for _, flag := range (&program{}).enqueueCommand().Flags {
		if name := flag.Names()[0]; !tried[name] {
			t.Errorf("--%s is not tried: it has to reach the job through the API, too", name)
		}
	}
	once := []string{"enqueue", "once", "--idempotency-key", "k1", "--delay", "1h"}
	if first, again := ok(t, through, once...), ok(t, through, once...); first != again {
		t.Errorf("a repeat printed %q, want %q", again, first)
	}
	if piped := posthaste(t, through, `{"from": "stdin"}`, "enqueue", "piped", "-"); piped.code != exitOK {
		t.Errorf("from standard input: %+v", piped)
	}
	full := []string{"enqueue", "full", "--key", "full", "--max-queued", "1"}
	waits := ok(t, through, full...)
	if same := ok(t, through, append(full, "--when-full", "coalesce")...); same != waits {
		t.Errorf("coalesced printed %q, want the one that waits, %q", same, waits)
	}
	if r := posthaste(t, through, "", full...); r.code != exitFailed || r.out != "" || !strings.Contains(r.errOut, "key_full") {
		t.Errorf("a full key: %+v", r)
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"the API takes JSON", []string{"x", "--content-type", "text/plain"}},
		{"the token's tenant", []string{"--tenant", outbox.RootTenant.String()}},
		{"PAYLOAD is not valid JSON", []string{"{"}},
		{"invalid_input", []string{"--queue", "a b"}},
	} {
		if r := posthaste(t, through, "", append([]string{"enqueue", "greet"}, c.args...)...); r.code != exitUsage || !strings.Contains(r.errOut, c.want) {
			t.Errorf("%v: %+v, want exit status 2 and %q", c.args, r, c.want)
		}
	}
}

func TestWhatTheAPIHasNoPartInSaysSo(t *testing.T) {
	t.Parallel()
	through := env{"OUTBOX_API_URL": "http://127.0.0.1:1", "OUTBOX_API_TOKEN": "ph_1_hush"}
	for _, line := range []string{
		"serve", "migrate up", "tokens list", "audit verify", "migrate up --api http://127.0.0.1:1", "migrate up --token ph_1_hush",
	} {
		if r := posthaste(t, through, "", strings.Fields(line)...); r.code != exitUsage || !strings.Contains(r.errOut, notThroughAPI) || strings.Contains(r.errOut, "hush") {
			t.Errorf("%s: %+v", line, r)
		}
	}
	for line, want := range map[string]string{
		"jobs list --api ftp://x":                              "--api is not acceptable: want something like https://",
		"jobs list --api http://u:hush@x":                      "--api is not acceptable",
		"jobs list --api http://x --database-url postgres://x": "want one of them",
		"jobs list --api http://127.0.0.1:1 --token \x01hush":  "--token is not acceptable",
	} {
		if r := posthaste(t, nil, "", strings.Split(line, " ")...); r.code != exitUsage || !strings.Contains(r.errOut, want) || strings.Contains(r.errOut, "hush") {
			t.Errorf("%s: %+v, want %q", line, r, want)
		}
	}
}

// The real thing: a process that serves the API, a token of its database, and commands
// that know nothing else.
func TestCommandsThroughAServedAPI(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	direct := env{"DATABASE_URL": url}
	cmd, logs := serving(t, "--database-url", url, "--role", "api", "--api-addr", "127.0.0.1:0")
	addr := ""
	for line := range strings.Lines(awaitText(t, "API listens", logs.String)) {
		var entry struct{ Msg, Addr string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "API listens" {
			addr = entry.Addr
		}
	}
	id := strings.TrimSpace(ok(t, direct, "enqueue", "greet"))
	token := newToken(t, direct)
	if out := ok(t, nil, "jobs", "list", "--api", "http://"+addr, "--token", token); !strings.Contains(out, id) {
		t.Errorf("got %s, want the job", out)
	}
	through := env{"OUTBOX_API_URL": "http://" + addr, "OUTBOX_API_TOKEN": token}
	ok(t, through, "jobs", "cancel", id)
	if rows := listed(t, direct, "--status", "cancelled"); len(rows) != 1 {
		t.Errorf("got %v, want the job cancelled", rows)
	}
	through["OUTBOX_API_TOKEN"] = "ph_nobody_hush"
	if r := posthaste(t, through, "", "jobs", "list"); r.code != exitFailed || !strings.Contains(r.errOut, "unauthenticated") || strings.Contains(r.errOut, "hush") {
		t.Errorf("with a token that nobody knows: %+v", r)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("serve ended with %v", err)
	}
	if r := posthaste(t, through, "", "queues", "pause", "mail"); r.code != exitFailed || strings.Contains(r.errOut, "hush") {
		t.Errorf("without a server: %+v", r)
	}
}

// Whatever somebody does to a queue, a schedule or a key can be explained in the audit.
func TestActsGiveTheirReason(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	for _, way := range []env{direct, through} {
		ok(t, way, "enqueue", "mail", "--key", "k", "--ordered")
		bury(t, db, "mail")
		lines := []string{
			"queues pause mail", "queues resume mail", "queues limit mail --max-running 2", "queues limit mail --no-max-running", "keys unblock k --yes",
			"schedules create s --kind report --every 1h", "schedules change s --every 2h", "schedules pause s", "schedules resume s", "schedules run s", "schedules delete s",
		}
		for _, line := range lines {
			ok(t, way, append(strings.Fields(line), "--reason", "the partner asked")...)
		}
		var unexplained []string
		var acts int
		err := db.QueryRow(t.Context(), `SELECT count(*), array_agg(act) FILTER (WHERE reason IS DISTINCT FROM 'the partner asked')
			FROM outbox.audit WHERE act <> 'token.create'`).Scan(&acts, &unexplained)
		if err != nil || acts < len(lines) || len(unexplained) > 0 {
			t.Errorf("%d acts are in the audit, %v of them without the reason, %v", acts, unexplained, err)
		}
	}
}

// A filter without a limit asks for a page of the usual size.
func TestAPageThroughTheAPIHasALimit(t *testing.T) {
	t.Parallel()
	db, _, through := ways(t)
	stored(t, db, 1, "mail", outbox.Options{})
	to, err := client.New(through["OUTBOX_API_URL"], client.Config{Token: through["OUTBOX_API_TOKEN"]})
	if err != nil {
		t.Fatal(err)
	}
	r := &remote{api: to, cursors: map[string]string{}}
	if page, err := r.Page(t.Context(), operator.Filter{}); err != nil || len(page.Jobs) != 1 || !page.Next.IsZero() {
		t.Errorf("the page is %+v, %v; want the job, and no next page", page, err)
	}
}
