package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestAJobExistsExactlyWhenTheTransactionCommits(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, c := range map[string]struct {
		end  func(context.Context, pgx.Tx) error
		want int
	}{
		"it commits":                  {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, 1},
		"it rolls back":               {func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, 0},
		"its connection is cut":       {func(ctx context.Context, tx pgx.Tx) error { return tx.Conn().Close(ctx) }, 0},
		"a later statement fails":     {failThenCommit, 0},
		"its savepoint is taken back": {rollbackToSavepoint, 0},
	} {
		for idempotency, opts := range map[string]Options{"": {}, ", with an idempotency key": {IdempotencyKey: "k"}} {
			t.Run(name+idempotency, func(t *testing.T) {
				pgtest.Empty(t, db)
				tx := begin(t, db, pgx.ReadCommitted)
				exec(t, tx, `SAVEPOINT before`)
				if _, err := Enqueue(t.Context(), tx, greet{"ada"}, opts); err != nil {
					t.Fatal(err)
				}
				if got := countJobs(t, db); got != 0 {
					t.Errorf("others see %d jobs before the end, want 0", got)
				}
				if err := c.end(t.Context(), tx); err != nil {
					t.Fatal(err)
				}
				if got := countJobs(t, db); got != c.want {
					t.Errorf("got %d jobs, want %d", got, c.want)
				}
			})
		}
	}
}

func failThenCommit(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `SELECT 1/0`); err == nil {
		return errors.New("a division by zero went through")
	}
	if err := tx.Commit(ctx); !errors.Is(err, pgx.ErrTxCommitRollback) {
		return fmt.Errorf("commit of a failed transaction = %w", err)
	}
	return nil
}

func rollbackToSavepoint(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `ROLLBACK TO SAVEPOINT before`); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// tenant is some tenant that is not the root.
var tenant = ID{0: 7, 15: 7}

// optionCases is each option and how it is stored. The path through which a job
// goes must not matter: other tests run them too.
var optionCases = map[string]struct {
	opts Options
	want map[string]any
}{
	"defaults":                     {Options{}, nil},
	"queue":                        {Options{Queue: "mail/eu:1.a_b-c"}, map[string]any{"queue": "mail/eu:1.a_b-c"}},
	"highest priority":             {Options{Priority: 32767}, map[string]any{"priority": 32767.}},
	"lowest priority":              {Options{Priority: -32768}, map[string]any{"priority": -32768.}},
	"delay":                        {Options{Delay: 90 * time.Second}, map[string]any{"due_in": "00:01:30"}},
	"longest delay":                {Options{Delay: engine.MaxDuration}, map[string]any{"due_in": "36500 days"}},
	"shortest delay":               {Options{Delay: time.Microsecond}, map[string]any{"due_in": "00:00:00.000001"}},
	"max attempts":                 {Options{MaxAttempts: 32767}, map[string]any{"max_attempts": 32767.}},
	"one attempt":                  {Options{MaxAttempts: 1}, map[string]any{"max_attempts": 1.}},
	"timeout":                      {Options{Timeout: 26*time.Hour + time.Millisecond}, map[string]any{"timeout": "26:00:00.001"}},
	"backoff":                      {Options{Backoff: Backoff{0, 1500 * time.Millisecond, 26*time.Hour + time.Microsecond}}, map[string]any{"backoff": []any{"00:00:00", "00:00:01.5", "26:00:00.000001"}}},
	"no backoff in a list":         {Options{Backoff: Backoff{}}, nil},
	"key":                          {Options{Key: KeyRules{Name: "order 7\té\u2028"}}, map[string]any{"key": "order 7\té\u2028"}},
	"idempotency key":              {Options{IdempotencyKey: "order 7"}, nil},
	"headers":                      {Options{Headers: map[string]string{"traceparent": "00-1", "odd": "\u2028<\x01"}}, map[string]any{"headers": map[string]any{"traceparent": "00-1", "odd": "\u2028<\x01"}}},
	"no headers in a map":          {Options{Headers: map[string]string{}}, nil},
	"max active":                   {Options{Key: KeyRules{Name: "k", MaxActive: 1000}}, map[string]any{"key": "k", "max_active": 1000.}},
	"max active of one":            {Options{Key: KeyRules{Name: "k", MaxActive: 1}}, map[string]any{"key": "k"}},
	"sequence":                     {Options{Key: KeyRules{Name: "k", Ordered: true, Sequence: 7}}, map[string]any{"key": "k", "ordered": true, "line_position": 7.}},
	"skip the dead":                {Options{Key: KeyRules{Name: "k", Ordered: true, Sequence: 1, OnDeath: SkipDead}}, map[string]any{"key": "k", "ordered": true, "line_position": 1., "on_death": "skip"}},
	"park":                         {Options{Key: KeyRules{Name: "k", Ordered: true, Sequence: 1, OnDeath: ParkKey, ParkAfter: time.Hour}}, map[string]any{"key": "k", "ordered": true, "line_position": 1., "on_death": "park", "park_after": "01:00:00"}},
	"fail stale":                   {Options{Key: KeyRules{Name: "k", OnLapse: FailStale}}, map[string]any{"key": "k", "on_lapse": "fail-stale"}},
	"tenant":                       {Options{Tenant: tenant}, map[string]any{"tenant_id": tenant.String()}},
	"tenant and a key of that one": {Options{Tenant: tenant, IdempotencyKey: "order 7"}, map[string]any{"tenant_id": tenant.String()}},
}

