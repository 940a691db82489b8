package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/apitest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

const patience = time.Minute

// event is a server-sent event as a client reads it.
type event struct {
	name, id string
	data     watch.JobChange
}

// listening is a client with a stream open.
type listening struct {
	t      *testing.T
	status int
	lastID string // as a browser keeps it: the latest id that a whole block had
	lines  *bufio.Scanner
	close  func()
}

// listen opens a stream on a real server.
func (r *rig) listen(server *httptest.Server, path, lastID string) *listening {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	req, err := http.NewRequestWithContext(ctx, "GET", server.URL+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.token)
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	l := &listening{t: r.t, status: res.StatusCode, lastID: lastID, lines: bufio.NewScanner(res.Body), close: func() { cancel(); _ = res.Body.Close() }}
	r.t.Cleanup(l.close)
	return l
}

// next reads up to the next event, or comment; ok is false at the end of the stream.
func (l *listening) next() (e event, ok bool) {
	id := ""
	for l.lines.Scan() {
		field, value, _ := strings.Cut(l.lines.Text(), ": ")
		switch {
		case l.lines.Text() == "":
			if id != "" {
				l.lastID, e.id = id, id
			}
			return e, true
		case field == "event":
			e.name = value
		case field == "id":
			id = value
		case field == "data":
			if err := json.Unmarshal([]byte(value), &e.data); err != nil {
				l.t.Errorf("%v in %s", err, value)
			}
		case field == "":
			e.name = "comment"
		}
	}
	return event{}, false
}

// job reads up to the next event of a job.
func (l *listening) job() event {
	l.t.Helper()
	for {
		e, ok := l.next()
		if !ok {
			l.t.Fatalf("the stream ended: %v", l.lines.Err())
		}
		if e.name == "job" || e.name == "resync" {
			return e
		}
	}
}

// until reads up to the event that a job is in a status.
func (l *listening) until(id, status string) {
	l.t.Helper()
	for e := l.job(); e.data.ID != id || e.data.Status != status; e = l.job() {
	}
}

func (r *rig) serve() *httptest.Server {
	server := httptest.NewServer(apitest.Checked(r.t, r.handler))
	r.t.Cleanup(server.Close)
	return server
}

func quick(c *api.Config) { c.Streams(20*time.Millisecond, 0, 0, 0, 0) }

func TestAStreamTellsWhatBecomesOfJobs(t *testing.T) {
	t.Parallel()
	r := newRig(t, quick).as("operator-a")
	l := r.listen(r.serve(), "/changes", "")
	if l.status != 200 {
		t.Fatalf("status = %d", l.status)
	}
	if first, _ := l.next(); first.id == "" || first.name != "" {
		t.Fatalf("the stream begins with %+v, want its position", first)
	}
	id := r.reach(outbox.Succeeded)
	for {
		e := l.job()
		if e.name == "resync" {
			t.Fatal("told to look for itself")
		}
		if e.data.ID == id && e.data.Status == "succeeded" {
			if e.data.Epoch != 1 || e.data.FinishedAt.IsZero() || e.data.Kind != "mail" || e.data.Tenant != "" {
				t.Errorf("told %+v", e.data)
			}
			break
		}
	}
	dead := r.reach(outbox.Dead)
	for e := l.job(); e.data.ID != dead || e.data.Status != "dead"; e = l.job() {
	}
	r.post("/jobs/"+dead+"/dismiss", "{}").want(200, nil)
	if e := l.job(); e.data.ID != dead || e.data.Status != "dismissed" || e.data.Error == nil || e.data.Error.Code != "smtp" {
		t.Errorf("told %+v, want the dismissal", e)
	}
}

