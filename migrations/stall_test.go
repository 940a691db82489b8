package migrations_test

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/migrations"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Producers enqueue while a database with open jobs is migrated beside a transaction that has enqueued: the migration
// gives up again and again, no producer waits behind it, and the table is not written anew. The database is one of the
// first five numbered files, and each function is made anew. In another one, with 20 000 jobs, no enqueue waits for a
// lock for longer than 50 ms. POSTHASTE_STALL_JOBS=1000000 is the measurement of docs/operate/upgrading.md, in which
// none takes longer than that, without the time for which the machine was busy; -v prints what each numbered file
// takes.
//
// Without the variable other tests may use the machine, and the test measures only locks: enqueues of 50 to 150 ms
// happen then for which the server reports no wait, so they wait for a processor.
func TestAMigrationDoesNotHoldUpEnqueues(t *testing.T) {
	s := os.Getenv("POSTHASTE_STALL_JOBS")
	if s == "" {
		migrateBesideProducers(t)
	}
	jobs, err := strconv.Atoi(cmp.Or(s, "20000"))
	if err != nil {
		t.Fatal(err)
	}
	const tries = 3 // others may use the machine, but each time?
	for try := 1; ; try++ {
		longest, waited := stallOfAMigration(t, jobs)
		if s == "" {
			longest = waited
		}
		if longest <= 50*time.Millisecond || t.Failed() {
			if s != "" {
				logTimes(t, jobs)
			}
			return
		}
		if try == tries {
			t.Fatalf("an enqueue took %s while the database was migrated, want 50 ms at most", longest)
		}
	}
}

// refusals counts the statements that gave up waiting for a lock.
type refusals struct{ n atomic.Int64 }

func (r *refusals) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (r *refusals) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if pgsession.State(data.Err) == pgsession.LockNotAvailable {
		r.n.Add(1)
	}
}

func migrateBesideProducers(t *testing.T) {
	db := oldDatabase(t, 1000)
	place := func() (node int64) {
		if err := db.QueryRow(t.Context(), `SELECT pg_relation_filenode('outbox.jobs')::bigint`).Scan(&node); err != nil {
			t.Fatal(err)
		}
		return node
	}
	before := place()
	open, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Rollback(context.WithoutCancel(t.Context())) }()
	// The migration adds a constraint to the events, of which streamed jobs have one each.
	enqueue := func(db outbox.DB) {
		t.Helper()
		for _, streamed := range []bool{true, false} {
			if _, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: "new", Payload: []byte(`{}`)}, outbox.Options{Streamed: streamed}); err != nil {
				t.Fatal(err)
			}
		}
	}
	enqueue(open)

	var gaveUp refusals
	config := db.Config()
	config.ConnConfig.Tracer = &gaveUp
	migrating := connectConfig(t, config)
	defer migrating.Close()
	config = db.Config()
	config.ConnConfig.RuntimeParams["lock_timeout"] = "20s"
	producing := connectConfig(t, config)
	defer producing.Close()
	done := make(chan error, 1)
	go func() { done <- migrate.Up(t.Context(), migrating) }()
	for deadline := time.Now().Add(5 * time.Minute); gaveUp.n.Load() < 3; {
		enqueue(producing)
		select {
		case err := <-done:
			t.Fatalf("the migration ended beside a transaction that has enqueued: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("the migration has given up %d times, want 3", gaveUp.n.Load())
		}
	}
	enqueue(producing)
	if err := open.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if after := place(); after != before {
		t.Error("the table of the jobs was written anew")
	}
}

// oldDatabase returns a database of an older release, with so many open jobs.
func oldDatabase(t *testing.T, jobs int) *pgxpool.Pool {
	t.Helper()
	db := pgtest.NewEmpty(t)
	upTo(t, db, firstRelease)
	run(t, db, fmt.Sprintf(`
		INSERT INTO outbox.jobs (id, kind, payload, created_at)
		SELECT gen_random_uuid(), 'waits', '{}', now() FROM generate_series(1, %d)`, jobs))
	run(t, db, `VACUUM ANALYZE outbox.jobs`)
	return db
}

// stallOfAMigration returns how long the longest of many enqueues takes while a database is migrated, without the time
// for which the machine was busy with something else, and for how long one waits for a lock.
func stallOfAMigration(t *testing.T, jobs int) (longest, locked time.Duration) {
	db := oldDatabase(t, jobs)
	stop := make(chan struct{})
	took := make([][]time.Duration, 2)
	var producers sync.WaitGroup
	for p := range took {
		producers.Go(func() { took[p] = enqueueUntil(t, db, stop) })
	}
	producers.Go(func() { enqueueSlowly(t, db, stop) })
	time.Sleep(200 * time.Millisecond) // producers that are at work
	stalled, lockWait := pgtest.Stalls(t, db), lockWaits(t, db)
	began := time.Now()
	if err := migrate.Up(t.Context(), db); err != nil {
		t.Error(err)
	}
	migrated, waited := time.Since(began), stalled()
	locked = lockWait()
	close(stop)
	producers.Wait()
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	t.Logf("%d open jobs; migrated in %s; %d enqueues, median %s, longest %s; the machine was busy for %s; longest wait for a lock %s",
		jobs, migrated.Round(time.Millisecond), len(all), all[len(all)/2], all[max(0, len(all)-5):], waited, locked)
	return all[len(all)-1] - waited, locked
}

