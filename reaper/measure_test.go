package reaper

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

// measureTo measures up to the end of the minute that comes so many minutes after this one: 0 is of the present one.
func measureTo(t *testing.T, db *pgxpool.Pool, minutes int) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		_, err := measure(t.Context(), tx, -time.Duration(minutes+1)*time.Minute)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// awayFromTheMinutesEnd waits until what is done in the next moments is in one minute of the database's clock.
func awayFromTheMinutesEnd(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	exec(t, db, `SELECT pg_sleep(60.05 - extract(second FROM clock_timestamp())) WHERE extract(second FROM clock_timestamp()) > 55`)
}

// close stores closed jobs: of the tenant, due so long before they started.
const closeSQL = `
	INSERT INTO outbox.history (id, tenant_id, run_at, created_at, started_at, finished_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type)
	SELECT outbox.uuid_v7(), $1::uuid, now() - $5::interval, $6::timestamptz, now(), now(), 1, $4::outbox.job_status, 'running', 1, 25, 0, 0, $2, $3, '', 'text/plain'
	FROM generate_series(1, $7::integer)`

const root, other = "00000000-0000-0000-0000-000000000001", "aaaaaaaa-0000-0000-0000-000000000001"

func TestWhatIsOpenAndWhatHappenedIsMeasured(t *testing.T) {
	t.Parallel()
	_, db := newRig(t, Config{})
	awayFromTheMinutesEnd(t, db)
	exec(t, db, `SELECT outbox.enqueue('mail', queue => 'out', tenant_id => $1) FROM generate_series(1, 3)`, other)
	exec(t, db, `SELECT outbox.enqueue('mail', queue => 'out') FROM generate_series(1, 5)`)
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, queue, payload, status, created_at) SELECT outbox.uuid_v7(), 'mail', 'out', '', s::outbox.job_status, now() - interval '1 h'
		FROM unnest('{retrying,blocked,dead,failed,created}'::text[]) AS s`)
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, queue, payload, status, epoch, attempt, lease_owner, lease_expires_at, started_at, created_at)
		SELECT outbox.uuid_v7(), 'mail', 'out', '', 'running', 1, 1, 'w', now() + interval '1 h', now(), now() - interval '1 h' FROM generate_series(1, 2)`)
	closed := func(status, waited string, created time.Duration, n int) {
		exec(t, db, closeSQL, root, "out", "mail", status, waited, time.Now().Add(-created), n)
	}
	closed("succeeded", "0.5 ms", 0, 4)       // enqueued, too: the first bucket
	closed("succeeded", "3 ms", time.Hour, 2) // the third: 2 to 4 ms
	closed("cancelled", "2 h", time.Hour, 1)  // the last
	exec(t, db, `INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, error_code, error_message)
		SELECT id, 7, 1, 'w', now(), 'smtp', '' FROM outbox.jobs WHERE status = 'retrying'
		UNION ALL (SELECT id, 7, 1, 'w', now(), 'smtp', '' FROM outbox.history WHERE status = 'succeeded' LIMIT 1)
		UNION ALL SELECT outbox.uuid_v7(), 7, 1, 'w', now(), 'of a job that was trimmed', ''`)
	exec(t, db, `INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, finished_at, error_code, error_message)
		SELECT id, 6, 1, 'w', now(), now() - interval '1 h', 'of an hour ago', '' FROM outbox.jobs WHERE status = 'retrying'`)
	measureTo(t, db, 0)

	got := rows(t, db, `SELECT format('%s %s/%s: %s waiting %s running %s dead, %s in, %s done, %s otherwise, %s failed, waits %s',
		left(tenant_id::text, 1), queue, kind, waiting, running, dead_letters, enqueued, succeeded, unsuccessful, failed, array_to_string(waits, ' ', '-'))
		FROM outbox.measures ORDER BY tenant_id`)
	want := []string{
		"0 out/mail: 7 waiting 2 running 2 dead, 9 in, 6 done, 1 otherwise, 2 failed, waits 4 - 2 - - - - - - - - - - - - - - - - - - - - 1",
		"a out/mail: 3 waiting 0 running 0 dead, 3 in, 0 done, 0 otherwise, 0 failed, waits - - - - - - - - - - - - - - - - - - - - - - - -",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
	if got := query[string](t, db, `SELECT format('%s %s', at - since, complete) FROM outbox.measured`); got != "00:01:00 t" {
		t.Errorf("got %s, want a whole minute", got)
	}
}