// The interleaving in which a cursor by time, or by the newest transaction that was
// seen, loses a job for ever:
//
//	settle A   begins, writes A's row into the history (finished_at 10:00:00.1)
//	settle B   begins later, writes B (10:00:00.2), commits
//	look       sees B, and not A; its cursor moves behind B
//	settle A   commits: A's row is older than the cursor
//
// The position is the oldest transaction that was running, A's. A savepoint gives rows an
// id above that of their transaction: it must not count for less.
func TestWhatCommitsLateIsSent(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(context.Context, pgx.Tx) (pgx.Tx, error){
		"a transaction": func(_ context.Context, tx pgx.Tx) (pgx.Tx, error) { return tx, nil },
		"a savepoint":   func(ctx context.Context, tx pgx.Tx) (pgx.Tx, error) { return tx.Begin(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, quick).as("operator-a")
			a, b := r.reach(outbox.Running), r.reach(outbox.Running)
			server := r.serve()
			l := r.listen(server, "/changes", "")
			l.next()

			late, err := r.db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
			inner, err := begin(t.Context(), late)
			if err != nil {
				t.Fatal(err)
			}
			r.succeed(inner, a)
			if inner != late {
				if err := inner.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			r.succeed(r.db, b)
			l.until(b, "succeeded") // not the first change: one of a moment ago may be sent
			// Looks go on, and move as far as they can.
			l.until(r.reach(outbox.Pending), "pending")
			again := r.listen(server, "/changes", l.lastID)
			if err := late.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			for who, l := range map[string]*listening{"who listened": l, "who came back": again} {
				known := false
				for range 2 { // of two looks the second began after the commit
					id := r.reach(outbox.Pending)
					for e := l.job(); e.data.ID != id; e = l.job() {
						known = known || e.data.ID == a && e.data.Status == "succeeded"
					}
				}
				if !known {
					t.Errorf("%s was never told of a", who)
				}
			}
		})
	}
}

// succeed settles a running job.
func (r *rig) succeed(db outbox.DB, id string) {
	r.t.Helper()
	tag, err := db.Exec(r.t.Context(), `WITH done AS (DELETE FROM outbox.jobs WHERE id = $1 AND status = 'running' RETURNING *)
		INSERT INTO outbox.history (id, tenant_id, run_at, created_at, started_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type)
		SELECT id, tenant_id, run_at, created_at, started_at, epoch, 'succeeded', status, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type FROM done`, id)
	if err != nil || tag.RowsAffected() != 1 {
		r.t.Fatalf("committed %d, %v", tag.RowsAffected(), err)
	}
}

// Jobs are committed concurrently, some in transactions that commit late or have
// savepoints, while a client loses its connection again and again. In the end it knows the
// last state of every job, and was never sent an older one after a newer one.
func TestAClientThatComesBackHasMissedNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.Streams(5*time.Millisecond, 20*time.Millisecond, 0, 0, 0) }).as("operator-a")
	server := r.serve()
	l := r.listen(server, "/changes", "")
	l.next()

	const settlers, each = 4, 12
	var committed sync.Map // id → true
	var left atomic.Int64
	left.Store(settlers)
	var wg sync.WaitGroup
	for range settlers {
		wg.Go(func() {
			defer left.Add(-1)
			for range each {
				id := r.enqueue(`{"kind":"mail"}`)
				if err := settleSlowly(t.Context(), r, id); err != nil {
					t.Error(err)
					return
				}
				committed.Store(id, true)
			}
		})
	}
	got := map[string]watch.JobChange{}
	reconnects, missing := 0, func() (n int) {
		committed.Range(func(id, _ any) bool {
			if got[id.(string)].Status != "succeeded" {
				n++
			}
			return true
		})
		return n
	}
	for begun := time.Now(); left.Load() > 0 || missing() > 0; {
		if time.Since(begun) > 2*patience {
			t.Fatalf("%d jobs were never told", missing())
		}
		most := rand.N(12) // mostly within a batch, which then comes again
		if reconnects%3 == 2 {
			most = 300
		}
		for range most {
			e, ok := l.next()
			if !ok {
				break
			}
			if e.name == "resync" {
				t.Fatal("told to look for itself")
			}
			if e.name != "job" {
				continue
			}
			if before := got[e.data.ID]; before.Epoch > e.data.Epoch || before.Status == "succeeded" && e.data.Status != "succeeded" {
				t.Errorf("told %+v after %+v", e.data, before)
			}
			got[e.data.ID] = e.data
		}
		l.close()
		l = r.listen(server, "/changes", l.lastID)
		reconnects++
	}
	wg.Wait()
	if reconnects < 3 || len(got) < settlers*each {
		t.Errorf("%d jobs told over %d connections: this test shows nothing", len(got), reconnects)
	}
}

