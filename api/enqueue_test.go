package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestAJobIsStoredAsItWasAskedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var a api.Accepted
	answer := r.do("POST", "/jobs", `{"kind":"mail","payload":{"b": 1.0,  "a":"ü"},"queue":"post","priority":3,"delaySeconds":3600,"maxAttempts":4,
		"timeoutSeconds":1.5,"backoffSeconds":[0,1.5,3600],"key":"k","headers":{"user":"7"}}`,
		"Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Tracestate", "x=1").want(202, &a)
	if got, want := answer.Header().Get("Location"), "jobs/"+a.ID; got != want || a.Status != "pending" {
		t.Errorf("Location = %q, status %q, want %q, pending", got, a.Status, want)
	}
	id, err := outbox.ParseID(a.ID)
	if err != nil {
		t.Fatal(err)
	}
	job, err := operator.New(r.db).Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var headers map[string]string
	if err := json.Unmarshal(job.Headers, &headers); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"user": "7", "caller-service": "client-a", "correlation-id": "test", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "x=1"}
	if diff := cmp.Diff(want, headers); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if job.Tenant != tenantA || job.Kind != "mail" || job.Queue != "post" || job.Priority != 3 || job.MaxAttempts != 4 || job.Timeout != 1500*time.Millisecond || !slices.Equal(job.Backoff, outbox.Backoff{0, 1500 * time.Millisecond, time.Hour}) ||
		job.Key != "k" || job.RunAt.Sub(job.CreatedAt) != time.Hour || string(job.Payload) != `{"b": 1.0,  "a":"ü"}` {
		t.Errorf("stored job = %+v, payload %s", job, job.Payload)
	}
}

func TestARepeatAnswersExactlyLikeTheFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.do("POST", "/jobs", `{"kind":"mail"}`, "Idempotency-Key", "k1").want(202, nil)
	for name, repeat := range map[string]response{
		"by header": r.do("POST", "/jobs", `{"kind":"mail","payload":2}`, "Idempotency-Key", "k1"),
		"by body":   r.post("/jobs", `{"kind":"mail","idempotencyKey":"k1"}`),
		"by both":   r.do("POST", "/jobs", `{"kind":"mail","idempotencyKey":"k1"}`, "Idempotency-Key", "k1"),
	} {
		if repeat.Code != 202 || repeat.Body.String() != first.Body.String() || !cmp.Equal(repeat.Header(), first.Header()) {
			t.Errorf("a repeat %s = %d %v %s, want %v %s", name, repeat.Code, repeat.Header(), repeat.Body, first.Header(), first.Body)
		}
	}
	var a, b api.Accepted
	first.want(202, &a)
	r.as("client-b").post("/jobs", `{"kind":"mail","idempotencyKey":"k1"}`).want(202, &b)
	if a.ID == b.ID {
		t.Error("another tenant's key was taken for the same")
	}
	p := r.do("POST", "/jobs", `{"kind":"mail","idempotencyKey":"k2"}`, "Idempotency-Key", "k1").problem(422, "invalid_input")
	if len(p.Errors) != 1 || p.Errors[0].Header != "Idempotency-Key" {
		t.Errorf("errors = %+v, want one of the header", p.Errors)
	}
}

