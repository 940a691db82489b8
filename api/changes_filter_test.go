package api_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

// What comes last is the first change of each stream: its filter leaves out all
// that came before.
func TestAStreamTellsWhatItsFilterMeans(t *testing.T) {
	t.Parallel()
	r := newRig(t, quick).as("operator-a")
	server := r.serve()
	known := r.reach(outbox.Running)
	for query, come := range map[string]func() (id, status string){
		"kind=bill":                            func() (string, string) { return r.enqueue(`{"kind":"bill"}`), "pending" },
		"queue=slow":                           func() (string, string) { return r.enqueue(`{"kind":"mail","queue":"slow"}`), "pending" },
		"status=dead,dismissed":                func() (string, string) { return r.reach(outbox.Dead), "dead" },
		"job=" + known:                         func() (string, string) { r.succeed(r.db, known); return known, "succeeded" },
		"kind=note&queue=q&status=pending":     func() (string, string) { return r.enqueue(`{"kind":"note","queue":"q"}`), "pending" },
		"kind=slip&tenant=" + tenantA.String(): func() (string, string) { return r.enqueue(`{"kind":"slip"}`), "pending" },
	} {
		l := r.listen(server, "/changes?"+query, "")
		if l.status != 200 {
			t.Fatalf("%s: status = %d", query, l.status)
		}
		l.next()
		r.reach(outbox.Succeeded)
		r.enqueue(`{"kind":"note","queue":"other"}`)
		r.as("operator-b").enqueue(`{"kind":"bill","queue":"slow"}`)
		id, status := come()
		for e := l.job(); e.data.ID != id || e.data.Status != status; e = l.job() {
			if e.name == "resync" || e.data.ID != id {
				t.Fatalf("%s: told %+v, want %s of %s first", query, e, status, id)
			}
		}
		l.close()
	}
}

func TestBadFiltersOfEventsAreRefusedWithTheirPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t).as("operator-a")
	for query, parameter := range map[string]string{
		"status=open": "status[0]", "status=dead,odd": "status[1]", "job=x": "job[0]", "job=" + outbox.NewID().String() + ",": "job[1]", "kind=" + strings.Repeat("x", 129): "kind",
		"queue=" + strings.Repeat("x", 129): "queue", "job=" + strings.Repeat("x,", 100) + "x": "job", "tenant=x": "tenant", "key=k": "key",
	} {
		if p := r.get("/changes?"+query).problem(422, "invalid_input"); len(p.Errors) == 0 || p.Errors[0].Parameter != parameter {
			t.Errorf("GET /changes?%.60s: errors = %+v, want one of %s", query, p.Errors, parameter)
		}
	}
	if p := r.get("/changes?kind=a&kind=b").problem(400, "malformed_request"); len(p.Errors) != 1 || p.Errors[0].Parameter != "kind" {
		t.Errorf("errors = %+v", p.Errors)
	}
}

// A filter leaves out; it does not show what the token may not see, whatever
// else is streamed to others.
func TestAFilterDoesNotWidenAStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, quick)
	server := r.serve()
	theirs := r.as("operator-a").reach(outbox.Running)
	r.as("operator-b").get("/changes?tenant="+tenantA.String()).problem(403, "forbidden")
	own := r.as("operator-b").reach(outbox.Running)
	everybodys := r.as("root").listen(server, "/changes?tenant="+tenantA.String(), "") // and the feed of A is there
	everybodys.next()
	for query, come := range map[string]func() string{
		"job=" + theirs + "," + own:  func() string { r.succeed(r.db, own); return own },
		"kind=mail":                  func() string { return r.as("operator-b").reach(outbox.Pending) },
		"status=succeeded,pending":   func() string { return r.as("operator-b").reach(outbox.Pending) },
		"tenant=" + tenantB.String(): func() string { return r.as("operator-b").reach(outbox.Pending) },
		"status=dead&kind=mail":      func() string { return r.as("operator-b").reach(outbox.Dead) },
	} {
		l := r.as("operator-b").listen(server, "/changes?"+query, "")
		if l.status != 200 {
			t.Fatalf("%s: status = %d", query, l.status)
		}
		l.next()
		foreign := map[string]bool{theirs: true, r.as("operator-a").reach(outbox.Dead): true}
		id := r.as("operator-a").reach(outbox.Running)
		foreign[id] = true
		r.succeed(r.db, id)
		if strings.HasPrefix(query, "job=") {
			r.succeed(r.db, theirs)
		}
		for e := everybodys.job(); e.data.ID != id || e.data.Status != "succeeded"; e = everybodys.job() {
			if e.name == "job" && e.data.ID == own {
				t.Errorf("root, who asked for tenant A, is told of %+v", e.data)
			}
		}
		own := come()
		for e := l.job(); e.data.ID != own; e = l.job() {
			if foreign[e.data.ID] {
				t.Errorf("%s: operator-b is told of %+v", query, e.data)
			}
		}
		l.close()
	}
}

