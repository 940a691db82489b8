package outbox

import (
	"bytes"
	"context"
	"crypto/md5"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// numbered returns n requests that can be told apart.
func numbered(n int) []Request {
	requests := make([]Request, n)
	for i := range requests {
		requests[i].Args = greet{fmt.Sprint(i)}
	}
	return requests
}

// copySpy counts the COPYs of a transaction and its savepoints.
type copySpy struct {
	pgx.Tx
	copies *int
}

func (s copySpy) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := s.Tx.Begin(ctx)
	return copySpy{tx, s.copies}, err
}

func (s copySpy) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	*s.copies++
	return s.Tx.CopyFrom(ctx, table, columns, rows)
}

func TestAnyNumberOfJobsIsStoredInTheOrderOfTheRequests(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, n := range []int{0, 1, 31, 32, 5001, 10_001} {
		for path, last := range map[string]Options{"COPY": {}, "INSERT": {Delay: time.Hour}} {
			t.Run(fmt.Sprintf("%d by %s", n, path), func(t *testing.T) {
				pgtest.Empty(t, db)
				requests, copies := numbered(n), 0
				if n > 0 {
					requests[n-1].Options = last
				}
				tx := copySpy{begin(t, db, pgx.ReadCommitted), &copies}
				ids, err := EnqueueMany(t.Context(), tx, requests)
				if err != nil {
					t.Fatal(err)
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				want := make([]string, n)
				for i := range want {
					want[i] = fmt.Sprintf(`{"name":"%d"}`, i)
				}
				if diff := cmp.Diff(want, payloads(t, db, ids)); diff != "" {
					t.Errorf("payloads by id (-want +got):\n%s", diff)
				}
				if got := countJobs(t, db); got != n {
					t.Errorf("got %d jobs, want %d", got, n)
				}
				if copied := copies == 1; copied != (path == "COPY" && n >= copyFrom) {
					t.Errorf("made %d COPYs", copies)
				}
				if !slices.IsSortedFunc(ids, func(a, b ID) int { return slices.Compare(a[:], b[:]) }) {
					t.Error("ids do not rise")
				}
			})
		}
	}
}

// payloads returns the payloads of the jobs with these ids, in the order of the ids.
func payloads(t *testing.T, db DB, ids []ID) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), `
		SELECT convert_from(payload, 'UTF8')
		FROM unnest($1::uuid[]) WITH ORDINALITY AS wanted (id, position)
		JOIN outbox.jobs USING (id)
		ORDER BY position`, ids)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// everyOption has each option once among many jobs that leave it out.