// Thirty-two clients at once: some with the same idempotency keys, some with jobs that
// only the database refuses. Each gets its own answer.
func TestConcurrentRequestsShareATransactionButNotAFault(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.MaxInFlight = 500 }) // one caller has three quarters of it
	if _, err := r.db.Exec(t.Context(), `ALTER TABLE outbox.jobs ADD CONSTRAINT no_bad CHECK (kind <> 'bad')`); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	ids := map[string]int{}
	var wg sync.WaitGroup
	for i := range 320 {
		wg.Go(func() {
			switch {
			case i%20 == 7:
				r.post("/jobs", `{"kind":"bad"}`).problem(500, "internal_error")
			default:
				key := ""
				if i%2 == 0 {
					key = fmt.Sprintf(`,"idempotencyKey":"k%d"`, i%8)
				}
				id := r.enqueue(`{"kind":"mail"` + key + `}`)
				mu.Lock()
				defer mu.Unlock()
				ids[id]++
			}
		})
	}
	wg.Wait()
	var rows int
	if err := r.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs`).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	if want := 320 - 160 - 16 + 4; rows != want || len(ids) != want {
		t.Errorf("rows = %d, ids = %d, want %d", rows, len(ids), want)
	}
}

// A transaction that somebody left open uses the key: the request that needs it is
// refused soon, and the others are stored.
func TestABusyIdempotencyKeyDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := outbox.Enqueue(t.Context(), tx, outbox.Raw{KindName: "mail"}, outbox.Options{}); err == nil {
		t.Fatal("an empty payload is JSON?")
	}
	if _, err := outbox.Enqueue(t.Context(), tx, outbox.Raw{KindName: "mail", Payload: []byte("1")}, outbox.Options{Tenant: tenantA, IdempotencyKey: "busy"}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if i%10 == 0 {
				answer := r.post("/jobs", `{"kind":"mail","idempotencyKey":"busy"}`)
				answer.problem(409, "idempotency_key_busy")
				if answer.Header().Get("Retry-After") != "1" {
					t.Errorf("headers = %v, want Retry-After", answer.Header())
				}
				return
			}
			r.enqueue(`{"kind":"mail","idempotencyKey":"free` + fmt.Sprint(i) + `"}`)
		})
	}
	wg.Wait()
}

// Clients of one tenant who ask again and again for keys that transactions are using hold
// up no other tenant, neither his requests nor his jobs with keys. The answer to a batch
// of theirs says what it waits for, as that to a single request does.
func TestBusyIdempotencyKeysHoldUpNoOtherTenant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	const clients = 20
	for i := range clients {
		if _, err := outbox.Enqueue(t.Context(), tx, outbox.Raw{KindName: "mail", Payload: []byte("1")}, outbox.Options{Tenant: tenantA, IdempotencyKey: fmt.Sprint("busy", i)}); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	var refused atomic.Int64
	var busy sync.WaitGroup
	for i := range clients {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if res := r.post("/jobs", fmt.Sprintf(`{"kind":"mail","idempotencyKey":"busy%d"}`, i)); res.Code != 409 && res.Code != 429 {
						t.Errorf("for a busy key: %d %s", res.Code, res.Body)
					}
					refused.Add(1)
				}
			}
		})
	}
	for refused.Load() < 2*clients { // they are at it
		time.Sleep(5 * time.Millisecond)
	}
	other := r.as("client-b")
	for i := range 5 {
		for name, ask := range map[string]func() response{
			"a job": func() response { return other.post("/jobs", `{"kind":"mail"}`) },
			"a job with a key": func() response {
				return other.post("/jobs", fmt.Sprintf(`{"kind":"mail","idempotencyKey":"free%d"}`, i))
			},
			"a list": func() response { return other.get("/jobs") },
		} {
			asked := time.Now()
			res := ask()
			if took := time.Since(asked); res.Code/100 != 2 || took > 30*time.Second {
				t.Errorf("another tenant's request, %s: %d after %s", name, res.Code, took)
			}
		}
	}
	close(stop)
	busy.Wait()
	res := r.postBatch(`{"kind":"mail"}` + "\n" + `{"kind":"mail","idempotencyKey":"busy1"}`)
	if res.problem(409, "idempotency_key_busy"); res.Header().Get("Retry-After") != "1" {
		t.Errorf("a batch with a busy key: %v, want Retry-After", res.Header())
	}
}

// A lock on the table of jobs, as CREATE INDEX takes, is not a busy idempotency key to those who have none. They wait
// once for it, all together, and the answer is that nothing was stored.
func TestALockOnTheJobsIsNoBusyKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r := &rig{t: t, db: db}
	r.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET lock_timeout = 2000', current_database()); END $$`)
	r = rigOn(t, db)
	lockJobs(t, db)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { r.post("/jobs", `{"kind":"mail"}`).problem(409, "row_locked") })
	}
	wg.Go(func() { r.postBatch(`{"kind":"mail"}`).problem(409, "row_locked") })
	wg.Wait()
}

// lockJobs keeps everybody from storing jobs until the test ends.
func lockJobs(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	if _, err := tx.Exec(t.Context(), `LOCK TABLE outbox.jobs IN SHARE MODE`); err != nil {
		t.Fatal(err)
	}
}