func TestEveryOptionIsStored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, c := range optionCases {
		t.Run(name, func(t *testing.T) {
			id, err := Enqueue(t.Context(), db, greet{"ada"}, c.opts)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(wantRow(c.want), stored(t, db, id)); diff != "" {
				t.Errorf("row (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRunAtIsStoredToTheMicrosecond(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, want := range []time.Time{
		time.Date(2031, 5, 4, 3, 2, 1, 123456000, time.FixedZone("east", 5*3600)),
		time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC),
	} {
		id, err := Enqueue(t.Context(), db, greet{"ada"}, Options{RunAt: want})
		if err != nil {
			t.Fatal(err)
		}
		if got := ask[time.Time](t, db, `SELECT run_at FROM outbox.jobs WHERE id = $1`, id); !got.Equal(want) {
			t.Errorf("run_at = %s, want %s", got, want)
		}
	}
}

func TestJobsAreDueByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tx := begin(t, db, pgx.ReadCommitted)
	exec(t, tx, `SELECT pg_sleep(0.02)`) // now() of the transaction is then 20 ms ago
	before := ask[time.Time](t, tx, `SELECT clock_timestamp()`)
	id, err := Enqueue(t.Context(), tx, greet{"ada"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	after := ask[time.Time](t, tx, `SELECT clock_timestamp()`)
	if got := ask[time.Time](t, tx, `SELECT run_at FROM outbox.jobs WHERE id = $1`, id); got.Before(before) || got.After(after) {
		t.Errorf("run_at = %s, want from %s to %s", got, before, after)
	}
}

func TestEnqueueTakesEveryHandle(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	producer := NewProducer(db, "")
	defer func() { _ = producer.Flush(context.Background()) }()
	wrapped, err := producer.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer wrapped.Rollback(t.Context())

	for name, handle := range map[string]DB{
		"pgx.Tx": begin(t, db, pgx.ReadCommitted), "pgx.Conn": conn.Conn(), "pgxpool.Conn": conn,
		"pgxpool.Pool": db, "a producer's transaction": wrapped,
	} {
		t.Run(name, func(t *testing.T) { storesAndFinds(t, handle, name) })
	}
}

// storesAndFinds enqueues through db in every way and looks for the jobs there.
func storesAndFinds(t *testing.T, db DB, idempotencyKey string) {
	t.Helper()
	one, err := Enqueue(t.Context(), db, greet{"ada"}, Options{Key: KeyRules{Name: "k"}, Headers: map[string]string{"a": "b"}, Timeout: time.Second, Delay: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	want := wantRow(map[string]any{"key": "k", "headers": map[string]any{"a": "b"}, "timeout": "00:00:01", "due_in": "00:00:01"})
	if diff := cmp.Diff(want, stored(t, db, one)); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}

	once := Options{IdempotencyKey: idempotencyKey}
	first, err1 := Enqueue(t.Context(), db, greet{"ada"}, once)
	again, err2 := Enqueue(t.Context(), db, greet{"bob"}, once)
	if err := errors.Join(err1, err2); err != nil || first != again || first.IsZero() {
		t.Errorf("with the same idempotency key: %s, then %s, %v; want the same", first, again, err)
	}

	many := make([]Request, copyFrom)
	for i := range many {
		many[i].Args = greet{fmt.Sprint(i)}
	}
	for _, requests := range [][]Request{many, many[:2], append(many[:2:2], Request{greet{"ada"}, once})} {
		ids, err := EnqueueMany(t.Context(), db, requests)
		if err != nil || len(ids) != len(requests) {
			t.Fatalf("%d ids of %d requests, %v", len(ids), len(requests), err)
		}
		for i, id := range ids[:2] {
			want := wantRow(map[string]any{"payload": fmt.Sprintf(`{"name":"%d"}`, i)})
			if diff := cmp.Diff(want, stored(t, db, id)); diff != "" {
				t.Errorf("row %d of %d (-want +got):\n%s", i, len(ids), diff)
			}
		}
		if len(ids) == 3 && ids[2] != first {
			t.Errorf("the repeat in a batch answers %s, want %s", ids[2], first)
		}
	}
}

func TestPlainEnqueuesDoNotWaitForOneAnother(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	requests := make([]Request, copyFrom)
	for i := range requests {
		requests[i].Args = greet{"ada"}
	}
	var open []pgx.Tx
	for range 3 {
		tx := begin(t, db, pgx.ReadCommitted)
		exec(t, tx, `SET LOCAL lock_timeout = '500ms'`)
		for i := range 3 {
			if _, err := Enqueue(t.Context(), tx, greet{"ada"}, Options{Key: KeyRules{Name: "same"}}); err != nil {
				t.Errorf("with %d transactions open: %v", len(open), err)
			}
			if _, err := EnqueueMany(t.Context(), tx, requests[i:]); err != nil { // by COPY, then by INSERT
				t.Errorf("with %d transactions open: %v", len(open), err)
			}
		}
		open = append(open, tx)
	}
}

func TestARepeatReturnsTheFirstJobAndChangesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	opts := Options{IdempotencyKey: "order 7"}
	first, err := Enqueue(t.Context(), db, greet{"ada"}, opts)
	if err != nil {
		t.Fatal(err)
	}
	again := Options{IdempotencyKey: "order 7", Queue: "other", Priority: 5, MaxAttempts: 2, Delay: time.Hour, Key: KeyRules{Name: "k"}}
	for range 3 {
		if got, err := Enqueue(t.Context(), db, greet{"bob"}, again); err != nil || got != first {
			t.Errorf("got %s, %v; want %s", got, err, first)
		}
	}
	if diff := cmp.Diff(wantRow(nil), stored(t, db, first)); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	if got := countJobs(t, db); got != 1 {
		t.Errorf("got %d jobs, want 1", got)
	}

	exec(t, db, `DELETE FROM outbox.jobs`) // also when the job is long gone
	if got, err := Enqueue(t.Context(), db, greet{"bob"}, opts); err != nil || got != first || countJobs(t, db) != 0 {
		t.Errorf("after the job has gone: got %s, %v; want %s", got, err, first)
	}
}

func TestIdempotencyKeysAreUniquePerTenantAndKind(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	different := []Request{
		{greet{"ada"}, Options{IdempotencyKey: "k"}},
		{greet{"ada"}, Options{IdempotencyKey: "K"}},
		{greet{"ada"}, Options{IdempotencyKey: "k "}},
		{greet{"ada"}, Options{IdempotencyKey: "k", Tenant: tenant}},
		{Raw{KindName: "greet.two", Payload: []byte("1")}, Options{IdempotencyKey: "k"}},
		{greet{"ada"}, Options{Key: KeyRules{Name: "k"}}},
	}
	first, seen := make([]ID, len(different)), map[ID]bool{}
	for i, r := range different {
		id, err := Enqueue(t.Context(), db, r.Args, r.Options)
		if err != nil {
			t.Fatal(err)
		}
		first[i], seen[id] = id, true
	}
	if len(seen) != len(different) {
		t.Errorf("%d requests made %d jobs: %v", len(different), len(seen), first)
	}

	different, first = different[:len(different)-1], first[:len(first)-1] // the last has no key
	again := make([]ID, len(different))
	for i, r := range different {
		var err error
		if again[i], err = Enqueue(t.Context(), db, r.Args, r.Options); err != nil {
			t.Fatal(err)
		}
	}
	many, err := EnqueueMany(t.Context(), db, different)
	if err != nil {
		t.Fatal(err)
	}
	for by, ids := range map[string][]ID{"Enqueue": again, "EnqueueMany": many} {
		if diff := cmp.Diff(first, ids); diff != "" {
			t.Errorf("repeats by %s (-want +got):\n%s", by, diff)
		}
	}
}

func TestAHundredConcurrentCallersMakeOneJob(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(pgx.Tx, context.Context) error{
		"when the first commits": pgx.Tx.Commit, "when the first rolls back": pgx.Tx.Rollback,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const atOnce = 18
			db := pgtest.New(t)
			pool := poolOf(t, db, atOnce)
			first := begin(t, db, pgx.ReadCommitted)
			firstID, err := Enqueue(t.Context(), first, greet{"ada"}, Options{IdempotencyKey: "k"})
			if err != nil {
				t.Fatal(err)
			}

			ids := make([]ID, 100)
			var callers sync.WaitGroup
			for i := range ids {
				callers.Go(func() {
					var err error
					if i%2 == 0 {
						ids[i], err = Enqueue(t.Context(), pool, greet{"ada"}, Options{IdempotencyKey: "k"})
					} else {
						var many []ID
						many, err = EnqueueMany(t.Context(), pool, []Request{{greet{"ada"}, Options{IdempotencyKey: "k"}}})
						if err == nil {
							ids[i] = many[0]
						}
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			pgtest.AwaitLocks(t, db, atOnce)
			if err := end(first, t.Context()); err != nil {
				t.Fatal(err)
			}
			callers.Wait()

			job := ask[ID](t, db, `SELECT id FROM outbox.jobs`)
			for i, id := range ids {
				if id != job {
					t.Errorf("caller %d got %s, want %s", i, id, job)
				}
			}
			if committed := name == "when the first commits"; (job == firstID) != committed {
				t.Errorf("the job is %s, the first was %s", job, firstID)
			}
			if got := countJobs(t, db); got != 1 {
				t.Errorf("got %d jobs, want 1", got)
			}
		})
	}
}

// poolOf returns another pool on the same database, of so many connections.
func poolOf(t *testing.T, db *pgxpool.Pool, connections int32) *pgxpool.Pool {
	t.Helper()
	config := db.Config()
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// A transaction that cannot see who used the key since its snapshot must neither
// store a second job nor make up an id.
func TestAKeyThatTheSnapshotCannotSeeIsAnError(t *testing.T) {
	t.Parallel()
	db, opts := pgtest.New(t), Options{IdempotencyKey: "k"}
	for name, enqueue := range map[string]func(context.Context, DB) (ID, error){
		"Enqueue": func(ctx context.Context, db DB) (ID, error) { return Enqueue(ctx, db, greet{"ada"}, opts) },
		"EnqueueMany": func(ctx context.Context, db DB) (ID, error) {
			ids, err := EnqueueMany(ctx, db, []Request{{greet{"ada"}, opts}})
			return append(ids, ID{})[0], err
		},
		"outbox.enqueue": func(ctx context.Context, db DB) (id ID, err error) {
			err = db.QueryRow(ctx, `SELECT outbox.enqueue('greet', '{}', idempotency_key => 'k')`).Scan(&id)
			return id, err
		},
	} {
		for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
			t.Run(name+" in "+string(level), func(t *testing.T) {
				pgtest.Empty(t, db)
				late := begin(t, db, level)
				exec(t, late, `SELECT 1`) // takes the snapshot
				first, err := enqueue(t.Context(), db)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := enqueue(t.Context(), late); sqlState(err) != "40001" {
					t.Errorf("got %s, %v; want a serialization failure", got, err)
				}
				if got, err := enqueue(t.Context(), begin(t, db, level)); err != nil || got != first {
					t.Errorf("with a new snapshot got %s, %v; want %s", got, err, first)
				}
			})
		}
	}
}

// trimmer frees every idempotency key but one, as the reaper does, before the first look for one.
type trimmer struct {
	DB
	trimmed atomic.Bool
}

func (d *trimmer) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if strings.Contains(sql, "name: FindIdempotencyKey") && d.trimmed.CompareAndSwap(false, true) {
		if _, err := d.Exec(ctx, `DELETE FROM outbox.idempotency_keys WHERE key <> 'stays'`); err != nil {
			return nil, err
		}
	}
	return d.DB.Query(ctx, sql, args...)
}

// The job that used a key first may be trimmed between the INSERT, which meets the key, and the look for the job.
func TestAKeyThatIsFreedMeanwhileIsUsed(t *testing.T) {
	t.Parallel()
	for name, enqueue := range map[string]func(context.Context, DB, ...string) ([]ID, error){
		"Enqueue": func(ctx context.Context, db DB, keys ...string) (ids []ID, err error) {
			for _, key := range keys {
				id, err := Enqueue(ctx, db, greet{"ada"}, Options{IdempotencyKey: key})
				if err != nil {
					return nil, err
				}
				ids = append(ids, id)
			}
			return ids, nil
		},
		"EnqueueMany": func(ctx context.Context, db DB, keys ...string) ([]ID, error) {
			requests := []Request{{greet{"ada"}, Options{}}}
			for _, key := range keys {
				requests = append(requests, Request{greet{"ada"}, Options{IdempotencyKey: key}})
			}
			ids, err := EnqueueMany(ctx, db, requests)
			if err != nil {
				return nil, err
			}
			return ids[1:], nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			first, err := enqueue(t.Context(), db, "goes", "stays")
			if err != nil {
				t.Fatal(err)
			}
			trims := &trimmer{DB: db}
			again, err := enqueue(t.Context(), trims, "goes", "stays", "goes")
			if err != nil || !trims.trimmed.Load() {
				t.Fatalf("got %v, %v; trimmed %t", again, err, trims.trimmed.Load())
			}
			if again[0] == first[0] || again[0] != again[2] || again[1] != first[1] {
				t.Errorf("got %v after %v; want a new job for the first key, and the old one for the second", again, first)
			}
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE id = $1`, again[0]); n != 1 {
				t.Error("the new job is not stored")
			}
		})
	}
}

// The jobs of a key are stored in the order of the requests: the first is not stored behind the second.
func TestAJobWithAKeyIsNotStoredBehindLaterOnes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := Enqueue(t.Context(), db, greet{"ada"}, Options{IdempotencyKey: "goes"}); err != nil {
		t.Fatal(err)
	}
	ordered := KeyRules{Name: "k", Ordered: true}
	tx := begin(t, db, pgx.ReadCommitted)
	trims := &trimmer{DB: tx}
	_, err := EnqueueMany(t.Context(), trims, []Request{
		{greet{"ada"}, Options{Key: ordered, IdempotencyKey: "goes"}}, {greet{"bob"}, Options{Key: ordered}},
	})
	if err == nil || !trims.trimmed.Load() {
		t.Errorf("stored, and trimmed %t; want an error, after which the caller tries again", trims.trimmed.Load())
	}
}

func TestWithoutTheSchemaTheErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	many := make([]Request, copyFrom)
	for i := range many {
		many[i].Args = greet{"ada"}
	}
	for name, enqueue := range map[string]func() error{
		"Enqueue": func() error { _, err := Enqueue(t.Context(), db, greet{"ada"}, Options{}); return err },
		"with an idempotency key": func() error {
			_, err := Enqueue(t.Context(), db, greet{"ada"}, Options{IdempotencyKey: "k"})
			return err
		},
		"EnqueueMany by INSERT": func() error { _, err := EnqueueMany(t.Context(), db, many[:1]); return err },
		"EnqueueMany by COPY":   func() error { _, err := EnqueueMany(t.Context(), db, many); return err },
	} {
		if err := enqueue(); err == nil || !strings.Contains(err.Error(), "posthaste migrate up") {
			t.Errorf("%s: %v, want a hint to migrate", name, err)
		}
	}
}