func everyOption(common Options) []Request {
	requests := numbered(2 * copyFrom)
	at := func(i int, set func(*Options)) {
		set(&requests[i].Options)
	}
	for i := range requests {
		requests[i].Options = common
	}
	at(1, func(o *Options) { o.Queue = "mail" })
	at(2, func(o *Options) { o.Priority = -5 })
	at(3, func(o *Options) { o.MaxAttempts = 3 })
	at(4, func(o *Options) { o.Timeout = 90 * time.Minute })
	at(5, func(o *Options) { o.Key.Name = `a "key", {\with} é` })
	at(6, func(o *Options) { o.Headers = map[string]string{"a": "b", "é": `"\u0000\`} })
	at(7, func(o *Options) { o.Tenant = tenant })
	at(11, func(o *Options) { o.Backoff = Backoff{0, time.Microsecond, engine.MaxDuration} })
	requests[8].Args = Raw{KindName: "raw", Payload: []byte("\x00\xff\\{\"\n"), ContentType: "application/x-protobuf"}
	requests[9].Args = Raw{KindName: "raw", ContentType: "application/x-protobuf"}
	requests[10].Args = Raw{KindName: "raw", Payload: []byte(" {\"b\":1,\n\"a\":\"\\u0000\",\"a\":1e400} ")}
	return requests
}

func TestCopyAndInsertStoreTheSameRows(t *testing.T) {
	t.Parallel()
	for name, common := range map[string]Options{
		"due at once": {},
		"due later":   {RunAt: time.Date(2040, 2, 3, 4, 5, 6, 7008000, time.UTC)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			copies := 0
			tx := copySpy{begin(t, db, pgx.ReadCommitted), &copies}
			requests := everyOption(common)
			copied, err := EnqueueMany(t.Context(), tx, requests)
			if err != nil || copies != 1 {
				t.Fatalf("%d COPYs, %v; want 1", copies, err)
			}
			plain := slices.Clone(requests) // what a copyStream takes
			for i := range plain {
				plain[i].Options.Backoff = nil
			}
			streamed, err := EnqueueMany(t.Context(), tx.Tx, plain)
			if err != nil || copies != 1 {
				t.Fatalf("%d COPYs, %v; want 1 that is not seen", copies, err)
			}
			inserted, err := EnqueueMany(t.Context(), tx, append(requests, Request{greet{"ada"}, Options{Delay: time.Hour}}))
			if err != nil || copies != 1 {
				t.Fatalf("%d COPYs, %v; want 1 still", copies, err)
			}
			for i, r := range requests {
				if !compared(i, len(requests)) {
					continue
				}
				single, err := Enqueue(t.Context(), tx, r.Args, r.Options)
				if err != nil {
					t.Fatal(err)
				}
				want := stored(t, tx, single)
				if !common.RunAt.IsZero() { // then due_in is what differs
					want["due_in"] = ""
				}
				ids := map[string]ID{"COPY": copied[i], "INSERT": inserted[i]}
				if requests[i].Options.Backoff == nil {
					ids["a stream"] = streamed[i]
				}
				for path, id := range ids {
					got := stored(t, tx, id)
					if !common.RunAt.IsZero() {
						got["due_in"] = ""
						if at := ask[time.Time](t, tx, `SELECT run_at FROM outbox.jobs WHERE id = $1`, id); !at.Equal(common.RunAt) {
							t.Errorf("request %d by %s: run_at = %s, want %s", i, path, at, common.RunAt)
						}
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("request %d (-by Enqueue +by %s):\n%s", i, path, diff)
					}
				}
			}
		})
	}
}

func TestABatchMayMixDueTimes(t *testing.T) {
	t.Parallel()
	at := time.Date(2040, 2, 3, 4, 5, 6, 0, time.UTC)
	for name, second := range map[string]struct {
		opts Options
		want string
	}{
		"at once and at a time":                {Options{}, "00:00:00"},
		"at once, at a time and after a while": {Options{Delay: time.Hour}, "01:00:00"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			requests := numbered(copyFrom)
			requests[1].Options.RunAt = at
			requests[2].Options = second.opts
			ids, err := EnqueueMany(t.Context(), db, requests)
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range map[int]string{0: "00:00:00", 2: second.want, 31: "00:00:00"} {
				if got := stored(t, db, ids[i])["due_in"]; got != want {
					t.Errorf("job %d is due in %s, want %s", i, got, want)
				}
			}
			if got := ask[time.Time](t, db, `SELECT run_at FROM outbox.jobs WHERE id = $1`, ids[1]); !got.Equal(at) {
				t.Errorf("run_at = %s, want %s", got, at)
			}
		})
	}
}

func TestABatchIsStoredWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]Options{"by COPY": {}, "by INSERT": {Delay: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			poison(t, db)
			requests := append(numbered(chunkSize), Request{poisoned, options}) // in the second INSERT
			conn, err := db.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			for handle, h := range map[string]DB{"a pool": db, "a connection": conn.Conn()} {
				if ids, err := EnqueueMany(t.Context(), h, requests); ids != nil || err == nil || !strings.Contains(err.Error(), "poisoned") {
					t.Errorf("through %s: %d ids, %v; want the database's error", handle, len(ids), err)
				}
				if got := countJobs(t, db); got != 0 {
					t.Errorf("through %s: got %d jobs, want 0", handle, got)
				}
			}
		})
	}
}

func TestTheTransactionIsUsableAfterAFailedBatch(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]Options{"by COPY": {}, "by INSERT": {Delay: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			poison(t, db)
			tx := begin(t, db, pgx.ReadCommitted)
			before, err := Enqueue(t.Context(), tx, greet{"ada"}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := EnqueueMany(t.Context(), tx, append(numbered(copyFrom), Request{poisoned, options})); err == nil {
				t.Fatal("the poisoned batch went through")
			}
			after, err := Enqueue(t.Context(), tx, greet{"bob"}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := payloads(t, db, []ID{before, after}); len(got) != 2 || countJobs(t, db) != 2 {
				t.Errorf("got %d jobs, %q; want the two around the batch", countJobs(t, db), got)
			}
		})
	}
}

func TestABadRequestIsNamedByItsIndex(t *testing.T) {
	t.Parallel()
	requests := numbered(3)
	requests[1].Options = Options{Queue: "no blanks", Priority: 1 << 20}
	ids, err := EnqueueMany(t.Context(), untouched{t: t}, requests)
	if ids != nil || err == nil || !strings.Contains(err.Error(), "request 1:") {
		t.Errorf("got %v, %v; want an error about request 1", ids, err)
	}
	if got := mistakes(err); len(got) != 2 {
		t.Errorf("got %v, want both mistakes", got)
	}
}

func TestABatchMayRepeatIdempotencyKeys(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	before, err := Enqueue(t.Context(), db, greet{"before"}, Options{IdempotencyKey: "a"})
	if err != nil {
		t.Fatal(err)
	}
	key := func(name, key string) Request { return Request{greet{name}, Options{IdempotencyKey: key}} }
	ids, err := EnqueueMany(t.Context(), db, []Request{
		key("0", "b"), key("1", "a"), key("2", ""), key("3", "b"), key("4", "c"),
		{greet{"5"}, Options{IdempotencyKey: "b", Tenant: tenant}},
		key("6", "a"), key("7", "b"),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []ID{ids[0], before, ids[2], ids[0], ids[4], ids[5], before, ids[0]}
	if diff := cmp.Diff(want, ids); diff != "" {
		t.Errorf("ids (-want +got):\n%s", diff)
	}
	wantPayloads := []string{`{"name":"0"}`, `{"name":"2"}`, `{"name":"4"}`, `{"name":"5"}`}
	if diff := cmp.Diff(wantPayloads, payloads(t, db, []ID{ids[0], ids[2], ids[4], ids[5]})); diff != "" {
		t.Errorf("payloads (-want +got):\n%s", diff)
	}
	if got := countJobs(t, db); got != 5 {
		t.Errorf("got %d jobs, want 5", got)
	}
}

func TestBatchesWithTheSameKeysDoNotDeadlock(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{
		"within one statement": chunkSize,
		"when the second statement of one has the keys that the first of the other took": 2 * chunkSize,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			up, down := make([]Request, n), make([]Request, n)
			for i := range n {
				up[i] = Request{greet{fmt.Sprint(i)}, Options{IdempotencyKey: fmt.Sprintf("%x-É_%d", i%3, i)}}
				down[n-1-i] = up[i]
			}
			// With the key in the middle taken, each has its first half before it waits.
			gate := begin(t, db, pgx.ReadCommitted)
			middle := up[n/2]
			if _, err := Enqueue(t.Context(), gate, middle.Args, middle.Options); err != nil {
				t.Fatal(err)
			}
			got := make([][]ID, 4)
			var wg sync.WaitGroup
			for i, requests := range [][]Request{up, down, up, down} {
				wg.Go(func() {
					var err error
					if got[i], err = EnqueueMany(t.Context(), db, requests); err != nil {
						t.Error(err)
					}
				})
			}
			pgtest.AwaitLocks(t, db, len(got))
			if err := gate.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			if t.Failed() {
				return
			}
			slices.Reverse(got[1])
			slices.Reverse(got[3])
			for i := range got {
				if !slices.Equal(got[0], got[i]) {
					t.Errorf("call %d got other ids than call 0", i)
				}
			}
			if got := countJobs(t, db); got != n {
				t.Errorf("got %d jobs, want %d", got, n)
			}
		})
	}
}

// Of a key that is twice in a batch of several chunks, the first request counts.
func TestTheFirstOfARepeatedKeyCountsAcrossChunks(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	requests := numbered(2*chunkSize + 1)
	for i := range requests {
		requests[i].Options.IdempotencyKey = fmt.Sprint("key ", (2*chunkSize-i)%chunkSize)
	}
	ids, err := EnqueueMany(t.Context(), db, requests)
	if err != nil {
		t.Fatal(err)
	}
	if got := countJobs(t, db); got != chunkSize {
		t.Errorf("got %d jobs, want %d", got, chunkSize)
	}
	for i, payload := range payloads(t, db, ids) {
		if want := fmt.Sprintf(`{"name":"%d"}`, i%chunkSize); payload != want {
			t.Fatalf("request %d answers with %s, want %s", i, payload, want)
		}
	}
}

func TestChunksAreBoundedByCountAndBytes(t *testing.T) {
	t.Parallel()
	large, headers := make([]byte, engine.MaxPayloadBytes), strings.Repeat(" ", engine.MaxHeadersBytes)
	for name, c := range map[string]struct {
		n    int
		row  row
		want []int
	}{
		"none":           {0, row{}, nil},
		"small":          {2*chunkSize + 1, row{}, []int{chunkSize, chunkSize, 1}},
		"large":          {9, row{Payload: large}, []int{4, 4, 1}},
		"large headers":  {257, row{Headers: &headers}, []int{256, 1}},
		"beyond a chunk": {2, row{Payload: make([]byte, chunkBytes+1)}, []int{1, 1}},
	} {
		rows, order := make([]row, c.n), make([]int, c.n)
		for i := range rows {
			rows[i], order[i] = c.row, c.n-1-i
		}
		var got []int
		for chunk := range chunks(rows, order) {
			got = append(got, len(chunk))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: sizes of chunks (-want +got):\n%s", name, diff)
		}
	}
}

func TestKeysAreInOrderAcrossChunksOfFewJobs(t *testing.T) {
	t.Parallel()
	requests, rows := make([]Request, 6), make([]row, 6)
	for i := range rows {
		requests[i].Options.IdempotencyKey = fmt.Sprint(9 - i)
		rows[i].Payload = make([]byte, engine.MaxPayloadBytes)
	}
	if diff := cmp.Diff([]int{5, 4, 3, 2, 1, 0}, insertOrder(requests, rows)); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	requests[3].Options.Key = KeyRules{Name: "k", Ordered: true}
	if diff := cmp.Diff([]int{0, 1, 2, 3, 4, 5}, insertOrder(requests, rows)); diff != "" {
		t.Errorf("order beside a job of an ordered key (-want +got):\n%s", diff)
	}
}

// insertSpy counts the statements that store jobs.
type insertSpy struct {
	DB
	inserts *int
}

func (s insertSpy) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if strings.Contains(sql, "INSERT INTO outbox.jobs") {
		*s.inserts++
	}
	return s.DB.Exec(ctx, sql, args...)
}

func TestLargeJobsAreStoredByAnotherInsertEach16MiB(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	requests, inserts := make([]Request, 18), 0
	for i := range requests {
		requests[i].Args = Raw{KindName: "raw", Payload: bytes.Repeat([]byte{byte(i)}, 1<<20), ContentType: "application/x-protobuf"}
		requests[i].Options.Delay = time.Hour
	}
	tx := begin(t, db, pgx.ReadCommitted)
	ids, err := EnqueueMany(t.Context(), insertSpy{tx, &inserts}, requests)
	if err != nil || inserts != 2 {
		t.Fatalf("%d INSERTs, %v; want 2", inserts, err)
	}
	for i, id := range ids {
		want := fmt.Sprintf("%x", md5.Sum(requests[i].Args.(Raw).Payload))
		if got := ask[string](t, tx, `SELECT md5(payload) FROM outbox.jobs WHERE id = $1`, id); got != want {
			t.Errorf("job %d has another payload", i)
		}
	}
}

// A BEGIN that the caller sends as a statement is the caller's to commit.
func TestManyDoNotCommitTheCallersTransaction(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	poison(t, db)
	single, err := pgx.ConnectConfig(t.Context(), db.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = single.Close(context.Background()) }()
	pooled, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pooled.Release()
	sqlDB := stdlib.OpenDBFromPool(db)
	defer func() { _ = sqlDB.Close() }()
	ofSQL, err := sqlDB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ofSQL.Close() }()
	for name, conn := range map[string]DB{"pgx.Conn": single, "pgxpool.Conn": pooled, "sql.Conn": FromSQL(ofSQL)} {
		for _, n := range []int{3, copyFrom} {
			for _, opts := range []Options{{}, {Tenant: tenant, Key: KeyRules{Name: "k"}}, {IdempotencyKey: "once"}} {
				requests := []Request{{greet{"ada"}, opts}}
				for len(requests) < n {
					requests = append(requests, Request{greet{"ada"}, Options{Tenant: opts.Tenant, Key: opts.Key}})
				}
				exec(t, conn, `BEGIN`)
				exec(t, conn, `INSERT INTO outbox.inbox (consumer, message_id) VALUES ('c', 'm')`)
				if _, err := EnqueueMany(t.Context(), conn, requests); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if _, err := EnqueueMany(t.Context(), conn, append(requests[1:], Request{Args: poisoned})); err == nil {
					t.Errorf("%s: stored what is poisoned", name)
				}
				publish := []PublishRequest{{Raw{KindName: "t", Payload: []byte("1")}, EventOptions{Tenant: opts.Tenant, Key: opts.Key.Name}}, {paid{}, EventOptions{}}}
				if _, err := PublishMany(t.Context(), conn, publish); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if within := countJobs(t, conn); within != n {
					t.Errorf("%s: the transaction sees %d jobs, want %d", name, within, n)
				}
				exec(t, conn, `ROLLBACK`)
				rows := ask[int](t, db, `SELECT count(*) FROM outbox.inbox`) + ask[int](t, db, `SELECT count(*) FROM outbox.events`)
				if jobs := countJobs(t, db); jobs != 0 || rows != 0 {
					t.Errorf("%s: %d of %d jobs and %d other rows are stored after a rollback", name, jobs, n, rows)
				}
				exec(t, db, `DELETE FROM outbox.jobs; DELETE FROM outbox.events; DELETE FROM outbox.inbox; DELETE FROM outbox.idempotency_keys`)
			}
		}
	}
}