// One request with a key does not make each of the others of its group wait for a lock on the table alone.
func TestALockOnTheJobsDelaysAMixedGroupOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config := db.Config()
	config.ConnConfig.RuntimeParams["lock_timeout"] = "2000"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	lockJobs(t, db)
	var requests []outbox.Request
	var want []string
	for i := range 20 {
		requests = append(requests, outbox.Request{Args: outbox.Raw{KindName: "mail", Payload: []byte("1")}})
		want = append(want, "row_locked none")
		if i == 10 {
			requests[i].Options.IdempotencyKey, want[i] = "k", "idempotency_key_busy none"
		}
	}
	began := time.Now()
	got := api.StoreGroup(t.Context(), outbox.NewProducer(pool, outbox.NotifyOff), requests...)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("answers, want -, got +:", diff)
	}
	if took := time.Since(began); took > 15*time.Second { // nineteen times two seconds, if each waits
		t.Errorf("the answers took %s", took)
	}
}

// A group's time ends while it stores its requests one by one: the outcome of the one at which it was is unknown, and
// those after it have certainly not been stored.
func TestWhatAGroupHasNoTimeForIsNotStored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r := &rig{t: t, db: db}
	r.exec(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.kind = 'bad' THEN RAISE EXCEPTION 'bad'; END IF;
		IF NEW.kind = 'slow' THEN PERFORM pg_sleep(60); END IF;
		RETURN NEW; END $$`)
	r.exec(`CREATE TRIGGER slow BEFORE INSERT ON outbox.jobs FOR EACH ROW EXECUTE FUNCTION slow()`)
	var requests []outbox.Request
	for _, kind := range []string{"bad", "good", "slow", "good", "good"} {
		requests = append(requests, outbox.Request{Args: outbox.Raw{KindName: kind, Payload: []byte("1")}})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	got := api.StoreGroup(ctx, outbox.NewProducer(db, outbox.NotifyOff), requests...)
	want := []string{"internal_error unknown", "", "timeout unknown", "unavailable none", "unavailable none"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("answers, want -, got +:", diff)
	}
}

func TestABatchIsStoredWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var out struct{ Jobs []api.Accepted }
	r.postBatch(strings.Repeat("{\"kind\":\"mail\"}\n\n", 1000)).want(202, &out)
	if len(out.Jobs) != 1000 {
		t.Errorf("jobs = %d, want 1000", len(out.Jobs))
	}
	for name, tt := range map[string]struct {
		lines   string
		code    int
		line    int
		pointer string
	}{
		"not JSON":             {"{\"kind\":\"mail\"}\n{\"kind\":", 400, 2, "#/kind"},
		"a duplicate":          {"{\"kind\":\"mail\"}\r\n\r\n{\"kind\":\"a\",\"kind\":\"b\"}", 400, 3, "#/kind"},
		"a wrong type":         {`{"kind":7}`, 422, 1, "#/kind"},
		"a queue of the relay": {"{\"kind\":\"mail\"}\n{\"kind\":\"mail\",\"queue\":\"relay:s\"}", 422, 2, "#/queue"},
		"a kind of the relay":  {"{\"kind\":\"mail\"}\n{\"kind\":\"relay:s\"}", 422, 2, "#/kind"},
		"a name that is not":   {"{\"kind\":\"mail\"}\n{\"kind\":\"no spaces\"}", 422, 2, "#/kind"},
		"an array in one line": {`[{"kind":"mail"}]`, 422, 1, "#"},
		"the only job":         {"\n{\"kind\":\"no spaces\"}", 422, 2, "#/kind"},
	} {
		t.Run(name, func(t *testing.T) {
			var p api.Problem
			r.postBatch(tt.lines).want(tt.code, &p)
			if len(p.Errors) == 0 || p.Errors[0].Line != tt.line || p.Errors[0].Pointer != tt.pointer {
				t.Errorf("errors = %+v, want line %d, %s", p.Errors, tt.line, tt.pointer)
			}
		})
	}
	for name, tt := range map[string]struct {
		lines string
		want  []int // the lines that are named
	}{
		"faults of the shape and of the job": {
			`{"kind":"no spaces"}` + "\n" + `{"kind":"mail"}` + "\n\n" + `{"kind":7}` + "\n" +
				`{"kind":"mail","queue":"relay:s"}` + "\n" + `{"kind":"mail","key":"k","maxQueued":1}`, []int{1, 4, 5, 6},
		},
		"faults of jobs alone": {
			`{"kind":"no spaces"}` + "\n" + `{"kind":"mail"}` + "\n" + `{"kind":"mail","queue":"relay:s"}`, []int{1, 3},
		},
		"too many faults": {
			strings.Repeat(`{"kind":"no spaces"}`+"\n", 5) + strings.Repeat(`{"kind":7}`+"\n", 30),
			[]int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20},
		},
	} {
		var got []int
		for _, fault := range r.postBatch(tt.lines).problem(422, "invalid_input").Errors {
			got = append(got, fault.Line)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: lines (-want +got):\n%s", name, diff)
		}
	}
	r.postBatch(strings.Repeat("{\"kind\":\"mail\"}\n", 1001)).problem(422, "invalid_input")
	r.postBatch("\n \n").problem(400, "malformed_request")
	r.do("POST", "/jobs/batch", `{"kind":"mail"}`).problem(415, "unsupported_media_type")
	var rows int
	if err := r.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs WHERE tenant_id = $1`, tenantA).Scan(&rows); err != nil || rows != 1000 {
		t.Errorf("rows = %d, %v, want those of the good batch", rows, err)
	}
}

