package outboxtest

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Effects select what [CrashEverywhere] compares of what a handler leaves behind. It always compares the jobs that the
// handler enqueues, the events that it publishes, and the end of its own job.
type Effects struct {
	Tables []string // by name: their rows, without columns filled by sequences, clocks or chance
	Ignore []string // columns to leave out, as "table.column"

	// State returns further effects, in the database or outside it; CrashEverywhere compares its JSON. nil means none.
	State func(ctx context.Context, db outbox.DB) (any, error)
	// Reset discards the effects outside the database. CrashEverywhere calls it before each run. nil does nothing.
	Reset func()

	Options outbox.Options // of the job
}

// CrashEverywhere checks that the worker's handler may be killed anywhere. It enqueues the job and runs it once without
// a crash. Then it runs the job again and again from the same starting point, each time in a process that is killed at
// the next boundary: before a statement or a COMMIT is executed, or after its execution and before its answer arrives;
// before and after the result of a step, a checkpoint or the outcome is stored. The crash discards uncommitted work,
// and no line of the handler runs after it, not even deferred functions; goroutines that it has started
// stop at their next statement, if they pass on the handler's context. Then the lease lapses and another process runs
// the job to its end. The two processes together must leave behind what the run without a crash left: see [Effects].
//
// CrashEverywhere fails the test once for each boundary at which this does not hold, and shows the difference. It
// returns the number of boundaries. It restores the database.
//
// A crash between two effects outside the database is found only if a boundary lies between them, such as that of a
// [dispatcher.Step]. A handler that waits for something that the killed one has locked in memory fails the test after
// ten seconds. Other due jobs of the worker would run too: drain them first.
func CrashEverywhere[T outbox.Args](t testing.TB, w *Worker, args T, effects Effects) (boundaries int) {
	t.Helper()
	c := &crashTest{Worker: w, t: t, effects: effects}
	ctx := context.Background()
	c.ctx = ctx
	opened := c.savepoint("outboxtest_job")
	defer opened()
	var err error
	if c.id, err = outbox.Enqueue(ctx, w.db, args, effects.Options); err != nil {
		t.Fatalf("enqueue the job: %v", err)
	}
	if c.rows, err = c.comparisons(); err != nil {
		t.Fatal(err)
	}
	_, clean := c.run(0)
	for at := 1; ; at++ {
		where, left := c.run(at)
		if where == "" { // the handler has no more boundaries
			return at - 1
		}
		if !slices.Equal(clean, left) {
			t.Errorf("a crash %s changes the effects (-without +with the crash):\n%s", where, diff(clean, left))
		}
	}
}

// crashTest is one call of CrashEverywhere.
type crashTest struct {
	*Worker
	t       testing.TB
	ctx     context.Context
	effects Effects
	id      outbox.ID
	rows    map[string]string // queries for the rows to compare, by table
}

// savepoint makes a savepoint and returns the function that rolls back to it.
func (c *crashTest) savepoint(name string) (undo func()) {
	control := func(sql string) {
		if err := c.db.conn.one(context.Background(), func(ctx context.Context) error {
			return c.db.conn.control(ctx, sql)
		}); err != nil {
			c.t.Errorf("%s: %v", sql, err)
		}
	}
	control("SAVEPOINT " + name)
	return func() { control(fmt.Sprintf("ROLLBACK TO SAVEPOINT %s; RELEASE SAVEPOINT %[1]s", name)) }
}

// run runs the job with one crash, or none, and returns the place of the crash and what is left behind.
func (c *crashTest) run(killAt int) (where string, left []string) {
	c.t.Helper()
	undo := c.savepoint("outboxtest_run")
	defer undo()
	if c.effects.Reset != nil {
		c.effects.Reset()
	}
	if killAt > 0 {
		where = c.crash(killAt)
	}
	if where != "" || killAt == 0 {
		c.finish(where)
	}
	left, err := c.look()
	if err != nil {
		c.t.Fatalf("look at the effects: %v", err)
	}
	return where, left
}

