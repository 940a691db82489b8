package relay

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// oneConnection returns a database with one connection: the server counts look-ups for each, and adds them up when
// asked to.
func oneConnection(t *testing.T) *pgxpool.Pool {
	t.Helper()
	config := pgtest.New(t).Config().Copy()
	config.MaxConns = 1
	db, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// lookups returns how often the server has looked into an index of the log.
func lookups(t *testing.T, db *pgxpool.Pool) (n int) {
	t.Helper()
	if err := db.QueryRow(t.Context(), `SELECT pg_stat_force_next_flush()::text`).Scan(new(string)); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRow(t.Context(), `SELECT coalesce(sum(idx_scan), 0) FROM pg_stat_user_indexes
		WHERE relname LIKE 'events\_%'`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// An open transaction leaves as many holes to each of two sinks as are remembered. To list the sinks, or to find for
// how long one has waited, looks at ten thousand of each.
func TestSinksWithManyHolesAreListedInTime(t *testing.T) {
	t.Parallel()
	db := oneConnection(t)
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox.sinks (sink, top, holes)
		SELECT concat('s', n), 200000, holes
		FROM generate_series(1, 2) AS n, (
			SELECT range_agg(int8range(i, i + 1)) AS holes FROM generate_series(1, 200000, 2) AS i) AS many`); err != nil {
		t.Fatal(err)
	}
	q := sqlgen.New(db)
	before := lookups(t, db)
	if sinks, err := q.ListSinks(t.Context()); err != nil || len(sinks) != 2 || sinks[1].Holes != 100_000 {
		t.Errorf("the sinks are %+v, %v, want two with 100,000 holes", sinks, err)
	}
	if _, err := q.SinkWaits(t.Context(), "s1"); err != nil {
		t.Error(err)
	}
	looked := lookups(t, db)
	if _, err := db.Exec(t.Context(), `SELECT FROM outbox.events WHERE position BETWEEN 1 AND 1`); err != nil {
		t.Fatal(err)
	}
	one := lookups(t, db) - looked // in each day of the log
	if n := (looked - before) / max(1, one); n < 30_000 || n > 30_010 {
		t.Errorf("%d holes are looked at, want 30,000", n)
	}
}

// Messages wait for a destination at thousands of holes. A page looks at those that fill it, and not at the others:
// with all holes in each page, the cost would grow with the square of their number.
func TestAPageLooksAtTheHolesThatFillIt(t *testing.T) {
	t.Parallel()
	const holes, most = 5_000, 100
	db := oneConnection(t)
	var c cursor
	if err := db.QueryRow(t.Context(), `WITH stored AS (
			INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload)
			SELECT gen_random_uuid(), gen_random_uuid(), 't', 'text/plain', 'x' FROM generate_series(1, $1 * 2)
			RETURNING position
		) SELECT max(position) FROM stored`, holes).Scan(&c.top); err != nil {
		t.Fatal(err)
	}
	for i := range int64(holes) {
		at := c.top - 2*(holes-i) + 1
		c.holes = append(c.holes, hole{low: at, high: at})
	}
	l := logReader{pool: db}
	if err := db.QueryRow(t.Context(), `SELECT outbox.timeline()`).Scan(&l.timeline); err != nil {
		t.Fatal(err)
	}
	before := lookups(t, db)
	got := 0
	for range 10 {
		read, err := l.read(t.Context(), c, most, false)
		if err != nil {
			t.Fatal(err)
		}
		got += len(read.events)
		c = read.after
	}
	if got != 10*most || len(c.holes) != holes-got {
		t.Errorf("%d events are read, and %d holes left; want %d and %d", got, len(c.holes), 10*most, holes-10*most)
	}
	var days int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM pg_inherits
		WHERE inhparent = 'outbox.events'::regclass`).Scan(&days); err != nil {
		t.Fatal(err)
	}
	if n, want := lookups(t, db)-before, 10*(most+2)*days; n > want {
		t.Errorf("%d look-ups, want at most %d: one for each event and day", n, want)
	}
}

// Messages that wait are neighbours, so their holes are runs: a page looks at as many as fill it.
func TestAPageLooksAtTheRunsThatFillIt(t *testing.T) {
	t.Parallel()
	const runs, length, most = 500, 9, 100
	config := pgtest.New(t).Config().Copy()
	config.MaxConns = 1
	db, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	var c cursor
	l := logReader{pool: db}
	if err := db.QueryRow(t.Context(), `WITH stored AS (
			INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload)
			SELECT gen_random_uuid(), gen_random_uuid(), 't', 'text/plain', 'x' FROM generate_series(1, $1 * ($2 + 1))
			RETURNING position
		) SELECT max(position), outbox.timeline() FROM stored`, runs, length).Scan(&c.top, &l.timeline); err != nil {
		t.Fatal(err)
	}
	for i := range int64(runs) {
		low := c.top - (runs-i)*(length+1) + 1
		c.holes = append(c.holes, hole{low: low, high: low + length - 1})
	}
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload)
		VALUES (gen_random_uuid(), gen_random_uuid(), 'newer', 'text/plain', 'x')`); err != nil {
		t.Fatal(err)
	}
	fetched := func() (n int) {
		t.Helper()
		if err := db.QueryRow(t.Context(), `SELECT pg_stat_force_next_flush()::text`).Scan(new(string)); err != nil {
			t.Fatal(err)
		}
		if err := db.QueryRow(t.Context(), `SELECT sum(idx_tup_fetch)::bigint FROM pg_stat_user_tables
			WHERE relname LIKE 'events\_%'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	read, err := l.read(t.Context(), c, most, false)
	if err != nil || !read.late || len(read.events) != most {
		t.Fatalf("the first page is %+v, %v, want one that is full of events at holes", read, err)
	}
	before := fetched()
	if read, err = l.read(t.Context(), read.after, most, true); err != nil || !read.late || len(read.events) != most {
		t.Fatalf("the second page is %+v, %v, want one that is full of events at holes", read, err)
	}
	if n, want := fetched()-before, most+2*length; n > want {
		t.Errorf("%d events are fetched for a page of %d, want at most %d", n, most, want)
	}
	for read.full && err == nil {
		full := read.late && len(read.events) == most
		if read, err = l.read(t.Context(), read.after, most, full); err == nil && full && read.after.top > c.top {
			t.Error("a page that follows one full of events at holes has a newer one")
		}
	}
	if err != nil || len(read.events) != 1 || read.events[0].Topic != "newer" {
		t.Errorf("the last page is %+v, %v, want the newer event", read, err)
	}
}