// The status is that of the first request, whatever the repeat says and whatever has
// become of the job.
func TestARepeatOfAHeldJobAnswersLikeTheFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.post("/jobs", `{"kind":"mail","idempotencyKey":"k1","hold":true}`)
	var a api.Accepted
	if first.want(202, &a); a.Status != "created" {
		t.Errorf("a held job was stored as %s", a.Status)
	}
	plain := r.post("/jobs", `{"kind":"mail","idempotencyKey":"k2"}`)
	r.as("operator-a").post("/jobs/"+a.ID+"/release", "").want(200, nil)
	for name, tt := range map[string]struct {
		repeat response
		first  response
	}{
		"of a held job":      {r.post("/jobs", `{"kind":"mail","idempotencyKey":"k1","hold":true}`), first},
		"that is not held":   {r.post("/jobs", `{"kind":"mail","idempotencyKey":"k1"}`), first},
		"that is held":       {r.post("/jobs", `{"kind":"mail","idempotencyKey":"k2","hold":true}`), plain},
		"in a batch of one":  {r.postBatch(`{"kind":"mail","idempotencyKey":"k1"}`), first},
		"in a batch of many": {r.postBatch(`{"kind":"mail","idempotencyKey":"k1"}` + "\n" + `{"kind":"mail","idempotencyKey":"k2"}`), first},
	} {
		want := strings.TrimSpace(tt.first.Body.String())
		if body := tt.repeat.want(202, nil).Body.String(); !strings.Contains(body, want) {
			t.Errorf("a repeat %s = %s, want %s", name, body, want)
		}
	}
}

// The answer for a job that SQL has stored, held, is as it was stored.
func TestARepeatOfAJobThatSQLHasHeldAnswersLikeTheFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.db.Exec(t.Context(), `SELECT outbox.enqueue('mail', '{}'::jsonb, tenant_id => $1, idempotency_key => 'k1', hold => true), outbox.enqueue('mail', '{}'::jsonb, tenant_id => $1, idempotency_key => 'k2')`, tenantA)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"k1": "created", "k2": "pending"} {
		var a api.Accepted
		if r.post("/jobs", `{"kind":"mail","idempotencyKey":"`+key+`","hold":true}`).want(202, &a); a.Status != want {
			t.Errorf("the repeat of %s says %s, want %s", key, a.Status, want)
		}
	}
}

func TestTheRulesOfAKeyAreStored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue(`{"kind":"mail","key":"wide","maxActive":3,"onLapse":"fail-stale"}`)
	r.enqueue(`{"kind":"mail","key":"line","ordered":true,"sequence":7,"onDeath":"park","parkAfterSeconds":90}`)
	var rules string
	if err := r.db.QueryRow(t.Context(), `SELECT string_agg(format('%s %s %s %s %s %s %s', key, max_active, ordered, line_position, on_death, park_after, on_lapse), '; ' ORDER BY key) FROM outbox.jobs`).Scan(&rules); err != nil {
		t.Fatal(err)
	}
	if want := "line  t 7 park 00:01:30 ; wide 3    fail-stale"; strings.Join(strings.Fields(rules), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("rules = %q, want %q", rules, want)
	}
	for body, pointer := range map[string]string{
		`"maxActive":3`:                                "#/key",
		`"key":"k","ordered":true,"maxActive":2`:       "#/maxActive",
		`"key":"k","sequence":1`:                       "#/ordered",
		`"key":"k","onDeath":"dance"`:                  "#/onDeath",
		`"key":"k","whenFull":"coalesce"`:              "#/maxQueued",
		`"key":"k","maxQueued":0`:                      "#/maxQueued",
		`"key":"k","parkAfterSeconds":1`:               "#/parkAfterSeconds",
		`"key":"k","maxQueued":1,"idempotencyKey":"i"`: "#/idempotencyKey",
	} {
		p := r.post("/jobs", `{"kind":"mail",`+body+`}`).problem(422, "invalid_input")
		if len(p.Errors) != 1 || p.Errors[0].Pointer != pointer || strings.Contains(p.Errors[0].Detail, "Options") || strings.Contains(p.Errors[0].Detail, "MaxActive") {
			t.Errorf("%s: errors = %+v, want one at %s, in the words of the API", body, p.Errors, pointer)
		}
	}
	var p api.Problem
	r.postBatch(`{"kind":"mail","key":"k","maxQueued":1}`).want(422, &p)
	if len(p.Errors) != 1 || p.Errors[0].Pointer != "#/maxQueued" || p.Errors[0].Line != 1 {
		t.Errorf("in a batch: errors = %+v", p.Errors)
	}
}