// What one look found is sent again to a client that lost the connection within: only
// its end is a position to go on from.
func TestABatchThatWasCutOffIsSentAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, quick).as("operator-a")
	server := r.serve()
	l := r.listen(server, "/changes", "")
	l.next()
	const jobs = 5
	r.postBatch(strings.Repeat(`{"kind":"mail"}`+"\n", jobs)).want(202, nil) // one transaction is found by one look
	if e := l.job(); e.id != "" {
		t.Errorf("the first of %d events has the id %s: who goes on from there misses the others", jobs, e.id)
	}
	l.close()
	again := r.listen(server, "/changes", l.lastID)
	got := map[string]bool{}
	var last event
	for len(got) < jobs {
		last = again.job()
		got[last.data.ID] = true
	}
	if last.id == "" {
		t.Error("the last event has no id")
	}
}

// settleSlowly claims and settles a job in transactions that end when they like.
func settleSlowly(ctx context.Context, r *rig, id string) error {
	err := pgx.BeginFunc(ctx, r.db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = 1, lease_owner = 'w', lease_expires_at = now() + '1 hour', started_at = statement_timestamp() WHERE id = $1`, id)
		time.Sleep(rand.N(5 * time.Millisecond))
		return err
	})
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, r.db, func(tx pgx.Tx) error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			r.succeed(tx, id)
			time.Sleep(rand.N(30 * time.Millisecond))
			return nil
		})
	})
}

// pipes is a listener whose connections hold nothing back: what is not read is not sent.
type pipes struct {
	calls chan net.Conn
	done  chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.calls:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

func TestASlowReaderIsDroppedWithAMark(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.Streams(5*time.Millisecond, 0, patience, 0, 1000) }).as("operator-a")
	p := pipes{make(chan net.Conn), make(chan struct{})}
	server := &http.Server{Handler: r.handler, ReadHeaderTimeout: time.Minute}
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(p) })
	defer wg.Wait()
	defer func() { close(p.done); _ = server.Close() }()

	client, conn := net.Pipe()
	p.calls <- conn
	go func() {
		_, _ = io.WriteString(client, "GET /changes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer operator-a\r\n\r\n")
	}()
	res, err := http.ReadResponse(bufio.NewReaderSize(client, 16), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(); _ = res.Body.Close() }()
	// A reader who keeps up is not dropped meanwhile. Three looks are enough: the hub rests after each.
	other := r.listen(r.serve(), "/changes", "")
	// Nobody reads: one change is under way, more than a kilobyte waits, and then there is one more.
	for _, n := range []int{1, 10, 1} {
		r.postBatch(strings.Repeat(`{"kind":"mail"}`+"\n", n)).want(202, nil)
		for range n {
			other.job()
		}
	}
	l := &listening{t: t, lines: bufio.NewScanner(res.Body)}
	var last event
	events := 0
	for e, ok := l.next(); ok; e, ok = l.next() {
		last = e
		events++
	}
	if last.name != "resync" || last.id != "" || events < 2 || events > 30 {
		t.Fatalf("the stream ended after %d events with %+v, want the mark", events, last)
	}
	// With where it was it learns what it missed.
	again := r.listen(r.serve(), "/changes", l.lastID)
	if e := again.job(); e.name != "job" {
		t.Errorf("told %+v", e)
	}
}

// More than can be sent one by one, or from too long ago, is a resync with a new
// position.
func TestWhatCannotBeSentIsAMark(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.Streams(50*time.Millisecond, 0, 0, 10, 0) }).as("operator-a")
	server := r.serve()
	l := r.listen(server, "/changes", "")
	l.next()
	start := l.lastID
	r.postBatch(strings.Repeat(`{"kind":"mail"}`+"\n", 50)).want(202, nil)
	mark := l.job()
	if mark.name != "resync" || mark.id == "" {
		t.Fatalf("told %+v, want a mark", mark)
	}
	id := r.reach(outbox.Pending)
	if e := l.job(); e.data.ID != id { // and no second mark, whatever other tests write meanwhile
		t.Errorf("after the mark: told %+v, want %s", e, id)
	}
	if e := r.listen(server, "/changes", start).job(); e.name != "resync" || e.id == "" {
		t.Errorf("who came back too late was told %+v", e)
	}
	for name, id := range map[string]string{
		"another server's": "AAAA_________AAGQwAAAAAAA", "too old": "AAAAAAAAAAEAAAAAAAAAAA",
	} {
		again := r.listen(server, "/changes", id)
		if again.status != 200 && name == "too old" {
			t.Fatalf("%s: status = %d", name, again.status)
		}
		if again.status == 200 {
			if e := again.job(); e.name != "resync" {
				t.Errorf("%s: told %+v", name, e)
			}
		}
	}
	r.do("GET", "/changes", "", "Last-Event-ID", "nonsense").problem(422, "invalid_input")
}

func TestAStreamIsItsTenants(t *testing.T) {
	t.Parallel()
	r := newRig(t, quick)
	server := r.serve()
	streams := map[string]*listening{}
	for _, token := range []string{"operator-a", "operator-b", "root"} {
		streams[token] = r.as(token).listen(server, "/changes", "")
		streams[token].next()
	}
	a, b := r.as("operator-a").reach(outbox.Succeeded), r.as("operator-b").reach(outbox.Succeeded)
	tenants := map[string]string{a: tenantA.String(), b: tenantB.String()}
	for token, sees := range map[string][]string{"operator-a": {a}, "operator-b": {b}, "root": {a, b}} {
		got := map[string]bool{}
		for !hasAll(got, sees) {
			e := streams[token].job()
			if e.data.Status == "succeeded" {
				got[e.data.ID] = true
			}
			if token == "root" && e.data.Tenant != tenants[e.data.ID] {
				t.Errorf("root is told %+v, want tenant %s", e.data, tenants[e.data.ID])
			}
			if token != "root" && e.data.ID != sees[0] {
				t.Errorf("%s is told of %s", token, e.data.ID)
			}
		}
	}
	// A position of another is but a time.
	again := r.as("operator-b").listen(server, "/changes", streams["operator-a"].lastID)
	r.as("operator-a").reach(outbox.Pending)
	last := r.as("operator-b").reach(outbox.Pending)
	for e := again.job(); e.data.ID != last; e = again.job() {
		if e.data.ID != b {
			t.Errorf("operator-b is told of %s", e.data.ID)
		}
	}
	if l := r.as("operator-b").listen(server, "/jobs/"+a+"/changes", ""); l.status != 404 {
		t.Errorf("a foreign job's stream: %d", l.status)
	}
}

func hasAll(got map[string]bool, ids []string) bool {
	for _, id := range ids {
		if !got[id] {
			return false
		}
	}
	return true
}

func TestAJobsStreamEndsWithTheJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	server := r.serve()
	id := r.reach(outbox.Running)
	l := r.listen(server, "/jobs/"+id+"/changes", "")
	if e := l.job(); e.data.Status != "running" || e.id == "" {
		t.Fatalf("told %+v", e)
	}
	running := l.lastID
	r.post("/jobs/"+id+"/cancel", "").want(202, nil)
	if e := l.job(); e.data.Status != "running" || e.id == running {
		t.Fatalf("of a job that was asked to stop, told %+v", e)
	}
	r.succeed(r.db, id)
	if e := l.job(); e.data.Status != "succeeded" {
		t.Fatalf("told %+v", e)
	}
	if e, ok := l.next(); ok {
		t.Errorf("after the end: %+v", e)
	}
	if again := r.listen(server, "/jobs/"+id+"/changes", l.lastID); again.status != http.StatusNoContent {
		t.Errorf("who had the end comes back: %d, want 204", again.status)
	}
	if e := r.listen(server, "/jobs/"+id+"/changes", running).job(); e.data.Status != "succeeded" {
		t.Errorf("who missed the end is told %+v", e)
	}
	if l := r.as("no-jobs.read").listen(server, "/jobs/"+id+"/changes", ""); l.status != 403 {
		t.Errorf("without the capability: %d", l.status)
	}
}

func TestStreamsEnd(t *testing.T) {
	t.Parallel()
	stopping := make(chan struct{})
	var revoked atomic.Bool
	r := newRig(t, func(c *api.Config) {
		c.Stopping, c.MaxStreams = stopping, 2
		c.Streams(0, 20*time.Millisecond, 0, 0, 0)
		known := c.Authenticator
		c.Authenticator = asked(func(ctx context.Context, bearer string) (access.Principal, error) {
			if bearer == "operator-b" && revoked.Load() {
				return access.Principal{}, access.ErrUnauthenticated
			}
			if bearer == "operator-a" && revoked.Load() {
				return access.Principal{}, errors.New("the database is away")
			}
			return known.Authenticate(ctx, bearer)
		})
	})
	server := r.serve()
	a, b := r.as("operator-a").listen(server, "/changes", ""), r.as("operator-b").listen(server, "/changes", "")
	for _, l := range []*listening{a, b} {
		for e, ok := l.next(); ok && e.name != "comment"; e, ok = l.next() {
		}
	}
	r.as("root").get("/changes").problem(429, "overloaded")
	revoked.Store(true)
	for _, ok := b.next(); ok; _, ok = b.next() {
	}
	if e, ok := a.next(); !ok || e.name != "comment" || e.id == "" {
		t.Errorf("a database that is away ended a stream, or a comment does not say where it is: %+v", e)
	}
	close(stopping)
	for _, ok := a.next(); ok; _, ok = a.next() {
	}
	if err := a.lines.Err(); err != nil {
		t.Errorf("the stream ended with %v, want in good order", err)
	}
}

// A stream of which nobody knows any more whether there is something to tell ends, and
// none begins, until somebody knows.
func TestStreamsEndWhenLooksFailForLong(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) {
		c.Streams(5*time.Millisecond, 20*time.Millisecond, 0, 0, 0)
		c.DeafAfter(100 * time.Millisecond)
		c.Rest(0)
	}).as("operator-a")
	server := r.serve()
	l := r.listen(server, "/changes", "")
	rename := func(from, to string) {
		if _, err := r.db.Exec(t.Context(), `ALTER TABLE outbox.`+from+` RENAME TO `+to); err != nil {
			t.Fatal(err)
		}
	}
	rename("jobs", "away")
	var last event
	for e, ok := l.next(); ok; e, ok = l.next() {
		last = e
	}
	if last.name != "resync" {
		t.Errorf("the stream ended with %+v, want the mark", last)
	}
	r.get("/changes").problem(503, "unavailable")
	rename("away", "jobs")
	again := r.listen(server, "/changes", l.lastID)
	id := r.reach(outbox.Pending)
	for e := again.job(); e.data.ID != id; e = again.job() {
	}
}

func TestAJobsStreamEndsWhenLooksFailForLong(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) {
		c.Streams(0, 20*time.Millisecond, 0, 0, 0)
		c.DeafAfter(100 * time.Millisecond)
	})
	server := r.serve()
	id := r.reach(outbox.Running)
	l := r.listen(server, "/jobs/"+id+"/changes", "")
	if e := l.job(); e.data.Status != "running" {
		t.Fatalf("told %+v", e)
	}
	r.exec(`ALTER TABLE outbox.jobs RENAME TO away`)
	for _, ok := l.next(); ok; _, ok = l.next() {
	}
	if err := l.lines.Err(); err != nil {
		t.Errorf("the stream ended with %v, want in good order", err)
	}
	r.get("/jobs/"+id+"/changes").problem(503, "unavailable")
	r.exec(`ALTER TABLE outbox.away RENAME TO jobs`)
	if e := r.listen(server, "/jobs/"+id+"/changes", ""); e.job().data.Status != "running" {
		t.Error("the stream does not go on")
	}
}

// A tenant that opens all the streams that it can, by one name or by several, leaves the most of them to others.
func TestOneCallersStreamsLeavePlacesToOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.MaxStreams = 20 })
	server := r.serve()
	job := r.as("client-a").enqueue(`{"kind":"mail"}`)
	var open []*listening
	for range 5 {
		open = append(open, r.as("client-a").listen(server, "/jobs/"+job+"/changes", ""))
	}
	p := r.as("client-a").get("/jobs/"+job+"/changes").problem(429, "rate_limited")
	if !strings.Contains(p.Detail, "5 streams") {
		t.Errorf("detail = %q, want which limit it is", p.Detail)
	}
	r.as("operator-a").get("/changes").problem(429, "rate_limited")
	for _, other := range []string{"operator-b", "root"} {
		if l := r.as(other).listen(server, "/changes", ""); l.status != 200 {
			t.Errorf("%s: %d", other, l.status)
		}
	}
	open[0].close()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if l := r.as("client-a").listen(server, "/jobs/"+job+"/changes", ""); l.status == 200 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the place of one that is over: %d", l.status)
		}
	}
}

// A writer without deadlines could not drop a client that does not read.
func TestAStreamNeedsDeadlines(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("root")
	r.get("/changes").problem(500, "internal_error")
	r.get("/jobs/"+r.reach(outbox.Pending)+"/changes").problem(500, "internal_error")
}

// A client that comes back waits for a look at what it has missed, with a place of its
// own: requests are worked on meanwhile. One that reads from now on waits for none.
func TestAStreamThatWaitsToBeginKeepsNobodyOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) {
		c.MaxInFlight, c.MaxQueued = 1, 8
		c.Streams(time.Hour, time.Minute, time.Minute, 100, 1<<20)
	})
	server := r.serve()
	first := r.as("operator-a").listen(server, "/changes", "")
	first.next()
	release := r.lock("outbox.history")
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer release()
	defer cancel()
	for range 3 {
		waiting.Go(func() {
			req, err := http.NewRequestWithContext(ctx, "GET", server.URL+"/changes", nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer operator-a")
			req.Header.Set("Last-Event-ID", first.lastID)
			if res, err := server.Client().Do(req); err == nil {
				_ = res.Body.Close()
				t.Errorf("a reader who comes back: %d, want no answer before it is known what he has missed", res.StatusCode)
			}
		})
	}
	r.waitFor(1, "looks that wait", `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	for range 5 {
		r.as("client-a").enqueue(`{"kind":"mail"}`)
	}
	if l := r.as("operator-a").listen(server, "/changes", ""); l.status != 200 {
		t.Errorf("a reader from now on: %d", l.status)
	}
}

// Readers that come back again and again, each from somewhere else, with more behind
// them than can be sent, hold up neither other readers nor those that join.
func TestReadersWhoKeepComingBackDelayNobodyElse(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.Streams(50*time.Millisecond, 0, 0, 0, 0) })
	server := r.serve()
	old := r.as("operator-a").listen(server, "/changes", "")
	var ids []string
	for old.next(); len(ids) < 8; old.next() {
		ids = append(ids, old.lastID)
		r.as("client-a").enqueue(`{"kind":"mail"}`)
	}
	old.close()
	_, err := r.db.Exec(t.Context(), `
		INSERT INTO outbox.jobs (id, tenant_id, kind, payload, run_at)
		SELECT gen_random_uuid(), $1, 'mail', '{}', now() + '1 hour' FROM generate_series(1, 25000)`, tenantA.String())
	if err != nil {
		t.Fatal(err)
	}
	reads := r.as("operator-b").listen(server, "/changes", "")
	reads.next()
	stop := make(chan struct{})
	var back sync.WaitGroup
	defer back.Wait()
	defer close(stop)
	for n := range 60 {
		back.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				l := r.as("operator-a").listen(server, "/changes", ids[n%len(ids)])
				l.next()
				l.close()
			}
		})
	}
	var longest time.Duration
	for begun := time.Now(); time.Since(begun) < 3*time.Second; {
		asked := time.Now()
		id := r.as("client-b").enqueue(`{"kind":"mail"}`)
		reads.until(id, "pending")
		r.as("operator-b").listen(server, "/changes", "").close()
		longest = max(longest, time.Since(asked))
	}
	if longest > 10*time.Second {
		t.Errorf("another tenant's reader was told %s late", longest)
	}
}