func rows(t *testing.T, db *pgxpool.Pool, sql string, args ...any) []string {
	t.Helper()
	found, err := db.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Whatever reapers there are, each minute is counted by one, and each job in one minute.
func TestEachMinuteIsMeasuredOnce(t *testing.T) {
	t.Parallel()
	_, db := newRig(t, Config{})
	awayFromTheMinutesEnd(t, db)
	const minutes, perMinute = 6, 7
	for minute := range minutes {
		exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload, created_at)
			SELECT outbox.uuid_v7(), 'test', '', date_trunc('minute', now()) + make_interval(mins => $1, secs => i) FROM generate_series(0, $2 - 1) AS i`, minute, perMinute)
		var reapers errgroup.Group
		for range 8 {
			reapers.Go(func() error {
				return pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
					_, err := measure(t.Context(), tx, -time.Duration(minute+1)*time.Minute)
					return err
				})
			})
		}
		if err := reapers.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	if got := query[int](t, db, `SELECT count(*) FROM outbox.measured`); got != minutes {
		t.Errorf("measured %d times, want %d", got, minutes)
	}
	if got := query[int](t, db, `SELECT sum(enqueued)::integer FROM outbox.measures`); got != minutes*perMinute {
		t.Errorf("counted %d jobs, want %d", got, minutes*perMinute)
	}
	if got := query[int](t, db, `SELECT count(*) FROM outbox.measured AS a JOIN outbox.measured AS b ON b.at = a.since`); got != minutes-1 {
		t.Errorf("%d begin where another ends, want %d", got, minutes-1)
	}
}

// The sums of an hour are made once, with the first minute that is counted after it.
func TestAnHourThatIsOverIsSummed(t *testing.T) {
	t.Parallel()
	_, db := newRig(t, Config{})
	awayFromTheMinutesEnd(t, db)
	hours := func() int { return query[int](t, db, `SELECT count(*) FROM outbox.measured_hours`) }
	measureTo(t, db, 0)
	exec(t, db, `INSERT INTO outbox.measured SELECT now() - interval '2 h' + i * interval '1 minute', now() - interval '3 h', true FROM generate_series(0, 2) AS i`)
	if got := hours(); got != 0 {
		t.Fatalf("%d hours are summed before any is over", got)
	}
	for minute := 1; minute < 5; minute++ {
		measureTo(t, db, minute)
	}
	// Those minutes are of one hour or of two, and this hour may have ended meanwhile.
	if got := hours(); got < 1 || got > 3 {
		t.Errorf("%d hours are summed, want that of the three minutes", got)
	}
}

// Minutes in which nobody measured are made up for, unless they are many.
func TestMissedMinutesAreMeasuredLater(t *testing.T) {
	t.Parallel()
	_, db := newRig(t, Config{})
	awayFromTheMinutesEnd(t, db)
	spans := func() []string {
		return rows(t, db, `SELECT ((at - since)::text) FROM outbox.measured ORDER BY at`)
	}
	measureTo(t, db, 0)
	measureTo(t, db, 4)
	measureTo(t, db, 4+16)
	if got, want := spans(), []string{"00:01:00", "00:04:00", "00:01:00"}; !slices.Equal(got, want) {
		t.Errorf("measured %v, want %v", got, want)
	}
}

// The server's clock was a year ahead for a while: what was counted then is forgotten, and does not stand for a year.
func TestAClockThatIsSetBackIsMeasuredBy(t *testing.T) {
	t.Parallel()
	_, db := newRig(t, Config{})
	awayFromTheMinutesEnd(t, db)
	exec(t, db, `INSERT INTO outbox.measured SELECT now() + interval '1 year', now() + interval '1 year' - interval '1 min', true`)
	exec(t, db, `INSERT INTO outbox.measures SELECT now() + interval '1 year', NULL, 'q', 'k', 1, 1, 1, 1, 1, 1, 1, '{}'`)
	exec(t, db, `INSERT INTO outbox.measured_hours SELECT now() + interval '1 year', 3600, true`)
	exec(t, db, `INSERT INTO outbox.measures_hours SELECT now() + interval '1 year', NULL, 'q', 'k', 1, 1, 1, 1, 1, 1, 1, '{}'`)
	exec(t, db, `INSERT INTO outbox.measured SELECT now() - interval '2 h', now() - interval '3 h', true`)
	measureTo(t, db, 0)
	for _, table := range []string{"measured", "measures", "measured_hours", "measures_hours"} {
		if got := query[int](t, db, `SELECT count(*) FROM outbox.`+table+` WHERE at > now() + interval '1 h'`); got != 0 {
			t.Errorf("%s has %d counts of next year", table, got)
		}
	}
	if minutes, hours := query[int](t, db, `SELECT count(*) FROM outbox.measured`), query[int](t, db, `SELECT count(*) FROM outbox.measured_hours`); minutes != 2 || hours != 1 {
		t.Errorf("%d minutes are counted, and %d hours summed, want 2 and 1", minutes, hours)
	}
}

func TestTheLargestPartsAreMeasuredByThemselves(t *testing.T) {
	t.Parallel()
	_, db := newRig(t, Config{})
	awayFromTheMinutesEnd(t, db)
	exec(t, db, `SELECT outbox.enqueue('large', queue => 'q' || i, tenant_id => $2) FROM generate_series(1, $1::integer) AS i, generate_series(1, 2)`, measuredParts, other)
	exec(t, db, `SELECT outbox.enqueue('small' || i) FROM generate_series(1, 7) AS i`)
	measureTo(t, db, 0)
	got := rows(t, db, `SELECT format('%s rows, %s of a tenant: %s', count(*), count(tenant_id), sum(enqueued)) FROM outbox.measures GROUP BY queue = '' ORDER BY queue = ''`)
	if want := []string{fmt.Sprintf("%d rows, %d of a tenant: %d", measuredParts, measuredParts, 2*measuredParts), "1 rows, 0 of a tenant: 7"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if query[bool](t, db, `SELECT complete FROM outbox.measured`) {
		t.Error("it says that there are no others")
	}
}

// A build is new when it was not there at the count before: at its first deploy, and when it is rolled back to.
func TestBuildsAreNotedWhenTheyCome(t *testing.T) {
	t.Parallel()
	_, db := newRig(t, Config{})
	awayFromTheMinutesEnd(t, db)
	minute := 0
	there := func(versions ...string) {
		exec(t, db, `DELETE FROM outbox.workers`)
		exec(t, db, `INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing)
			SELECT 'w' || n, version, '{}', '{}', '{}', true FROM unnest($1::text[]) WITH ORDINALITY AS v(version, n)`, versions)
		measureTo(t, db, minute)
		minute++
	}
	there("v1", "v1")
	there("v1")
	there("v1", "v2")
	there("v2")
	there("v2")
	there("v1")
	want := []string{"v1", "v2", "v1"}
	if got := rows(t, db, `SELECT version FROM outbox.builds ORDER BY since`); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMeasuresAreTrimmed(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	exec(t, db, `INSERT INTO outbox.measured SELECT now() - keepfor + i * interval '1 minute', now() - keepfor, true FROM generate_series(-150, 9) AS i, (SELECT interval '14 days' AS keepfor) AS k`)
	exec(t, db, `INSERT INTO outbox.measures SELECT at, NULL, n::text, '', 0, 0, 0, 0, 0, 0, 0, '{}' FROM outbox.measured, generate_series(1, 3) AS n`)
	exec(t, db, `INSERT INTO outbox.builds VALUES ('old', now(), now() - interval '15 days'), ('new', now(), now())`)
	if err := r.trimmer.rows.measures(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := rows(t, db, `SELECT format('%s', count(*)) FROM outbox.measured UNION ALL SELECT format('%s', count(*)) FROM outbox.measures UNION ALL SELECT version FROM outbox.builds`)
	if want := []string{"9", "27", "new"}; !slices.Equal(got, want) && !slices.Equal(got, []string{"10", "30", "new"}) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWhenTheNextMinuteCanBeMeasured(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for after, want := range map[time.Duration]time.Duration{
		0: 10 * time.Second, 9 * time.Second: 1 * time.Second, 10 * time.Second: time.Minute, 59 * time.Second: 11 * time.Second,
	} {
		if got := untilNextMeasure(begin.Add(after)); got < want || got > want+3*time.Second {
			t.Errorf("%s after the minute began: %s, want %s and a little", after, got, want)
		}
	}
}