func TestAFullKeyDecidesAboutARequest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	submit := func(rest string) response {
		return r.post("/jobs", `{"kind":"mail","key":"k","maxQueued":1`+rest+`}`)
	}
	var first, other api.Accepted
	submit("").want(202, &first)
	if first.Verdict != "accepted" || first.Status != "pending" || first.ID == "" {
		t.Errorf("the first = %+v", first)
	}
	submit("").problem(409, "key_full")
	if submit(`,"whenFull":"coalesce"`).want(202, &other); other != (api.Accepted{ID: first.ID, Status: "pending", Verdict: "coalesced"}) {
		t.Errorf("coalesced = %+v", other)
	}
	if submit(`,"whenFull":"replace-oldest"`).want(202, &other); other.Verdict != "replaced" || other.Replaced != first.ID || other.ID == first.ID {
		t.Errorf("replaced = %+v", other)
	}
	if status := r.getJob(first.ID).Status; status != "skipped" {
		t.Errorf("the replaced job is %s", status)
	}
	for _, rest := range []string{`,"whenFull":"replace-oldest"`, `,"whenFull":"coalesce"`} { // it is another's
		r.post("/jobs", `{"kind":"bill","key":"k","maxQueued":1`+rest+`}`).problem(409, "key_full")
	}
	if status := r.getJob(other.ID).Status; status != "pending" {
		t.Errorf("a job of another kind is %s", status)
	}
	var foreign api.Accepted
	if r.as("client-b").post("/jobs", `{"kind":"mail","key":"k","maxQueued":1}`).want(202, &foreign); foreign.Verdict != "accepted" {
		t.Errorf("another tenant's key = %+v", foreign)
	}

	// Somebody's transaction holds the key: the request does not wait for ever.
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := outbox.Submit(t.Context(), tx, outbox.Raw{KindName: "mail", Payload: []byte("1")}, outbox.Options{Tenant: tenantA, Key: outbox.KeyRules{Name: "k", MaxQueued: 9}}); err != nil {
		t.Fatal(err)
	}
	submit("").problem(409, "idempotency_key_busy")
}

// A key in the header would be one for all lines, and replays know none: a client that sends it counts
// on it.
func TestWhatARepeatDoesAgainTakesNoIdempotencyKeyInTheHeader(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.do("POST", "/jobs/batch", `{"kind":"mail"}`, "Content-Type", "application/x-ndjson", "Idempotency-Key", "k").problem(422, "invalid_input")
	if len(p.Errors) != 1 || p.Errors[0].Header != "Idempotency-Key" || !strings.Contains(p.Errors[0].Detail, "idempotencyKey") {
		t.Errorf("errors = %+v, want one that says where the key belongs", p.Errors)
	}
	for _, path := range []string{"/jobs/replay", "/sinks/live/replays", "/operations"} {
		body := `{"since":"2026-01-01T00:00:00Z","kind":"mail"}`
		if path == "/operations" {
			body = `{"act":"retry","jobs":{"kind":"mail"}}`
		}
		p := r.as("root").do("POST", path, body, "Idempotency-Key", "k").problem(422, "invalid_input")
		if len(p.Errors) != 1 || p.Errors[0].Header != "Idempotency-Key" {
			t.Errorf("%s: errors = %+v, want one: it would be done twice", path, p.Errors)
		}
	}
	var list struct{ Jobs []api.Job }
	if r.get("/jobs").want(200, &list); len(list.Jobs) != 0 {
		t.Errorf("jobs = %+v, want none", list.Jobs)
	}
	r.postBatch(`{"kind":"mail","idempotencyKey":"k"}`).want(202, nil)
}

