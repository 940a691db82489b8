package reaper

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/clock/clocktest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// storeLast stores four running jobs, each in its only attempt: of the root tenant and of
// another one, with a key and without.
func storeLast(t *testing.T, db *pgxpool.Pool, tag, startedAt, lapsesAt string) {
	t.Helper()
	exec(t, db, `
		INSERT INTO outbox.jobs (id, tenant_id, key, kind, payload, status, epoch, attempt, max_attempts, lost_leases, slot, run_at, started_at, lease_owner, lease_expires_at)
		SELECT gen_random_uuid(), tenant, CASE WHEN keyed THEN $2 END, $2, '{}', 'running', 1, 1, 1, 0, CASE WHEN keyed THEN 0 END,
		       now() - interval '1 minute', `+startedAt+`, 'worker-1', `+lapsesAt+`
		FROM unnest(ARRAY[$1, gen_random_uuid()]) AS tenant, unnest(ARRAY[true, false]) AS keyed`, outbox.RootTenant, tag)
}

// wantLast checks what became of the four.
func wantLast(t *testing.T, db *pgxpool.Pool, tag, want string) {
	t.Helper()
	got := query[string](t, db, `
		SELECT string_agg(format('%s attempt=%s lost=%s', status, attempt, lost_leases), ', ') FROM outbox.jobs WHERE kind = $1`, tag)
	if all := want + ", " + want + ", " + want + ", " + want; got != all {
		t.Errorf("%s: %s, want four times: %s", tag, got, want)
	}
}

const (
	unharmed = "retrying attempt=0 lost=0"
	killed   = "dead attempt=1 lost=1"
)

// Nobody could extend a lease while the table was locked:
//
//	table     |---------- locked ----------|
//	reaper   pass    …fails        …fails   pass       pass
//	leases       lapse: an outage             lapse soon: of it, too, if of jobs claimed before its end
func TestLeasesThatLapseInAnOutageCostNothing(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	expirePass(t, r)
	storeLast(t, db, "in it", "now()", "now() + interval '500 ms'")
	storeLast(t, db, "soon after", "now()", "now() + interval '8 s'")
	storeLast(t, db, "much later", "now()", "now() + interval '1 hour'")

	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE outbox.jobs`); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < minOutage+time.Second; {
		if err := r.expirer.pass(t.Context()); err == nil {
			t.Fatal("the pass goes through: the test proves nothing")
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	expirePass(t, r)
	wantLast(t, db, "in it", unharmed)

	storeLast(t, db, "claimed after it", "now()", "now()")
	await(t, "the leases lapse", func() bool {
		return query[bool](t, db, `SELECT now() > max(lease_expires_at) FROM outbox.jobs WHERE kind = 'soon after'`)
	})
	expirePass(t, r)
	wantLast(t, db, "soon after", unharmed)
	wantLast(t, db, "claimed after it", killed)

	exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = $1 WHERE kind = 'much later'`, r.expirer.outages.until)
	r.expirer.outages.until = r.expirer.outages.until.Add(-time.Minute) // as if a minute went by
	exec(t, db, `UPDATE outbox.jobs SET lease_expires_at = now() - interval '1 s' WHERE kind = 'much later'`)
	expirePass(t, r)
	wantLast(t, db, "much later", killed)
}

// A reaper that starts in an outage takes what has lapsed before its first pass as of
// it; one that can make its first pass at once knows of none.
func TestWhatAReaperThatStartsKnowsOfAnOutage(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeLast(t, db, "at once", "now()", "now() - interval '1 s'")
	expirePass(t, r)
	wantLast(t, db, "at once", killed)

	late := newReaper(t, db, Config{})
	storeLast(t, db, "late", "now()", "now() - interval '1 s'")
	late.expirer.outages.asked, late.expirer.outages.failed = time.Now().Add(-minOutage-time.Second), true
	expirePass(t, late)
	wantLast(t, db, "late", unharmed)
	storeLast(t, db, "afterwards", "now()", "now()")
	expirePass(t, late)
	wantLast(t, db, "afterwards", killed)
}

// The database stood still, and no pass failed: it is seen by the time of the answer. So
// is a clock that jumps. That our own process stood still is something else.
func TestWhatIsAnOutage(t *testing.T) {
	t.Parallel()
	ours, theirs := time.Now(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		slept, answered time.Duration // since the latest answer: until we ask, and until the answer
		failed          bool
		away            time.Duration
		suspended       time.Duration // of the time until the answer, before we ask
	}{
		"all is well":                       {slept: 2 * time.Second, answered: 2 * time.Second},
		"the statement waits":               {slept: 2 * time.Second, answered: 5 * time.Second},
		"it waits too long":                 {slept: 2 * time.Second, answered: 6 * time.Second, away: 4 * time.Second},
		"the clock jumps ahead":             {slept: 2 * time.Second, answered: time.Hour, away: time.Hour - 2*time.Second},
		"the clock is set back":             {slept: 2 * time.Second, answered: -time.Hour},
		"we were stopped":                   {slept: time.Minute, answered: time.Minute},
		"the machine was suspended":         {slept: 2 * time.Second, answered: time.Hour + 2*time.Second, suspended: time.Hour},
		"a pass failed":                     {slept: 2 * time.Second, answered: 2500 * time.Millisecond, failed: true},
		"passes failed for as long as this": {slept: 2 * time.Second, answered: 4 * time.Second, failed: true, away: 4 * time.Second},
	} {
		var s outageTracker
		var params sqlgen.ExpireLeasesParams
		s.ask(ours, &params)
		if away := s.answer(ours, theirs); away != 0 {
			t.Errorf("%s: the first answer ends an outage of %s", name, away)
		}
		s.ask(clocktest.Suspended(ours.Add(tt.slept), tt.suspended), &params)
		s.failed = tt.failed
		sent := clocktest.Suspended(ours.Add(max(tt.slept, tt.answered-tt.suspended)), tt.suspended)
		s.ask(sent, &params)
		if away := s.answer(sent, theirs.Add(tt.answered)); away != tt.away {
			t.Errorf("%s: an outage of %s, want %s", name, away, tt.away)
		}
		if got := params.Seen.Time; !got.Equal(theirs) {
			t.Errorf("%s: the statement was told that the latest answer was at %s, want %s", name, got, theirs)
		}
	}
}

// A statement that is refused was answered, however long it takes to find the rows that are. What lapses meanwhile is
// not put down to an outage; what lapsed in an outage that was before still is.
func TestARefusalIsNoOutage(t *testing.T) {
	t.Parallel()
	refusal, cut := &pgconn.PgError{Code: "P0001"}, errors.New("cut")
	ours, theirs := time.Now(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		errs []error
		away time.Duration
	}{
		"refused": {[]error{refusal, refusal, refusal}, 0},
		"away":    {[]error{cut, cut, cut}, 6 * time.Second},
		"both":    {[]error{cut, refusal, refusal}, 6 * time.Second},
	} {
		var s outageTracker
		var params sqlgen.ExpireLeasesParams
		s.ask(ours, &params)
		s.answer(ours, theirs)
		for n, err := range tt.errs {
			s.ask(ours.Add(time.Duration(2*n)*time.Second), &params)
			s.fail(err)
		}
		sent := ours.Add(6 * time.Second)
		s.ask(sent, &params)
		if away := s.answer(sent, theirs.Add(6*time.Second)); away != tt.away {
			t.Errorf("%s: an outage of %s, want %s", name, away, tt.away)
		}
	}
}