// crash runs the job in a process of its own that is killed, and returns the place, or "" if the job was done before.
func (c *crashTest) crash(killAt int) (where string) {
	c.t.Helper()
	l := newLife(killAt)
	flow, due := c.flow()
	if !due {
		c.t.Fatal("the job is not due, or not its turn")
	}
	ctx, cancel := context.WithCancel(l.in(c.ctx))
	mortal, err := c.start(ctx, l)
	if err != nil {
		c.t.Fatal(err)
	}
	c.db.life.Store(l)
	defer c.db.life.Store(nil)
	ended := make(chan error, 1)
	go func() {
		defer close(ended)
		_, err := mortal.Work(c.ctx, flow)
		ended <- err
	}()
	c.t.Cleanup(func() { // one at a time, so that deferred functions of killed handlers do not overlap
		cancel() // waiting code goes on to the next boundary
		close(l.released)
		select {
		case <-ended:
		case <-time.After(hangs):
		}
	})
	select {
	case err := <-ended:
		if err != nil {
			c.t.Fatal(err)
		}
		return ""
	case <-l.killed:
	case <-time.After(hangs):
		c.t.Fatalf("the handler does not end in %s: does it wait for what a handler that was killed has locked in memory?", hangs)
	}
	c.db.life.Store(nil)
	if err := c.db.abandon(); err != nil {
		c.t.Fatalf("roll back what the crash left open: %v", err)
	}
	return l.where
}

// maxAttempts is the number of attempts that a job has, for its retries after crashes.
const maxAttempts = 1000

// hangs is how long a run may take.
const hangs = 10 * time.Second

// flow returns the flow that the job is in, and false if the job is not due.
func (c *crashTest) flow() (f dispatcher.InlineFlow, due bool) {
	c.t.Helper()
	flows, err := c.dueFlows(c.ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	err = engineDB{c.db, nil}.QueryRow(c.ctx,
		`SELECT queue, kind, tenant_id, priority, key IS NOT NULL FROM outbox.jobs WHERE id = $1`, c.id).
		Scan(&f.Queue, &f.Kind, (*[16]byte)(&f.Tenant), &f.Priority, &f.Keyed)
	return f, err == nil && slices.Contains(flows, f)
}

// finish runs the job to its end in another process, in as many attempts as it takes. After a crash, it lets the lease
// lapse first. It lets no time pass for anything but the job: runs of more attempts would leave behind other effects.
func (c *crashTest) finish(where string) {
	c.t.Helper()
	if where != "" {
		err := c.inTx(func(tx pgx.Tx) error {
			_, err := tx.Exec(c.ctx,
				`UPDATE outbox.jobs SET lease_expires_at = statement_timestamp() - interval '1 second' WHERE id = $1 AND status = 'running'`, c.id)
			return err
		})
		if err == nil {
			err = c.inline.Expire(c.ctx)
		}
		if err != nil {
			c.t.Fatalf("let the lease lapse: %v", err)
		}
	}
	for range maxAttempts {
		open, err := engineDB{c.db, nil}.Exec(c.ctx, `UPDATE outbox.jobs SET run_at = least(run_at, statement_timestamp())
			WHERE id = $1 AND status IN ('pending', 'retrying')`, c.id)
		if err != nil {
			c.t.Fatal(err)
		}
		if open.RowsAffected() == 0 {
			return // the job is done, or waits for a person
		}
		if flow, due := c.flow(); due {
			c.workAgain(flow, where)
		}
	}
	c.t.Fatalf("the job does not end")
}

// workAgain runs an attempt without a crash.
func (c *crashTest) workAgain(flow dispatcher.InlineFlow, where string) {
	c.t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := c.inline.Work(c.ctx, flow)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			c.t.Fatal(err)
		}
	case <-time.After(hangs):
		c.t.Fatalf("after a crash %s the handler does not end in %s: does it wait for what the killed one has locked in memory?", where, hangs)
	}
}