// When it cannot be looked up how the jobs with an idempotency key were stored, all are:
// those of others must not be stored a second time.
func TestJobsAreStoredOnceThoughTheLookAfterwardsFails(t *testing.T) {
	t.Parallel()
	const requests = 60
	db := pgtest.New(t)
	r := rigOn(t, db, func(c *api.Config) {
		c.Producer = outbox.NewProducer(db, outbox.NotifyOff)
		c.MaxInFlight = 2 * requests // none of them waits for its turn
	})
	for _, sql := range []string{`REVOKE SELECT ON outbox.idempotency_keys FROM outbox_api`, `REVOKE SELECT (held) ON outbox.idempotency_keys FROM outbox_api`} {
		if _, err := r.db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			body, want := `{"kind":"mail"}`, 202
			if i%6 == 0 {
				body, want = fmt.Sprintf(`{"kind":"mail","idempotencyKey":"k%d"}`, i), 500
			}
			if res := r.post("/jobs", body); res.Code != want {
				t.Errorf("%s: %d %s, want %d", body, res.Code, res.Body, want)
			}
		})
	}
	wg.Wait()
	wantJobs := func(want int) {
		t.Helper()
		var n int
		if err := r.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs`).Scan(&n); err != nil || n != want {
			t.Errorf("jobs stored = %d, %v; want %d", n, err, want)
		}
	}
	wantJobs(requests)
	r.postBatch(`{"kind":"mail"}`+"\n"+`{"kind":"mail","idempotencyKey":"of a batch","hold":true}`).want(202, nil)
	wantJobs(requests + 2)
	for range 2 { // all of them have keys: to ask again is safe
		r.postBatch(`{"kind":"mail","idempotencyKey":"of another"}`).problem(500, "internal_error")
		wantJobs(requests + 3)
	}
}

// curl -d says that it sends a form, which a page of another site could send, too.
func TestAFormIsRefusedByItsName(t *testing.T) {
	t.Parallel()
	const form = "application/x-www-form-urlencoded"
	p := newRig(t).do("POST", "/jobs", `{"kind":"mail"}`, "Content-Type", form).problem(415, "unsupported_media_type")
	if !strings.Contains(p.Detail, form) || !strings.Contains(p.Detail, "application/json") {
		t.Errorf("detail = %q, want both content types", p.Detail)
	}
}

func TestABodyThatIsEncodedIsRefusedAsSuch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, encoding := range []string{"gzip", "br", "identity, gzip"} {
		p := r.do("POST", "/jobs", "\x1f\x8b\x08", "Content-Encoding", encoding).problem(415, "unsupported_media_type")
		if !strings.Contains(p.Detail, "Content-Encoding") {
			t.Errorf("%s: %+v, want a word of the encoding", encoding, p)
		}
	}
	r.do("POST", "/jobs", `{"kind":"mail"}`, "Content-Encoding", "Identity").want(202, nil)
}

// A mistake in the header is reported for the header.
func TestAMistakeInTheHeaderIsNotTheBodys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, tt := range []struct{ body, header string }{
		{`{"kind":"mail"}`, strings.Repeat("ü", 300)},
		{`{"kind":"mail","key":"k","maxQueued":1}`, "k1"},
	} {
		p := r.do("POST", "/jobs", tt.body, "Idempotency-Key", tt.header).problem(422, "invalid_input")
		if len(p.Errors) != 1 || p.Errors[0].Header != "Idempotency-Key" || p.Errors[0].Pointer != "" {
			t.Errorf("%s: %+v, want one fault, of the header", tt.body, p.Errors)
		}
	}
}

func TestSecondsBeyondAnyDurationAreRefusedAsSuch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, body := range []string{`"backoffSeconds":[1e300]`, `"backoffSeconds":[1,9223372036.9]`, `"delaySeconds":1e300`, `"timeoutSeconds":1e300`} {
		text := r.post("/jobs", `{"kind":"mail",`+body+`}`).problem(422, "invalid_input").Errors
		if len(text) != 1 || strings.Contains(text[0].Detail, "-") {
			t.Errorf("%s: %+v, want one fault without a negative time", body, text)
		}
	}
}