// looks counts those for changes.
type looks struct{ atomic.Int64 }

func (l *looks) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "name: ListChanges") {
		l.Add(1)
	}
	return ctx
}

func (*looks) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// After a restart of the API all readers come back at once. One reading of the open jobs
// is for all of them, or those who stayed would wait for as many as come.
func TestReadersThatComeBackTogetherAreReadForTogether(t *testing.T) {
	t.Parallel()
	const readers = 30
	db := pgtest.New(t)
	var counted looks
	config := pgtest.Login(t, db, "outbox_api").Config()
	config.ConnConfig.Tracer = &counted
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r := rigOn(t, db, func(c *api.Config) {
		c.Pool = pool
		c.Streams(time.Second, 0, 0, 0, 0)
	}).as("operator-a")
	server := r.serve()
	stays := r.listen(server, "/changes", "")
	stays.next()
	before := stays.lastID
	id := r.as("client-a").enqueue(`{"kind":"mail"}`)
	stays.until(id, "pending")
	already := counted.Load()
	var back sync.WaitGroup
	for range readers {
		back.Go(func() { r.listen(server, "/changes", before).until(id, "pending") })
	}
	back.Wait()
	if n := counted.Load() - already; n > readers/2 {
		t.Errorf("%d looks for %d readers, want few", n, readers)
	}
}