// look returns what is left behind, as lines.
func (c *crashTest) look() (lines []string, err error) {
	engine := engineDB{c.db, nil}
	var end string
	err = engine.QueryRow(c.ctx, `
		SELECT status || coalesce(': ' || last_error_message, '') FROM outbox.jobs WHERE id = $1
		UNION ALL
		SELECT status || coalesce(': ' || convert_from(result, 'UTF8'), '') FROM outbox.history WHERE id = $1`, c.id).Scan(&end)
	if err != nil {
		return nil, fmt.Errorf("what became of the job: %w", err)
	}
	lines = append(lines, "the job is "+end)
	others, err := c.otherJobs(engine)
	if err != nil {
		return nil, err
	}
	lines = append(lines, others...)
	events, err := storedEvents(c.ctx, engine)
	if err != nil {
		return nil, err
	}
	for _, e := range events {
		if e.key == c.id.String() && strings.HasPrefix(e.topic, "job.") { // the lifecycle of a streamed job
			continue
		}
		lines = append(lines, fmt.Sprintf("event %s, key %q: %s", e.topic, e.key, oneLine(e.contentType, e.payload)))
	}
	for _, table := range c.effects.Tables {
		rows, err := c.db.Query(c.ctx, c.rows[table]) // a policy of the test's own table need not know the tenant '*'
		if err != nil {
			return nil, fmt.Errorf("rows of %s: %w", table, err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, fmt.Errorf("rows of %s: %w", table, err)
		}
		for _, row := range found {
			lines = append(lines, table+" "+row)
		}
	}
	if c.effects.State != nil {
		state, err := c.effects.State(c.ctx, c.db)
		if err != nil {
			return nil, fmt.Errorf("Effects.State: %w", err)
		}
		encoded, err := json.Marshal(state)
		if err != nil {
			return nil, fmt.Errorf("Effects.State: %w", err)
		}
		lines = append(append(lines, "state"), spelled("application/json", encoded)...)
	}
	return lines, nil
}

// otherJobs returns the jobs that the job has made.
func (c *crashTest) otherJobs(engine engineDB) (lines []string, err error) {
	jobs, err := storedJobs(c.ctx, engine, "")
	if err != nil {
		return nil, err
	}
	for _, j := range jobs {
		if j.id == c.id {
			continue
		}
		content := oneLine(j.contentType, j.payload)
		if hooks.MatchString(j.kind) { // its key names the attempt
			content = ""
		}
		lines = append(lines, fmt.Sprintf("job %s in queue %s, key %q: %s", j.kind, j.queue, j.key, content))
	}
	slices.Sort(lines)
	return lines, nil
}

var hooks = regexp.MustCompile(`:on_(success|death)$`)

// constants are what Postgres's text of an expression contains beside calls: literals and casts.
const constants = `'([^']|'')*'|::("[^"]*"|[a-z_0-9. ])+(\([0-9, ]+\))?(\[\])*( with(out)? time zone)?`

// varying are calls whose results a second run need not repeat.
const varying = `\m(nextval|now|(statement|transaction|clock)_timestamp|timeofday|\w*(random|uuid)\w*|` +
	`(pg_|txid_)current\w*)\(|\m(CURRENT_(DATE|TIME|TIMESTAMP)|LOCALTIME(STAMP)?)\M`

// comparisons returns the queries for the rows of tables.
func (c *crashTest) comparisons() (map[string]string, error) {
	queries := map[string]string{}
	for _, table := range c.effects.Tables {
		var ignore []string
		for _, column := range c.effects.Ignore {
			if name, ok := strings.CutPrefix(column, table+"."); ok {
				ignore = append(ignore, name)
			}
		}
		var name, columns string
		err := engineDB{c.db, nil}.QueryRow(c.ctx, `
			SELECT $1::text::regclass::text, coalesce(string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum), '')
			FROM pg_attribute AS a
			LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
			WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity = ''
			  AND a.attname <> ALL ($2::text[])
			  AND regexp_replace(coalesce(pg_get_expr(d.adbin, d.adrelid), ''), $3, '', 'g') !~ $4`,
			table, append([]string{}, ignore...), constants, varying).Scan(&name, &columns)
		if err != nil {
			return nil, fmt.Errorf("columns of table %s: %w", table, err)
		}
		queries[table] = fmt.Sprintf(`SELECT to_jsonb(r)::text FROM (SELECT %s FROM %s) AS r ORDER BY 1`, columns, name)
	}
	return queries, nil
}