// lockWaits returns a function that returns the longest wait of an enqueue for a lock since, as read every 3 ms.
func lockWaits(t *testing.T, db *pgxpool.Pool) func() time.Duration {
	ctx, stop := context.WithCancel(t.Context())
	var longest float64
	done := make(chan error, 1)
	go func() {
		for {
			var ms float64
			err := db.QueryRow(ctx, `
				SELECT coalesce(max(extract(epoch FROM clock_timestamp() - l.waitstart)) * 1000, 0)::float8
				FROM pg_locks l JOIN pg_stat_activity a USING (pid)
				WHERE NOT l.granted AND a.datname = current_database() AND a.query LIKE '%EnqueueJob%'`).Scan(&ms)
			if ctx.Err() != nil {
				err = nil
			}
			if longest = max(longest, ms); err != nil || ctx.Err() != nil {
				done <- err
				return
			}
			time.Sleep(3 * time.Millisecond)
		}
	}()
	return func() time.Duration {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		return time.Duration(longest * float64(time.Millisecond))
	}
}

// logTimes prints how long each numbered file takes with so many open jobs and acts, and nobody else at work.
func logTimes(t *testing.T, rows int) {
	db := oldDatabase(t, rows)
	fillAudit(t, db, rows)
	provider := numberedOf(t, db)
	for _, source := range provider.ListSources() {
		if source.Version <= firstRelease {
			continue
		}
		began := time.Now()
		if _, err := provider.UpTo(t.Context(), source.Version); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s took %s with %d rows", path.Base(source.Path), time.Since(began).Round(time.Millisecond), rows)
	}
}

// fillAudit stores so many acts in a database of an older release.
func fillAudit(t *testing.T, db *pgxpool.Pool, rows int) {
	t.Helper()
	run(t, db, `ALTER TABLE outbox.audit DISABLE TRIGGER USER`)
	run(t, db, fmt.Sprintf(`
		INSERT INTO outbox.audit (actor, act, tenant_id)
		SELECT 'a', 'job.retry', '00000000-0000-0000-0000-000000000001' FROM generate_series(1, %d)`, rows))
	run(t, db, `ALTER TABLE outbox.audit ENABLE TRIGGER USER`)
	run(t, db, `VACUUM ANALYZE outbox.audit`)
}

// numberedOf returns what applies the numbered files to a database, and closes it with the test.
func numberedOf(t *testing.T, db *pgxpool.Pool) *goose.Provider {
	t.Helper()
	std := stdlib.OpenDBFromPool(db)
	t.Cleanup(func() { _ = std.Close() })
	provider, err := goose.NewProvider(goose.DialectPostgres, std, migrations.FS, goose.WithDisableGlobalRegistry(true), goose.WithTableName(migrations.VersionTable))
	if err != nil {
		t.Fatal(err)
	}
	return provider
}

// enqueueUntil stores one streamed job after the other, and returns how long each took.
func enqueueUntil(t *testing.T, db *pgxpool.Pool, stop <-chan struct{}) (took []time.Duration) {
	for {
		select {
		case <-stop:
			return took
		default:
		}
		began := time.Now()
		if _, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: "new", Payload: []byte(`{}`)}, outbox.Options{Streamed: true}); err != nil {
			t.Error(err)
			return took
		}
		took = append(took, time.Since(began))
	}
}

// enqueueSlowly stores jobs in transactions that stay open for longer than a migration may wait.
func enqueueSlowly(t *testing.T, db *pgxpool.Pool, stop <-chan struct{}) {
	for {
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			if _, err := outbox.Enqueue(t.Context(), tx, outbox.Raw{KindName: "slow", Payload: []byte(`{}`)}, outbox.Options{Streamed: true}); err != nil {
				return err
			}
			time.Sleep(700 * time.Millisecond)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		select {
		case <-stop:
			return
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// firstRelease is the newest numbered file that databases of the main branch had when the chain was frozen.
const firstRelease = 5

// upTo makes a database of an older release: its numbered files, and the functions and views as an
// older build may have left them. Bodies may speak of what the numbered files do not have yet.
func upTo(t *testing.T, db *pgxpool.Pool, version int64) {
	t.Helper()
	run(t, db, `CREATE SCHEMA outbox`)
	provider := numberedOf(t, db)
	if _, err := provider.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	text := `SET LOCAL check_function_bodies = off;`
	for _, pattern := range []string{"functions/*.sql", "views/*.sql"} {
		names, err := fs.Glob(migrations.FS, pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			content, err := migrations.FS.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			text += string(content) + fmt.Sprintf("\n; INSERT INTO outbox.schema_files VALUES ('%s', sha256('older'), 0);", name)
		}
	}
	run(t, db, text+`SELECT outbox.ensure_days(14); SELECT outbox.secure();`)
	numbered, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range numbered[:version] {
		content, err := migrations.FS.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(t.Context(), `INSERT INTO outbox.schema_files VALUES ($1, sha256($2), 0)`, name, content); err != nil {
			t.Fatal(err)
		}
	}
}
