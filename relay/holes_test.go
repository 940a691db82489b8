package relay

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// Messages wait for a destination at thousands of holes. A page looks at those that fill it, and not at the others:
// with all holes in each page, the cost would grow with the square of their number.
func TestAPageLooksAtTheHolesThatFillIt(t *testing.T) {
	t.Parallel()
	const holes, most = 5_000, 100
	config := pgtest.New(t).Config().Copy()
	config.MaxConns = 1 // the server counts look-ups for each connection, and adds them up when asked to
	db, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
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
	lookups := func() (n int) {
		t.Helper()
		if err := db.QueryRow(t.Context(), `SELECT pg_stat_force_next_flush()::text`).Scan(new(string)); err != nil {
			t.Fatal(err)
		}
		if err := db.QueryRow(t.Context(), `SELECT sum(idx_scan) FROM pg_stat_user_indexes
			WHERE relname LIKE 'events\_%'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := lookups()
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
	if n, want := lookups()-before, 10*(most+2)*days; n > want {
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