// An event waits behind more empty holes than a page has events: it is found.
func TestAPageLooksBehindHolesThatAreEmpty(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	l := logReader{pool: db}
	var at int64
	if _, err := db.Exec(t.Context(), `SELECT setval('outbox.events_position_seq', 1000)`); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRow(t.Context(), `WITH stored AS (
			INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload)
			VALUES (gen_random_uuid(), gen_random_uuid(), 't', 'text/plain', 'x') RETURNING position
		) SELECT position, outbox.timeline() FROM stored`).Scan(&at, &l.timeline); err != nil {
		t.Fatal(err)
	}
	c := cursor{top: at + 1}
	for i := range int64(60) {
		c.holes = append(c.holes, hole{low: at - 120 + 2*i, high: at - 120 + 2*i})
	}
	c.holes = append(c.holes, hole{low: at, high: at})
	read, err := l.read(t.Context(), c, 10, false)
	if err != nil || len(read.events) != 1 || read.events[0].Position != at {
		t.Errorf("%d events are read, nothing of the event behind 60 empty holes: %v", len(read.events), err)
	}
}

// After a long transaction there are more holes to look at than there is time for: a page looks at some of them, later
// ones at the others, and newer events come after what is at the last of them.
func TestAPageLooksAtSomeOfManyHoles(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	l := logReader{pool: db}
	var at int64
	if _, err := db.Exec(t.Context(), `SELECT setval('outbox.events_position_seq', 10000)`); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRow(t.Context(), `WITH stored AS (
			INSERT INTO outbox.events (id, tenant_id, topic, content_type, payload)
			SELECT gen_random_uuid(), gen_random_uuid(), 't', 'text/plain', 'x' FROM generate_series(1, 2) RETURNING position
		) SELECT min(position), outbox.timeline() FROM stored`).Scan(&at, &l.timeline); err != nil {
		t.Fatal(err)
	}
	c := cursor{top: at}
	for i := at - int64(6*maxLook); i <= at; i += 2 {
		c.holes = append(c.holes, hole{low: i, high: i})
	}
	var got []int64
	var err error
	pages := 0
	for read := (page{more: true}); read.more && pages < 100; pages++ {
		if read, err = l.read(t.Context(), c, 10, read.late); err != nil {
			t.Fatal(err)
		}
		if read.more && len(read.events) > 0 {
			t.Errorf("page %d has events, and there may be more at holes before them", pages)
		}
		got, c = append(got, positions(read.events)...), read.after
	}
	if pages < 3 || !slices.Equal(got, []int64{at}) {
		t.Errorf("in %d pages are the events at %d, want that at %d in three pages or more", pages, got, at)
	}
	c.holes = nil // those of other tests' transactions
	if read, err := l.read(t.Context(), c, 10, false); err != nil || !slices.Equal(positions(read.events), []int64{at + 1}) {
		t.Errorf("the next page has the events at %d, %v, want the newer one", positions(read.events), err)
	}
}