// A stream that is sent nothing moves on all the same: a client that comes back to
// it does not begin where it was when something was last sent.
func TestAQuietFilteredStreamMovesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *api.Config) { c.Streams(5*time.Millisecond, 10*time.Millisecond, 0, 0, 0) }).as("operator-a")
	server := r.serve()
	l := r.listen(server, "/changes?kind=never", "")
	l.next()
	var place atomic.Value // the latest
	place.Store(l.lastID)
	var reading sync.WaitGroup
	reading.Go(func() {
		for e, ok := l.next(); ok; e, ok = l.next() {
			if e.name != "comment" && e.name != "" {
				t.Errorf("the filtered stream tells %+v", e)
			}
			place.Store(l.lastID)
		}
	})
	defer reading.Wait()
	defer l.close()
	passed := map[string]bool{}
	for range 5 {
		passed[r.enqueue(`{"kind":"mail"}`)] = true
	}
	// A transaction of another test that is still writing keeps the place back for as
	// long, and a look takes its time: each try waits longer than the one before.
	pause := 20 * time.Millisecond
	for begun := time.Now(); ; time.Sleep(pause) {
		pause = min(2*pause, patience/10)
		again := r.listen(server, "/changes", place.Load().(string))
		last := r.enqueue(`{"kind":"mail"}`)
		first := again.job()
		again.close()
		if first.data.ID == last {
			return
		}
		if passed[last] = true; first.name != "job" || !passed[first.data.ID] {
			t.Fatalf("told %+v", first)
		}
		if time.Since(begun) > patience {
			t.Fatal("who comes back is told again what the stream had passed over")
		}
	}
}

// A transaction of the cluster that has been writing since before holds the position
// where it was; see hub.look. What did not fit is one resync, what comes later is
// sent, and so is what was being written, also under a savepoint, of which the
// snapshot of the look with the resync knew nothing.
func TestAMarkIsSaidOnceWhileTheHorizonIsHeld(t *testing.T) {
	t.Parallel()
	few := func(c *api.Config) { c.Streams(10*time.Millisecond, 0, 0, 10, 0) }
	r := newRig(t, few).as("operator-a")
	held, late := r.begin(), r.begin()
	defer func() { _ = held.Rollback(context.WithoutCancel(t.Context())) }()
	defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := held.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	l := r.listen(r.serve(), "/changes", "")
	l.next()
	var unseen string
	if err := pgx.BeginFunc(t.Context(), late, func(tx pgx.Tx) error {
		unseen = r.store(tx)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r.postBatch(strings.Repeat(`{"kind":"mail"}`+"\n", 50)).want(202, nil)
	if mark := l.job(); mark.name != "resync" || mark.id == "" {
		t.Fatalf("told %+v, want a mark", mark)
	}
	comes := func(l *listening, id string) {
		t.Helper()
		if e := l.job(); e.name != "job" || e.data.ID != id {
			t.Fatalf("told %+v, want %s", e, id)
		}
	}
	for range 3 { // more than fit, a few at a time
		r.postBatch(strings.Repeat(`{"kind":"mail"}`+"\n", 4)).want(202, nil)
		for range 4 {
			if e := l.job(); e.name != "job" {
				t.Fatalf("told %+v, want a job", e)
			}
		}
	}
	// A stream that begins meanwhile has missed none of it.
	other := rigOn(t, r.db, few).as("operator-a")
	m := other.listen(other.serve(), "/changes", "")
	m.next()
	id := r.enqueue(`{"kind":"mail"}`)
	comes(l, id)
	comes(m, id)
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	known := map[*listening]bool{}
	for range 2 { // of two looks the second began after the commit
		id := r.enqueue(`{"kind":"mail"}`)
		for _, l := range []*listening{l, m} {
			e := l.job()
			for ; e.data.ID != id; e = l.job() {
				if known[l] = known[l] || e.data.ID == unseen; e.name != "job" || e.data.ID != unseen {
					t.Fatalf("told %+v", e)
				}
			}
		}
	}
	if !known[l] || !known[m] {
		t.Fatal("what was being written when something else was marked was never told")
	}
	if err := held.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		id := r.enqueue(`{"kind":"mail"}`)
		comes(l, id)
		comes(m, id)
	}
}

func (r *rig) begin() pgx.Tx {
	r.t.Helper()
	tx, err := r.db.Begin(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return tx
}

// store enqueues a job of tenant A in a transaction.
func (r *rig) store(tx pgx.Tx) string {
	r.t.Helper()
	id, err := outbox.Enqueue(r.t.Context(), tx, outbox.Raw{KindName: "mail", Payload: []byte(`{}`)}, outbox.Options{Tenant: tenantA})
	if err != nil {
		r.t.Fatal(err)
	}
	return id.String()
}

// While no job changes nobody looks at the jobs, however many listen: before each look
// there is a glance for all of them, and it reads no table.
func TestAQuietSystemIsNotLookedAt(t *testing.T) {
	t.Parallel()
	var log statements
	r := newRig(t).as("operator-a")
	r.handler = r.traced(&log, func(c *api.Config) {
		c.Streams(5*time.Millisecond, 0, 0, 0, 0)
		c.Rest(time.Hour) // whatever others in the cluster do meanwhile
	})
	server := r.serve()
	streams := []*listening{r.listen(server, "/changes", ""), r.listen(server, "/changes?kind=mail", ""), r.as("operator-b").listen(server, "/changes", ""), r.as("root").listen(server, "/changes", "")}
	for _, l := range streams {
		l.next()
	}
	log.take()
	glances, looks := 0, 0
	for begun := time.Now(); glances < 20; time.Sleep(5 * time.Millisecond) {
		for _, sql := range log.take() {
			if strings.Contains(sql, "-- name: FindPosition ") {
				glances++
			}
			if strings.Contains(sql, "outbox.history") {
				looks++
			}
		}
		if time.Since(begun) > patience {
			t.Fatalf("%d glances", glances)
		}
	}
	if looks > 0 {
		t.Errorf("%d looks beside %d glances, and nothing had changed", looks, glances)
	}
	// What a session has done is added up when it ends, at the latest.
	conn, err := pgx.ConnectConfig(t.Context(), r.db.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	id, err := outbox.Enqueue(t.Context(), conn, outbox.Raw{KindName: "mail", Payload: []byte(`{}`)}, outbox.Options{Tenant: tenantA})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, l := range streams {
		if i != 2 {
			l.until(id.String(), "pending")
		}
	}
}