// A transaction has stored two events of a key, and ends between the query for running transactions and the look at the
// holes, when only the hole of the second one was left to look at: both come, in their order.
func TestATransactionIsNotSeenInParts(t *testing.T) {
	t.Parallel()
	const first, last = 5000, 8000
	db := pgtest.New(t)
	config := db.Config().Copy()
	hook := &onQuery{name: "EventsAtHoles"}
	config.ConnConfig.Tracer = hook
	traced, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(traced.Close)
	l := logReader{pool: traced}
	if err := db.QueryRow(t.Context(), `SELECT setval('outbox.events_position_seq', 10000)::text, outbox.timeline()`).Scan(
		new(string), &l.timeline); err != nil {
		t.Fatal(err)
	}
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO outbox.events (position, id, tenant_id, topic, key, content_type, payload)
		SELECT position, gen_random_uuid(), gen_random_uuid(), 't', 'k', 'text/plain', 'x' FROM unnest($1::bigint[]) AS position`,
		[]int64{first, last}); err != nil {
		t.Fatal(err)
	}
	c := cursor{top: 10000}
	for i := int64(first); i <= last; i += 2 {
		c.holes = append(c.holes, hole{low: i, high: i})
	}
	if c, err = l.number(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	var got []int64
	for pages, read := 0, (page{more: true}); read.more || len(got) < 2 && pages < 10; pages++ {
		if read, err = l.read(t.Context(), c, 100, read.more); err != nil {
			t.Fatal(err)
		}
		got, c = append(got, positions(read.events)...), read.after
		if pages == 0 {
			hook.do = func() {
				if err := tx.Commit(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if !slices.Equal(got, []int64{first, last}) {
		t.Errorf("the events come in the order %d, want %d and %d", got, first, last)
	}
}

// onQuery does something once, before a query begins.
type onQuery struct {
	name string
	do   func()
}

func (q *onQuery) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if do := q.do; do != nil && strings.Contains(data.SQL, "-- name: "+q.name+" ") {
		q.do = nil
		do()
	}
	return ctx
}

func (*onQuery) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
