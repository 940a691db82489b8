package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/internal/foreign"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/pooler"
)

// database checks whether it is a Postgres of a version that the tests run on.
func (e *examination) database(ctx context.Context) error {
	var version string
	if err := e.conn.QueryRow(ctx, `SELECT version()`).Scan(&version); err != nil {
		return err
	}
	if refusal := foreign.Refusal(version); refusal != "" {
		e.unsupported = true
		e.find(Problem, refusal, fmt.Sprintf("use PostgreSQL %d to %d", foreign.Oldest, foreign.Newest))
	} else if major := foreign.Major(version); major > foreign.Newest {
		e.find(Warning, fmt.Sprintf("the server is PostgreSQL %d, and this build was tested on %d to %d", major,
			foreign.Oldest, foreign.Newest), "see whether a newer release of Posthaste was tested on it")
	}
	return nil
}

// server checks whether the server's acknowledgements are durable, and what is in between.
func (e *examination) server(ctx context.Context) error {
	sent := time.Now()
	s, err := askOne[server](ctx, e.conn, serverSQL)
	if err != nil {
		return err
	}
	e.ahead = s.Clock.Sub(sent.Add(time.Since(sent) / 2))
	before := len(e.findings)
	if s.Standby || s.ReadOnly == "on" {
		e.find(Problem, "the server takes no writes: a standby, or default_transaction_read_only",
			"connect to the primary; with several hosts use target_session_attrs=read-write")
	}
	e.durability(s)
	if s.Autovacuum != "on" {
		e.find(Problem, "autovacuum is off: claims slow down without bound", "set it to on")
	}
	if s.Notifications > 0.01 {
		e.find(Warning, fmt.Sprintf(
			"the notification queue is %.1f %% full: some session listens and does not read; at 100 %% NOTIFY fails",
			100*s.Notifications),
			"end it; reapers end our listeners after 30 s")
	}
	if s.Collated != "" && s.Collates != "" && s.Collated != s.Collates { // C and POSIX have none
		e.find(Problem, fmt.Sprintf(
			"the database's collation is of version %s and the server's of %s, as after an update of its operating "+
				"system: indexes of text may miss what is stored, and an idempotency key or a message that was "+
				"handled counts as new", s.Collated, s.Collates),
			fmt.Sprintf("stop what enqueues and consumes, then: REINDEX DATABASE %[1]s; "+
				"ALTER DATABASE %[1]s REFRESH COLLATION VERSION", s.Database))
	}
	// A pooler invents the process id that it reports to its clients.
	if s.PID != e.conn.PgConn().PID() {
		if err := e.pooler(ctx); err != nil {
			return err
		}
	}
	if off := e.ahead.Abs(); off > time.Second {
		e.find(Warning, fmt.Sprintf("the clocks of this machine and of the server differ by %s",
			off.Round(time.Millisecond)), "nothing breaks, the server's clock decides; mind it when you compare logs")
	}
	if len(e.findings) == before {
		e.find(OK, "PostgreSQL "+s.Version+", durable, no pooler in between", "")
	}
	return nil
}

// durability reports settings with which a crash of the server loses what it has acknowledged.
func (e *examination) durability(s server) {
	if s.Fsync != "on" || s.FullPageWrites != "on" {
		e.find(Problem, fmt.Sprintf(
			"fsync is %s and full_page_writes is %s: a crash can lose or destroy what was committed", s.Fsync,
			s.FullPageWrites), "set both to on")
	}
	if s.SynchronousCommit == "off" && s.NotDurable == "" {
		s.NotDurable = "the role that asks"
	}
	if s.NotDurable != "" {
		e.find(Problem, "synchronous_commit is off for "+s.NotDurable+
			": a crash loses jobs that were committed by sessions other than ours, and behind a pooler by ours, too",
			"set it to on for the roles that enqueue and work")
	}
	if s.Hidden != "" {
		e.find(Warning, "the synchronous_commit of this login hides the server's, which counts for "+s.Hidden,
			"ask with a login that has none of its own, or see that it is on in postgresql.conf")
	}
}

// pooler reports what the pooler in between does with sessions.
func (e *examination) pooler(ctx context.Context) error {
	shared, err := pooler.Shared(ctx, e.conn, e.target.Pool.Config())
	switch {
	case err != nil:
		return err
	case shared:
		e.find(Warning, "a connection pooler in transaction mode is in between: LISTEN, migrations and most settings "+
			"of sessions do not work through it",
			"OUTBOX_LISTEN_URL and migrations need the server itself (Supabase: not port 6543; Neon: the host "+
				"without -pooler); default_query_exec_mode=exec where it has no prepared statements")
	default:
		e.find(Warning, "a connection pooler is in between, and seems to be in session mode: each of our connections "+
			"keeps one of its sessions",
			"make its pool as large as what our processes have at most, or connect to the server itself")
	}
	return nil
}

// wakeUps checks whether a NOTIFY reaches a session that listens as dispatchers do, and whether there are sessions that
// listen and do not read.
func (e *examination) wakeUps(ctx context.Context) error {
	stuck, err := ask[wedged](ctx, e.conn, wedgedSQL)
	if err != nil {
		return err
	}
	for _, w := range stuck {
		e.find(Warning, "a session listens and does not read what it is sent: "+w.Who,
			"see whether its process is stopped or cut off, or end it: it can hold vacuum back, and NOTIFY fails "+
				"once the queue is full; reapers end our listeners after 30 s")
	}
	config, of := e.target.Listen, "OUTBOX_LISTEN_URL"
	if config == nil {
		of = "DATABASE_URL, or OUTBOX_LISTEN_URL for listeners alone"
		if config, err = pgsession.ConnConfig(ctx, e.target.Pool.Config()); err != nil {
			return fmt.Errorf("prepare to listen: %w", err)
		}
	}
	config = config.Copy()
	config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite // as a listener
	ear, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		e.find(Problem, fmt.Sprintf("no session could connect to listen: dispatchers poll, jobs start up to two "+
			"seconds late: %v", err), "see "+of+": listeners need a login on the primary")
		return nil
	}
	defer ear.Close(context.WithoutCancel(ctx))
	channel := "outbox_doctor_" + strings.ToLower(rand.Text())
	if _, err := ear.Exec(ctx, "LISTEN "+channel); err != nil {
		return err
	}
	sent := time.Now()
	if _, err := e.conn.Exec(ctx, "SELECT pg_notify($1, '')", channel); err != nil {
		return err
	}
	const patience = 3 * time.Second
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := ear.WaitForNotification(waiting); errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		e.find(Problem, fmt.Sprintf(
			"a NOTIFY did not arrive within %s: dispatchers poll, jobs start up to two seconds late", span(patience)),
			"let listeners connect to the server itself and not through a pooler: OUTBOX_LISTEN_URL")
		return nil
	} else if err != nil {
		return err
	}
	e.find(OK, fmt.Sprintf("a NOTIFY arrived after %s", span(time.Since(sent))), "")
	return nil
}

// vacuum finds what keeps vacuum from removing deleted rows.
func (e *examination) vacuum(ctx context.Context) error {
	const patience = 5 * time.Minute
	holders, err := ask[holder](ctx, e.conn, holdersSQL, pgvalue.Interval(patience))
	if err != nil {
		return err
	}
	for _, h := range holders {
		since := "for a long time"
		if h.Since != nil {
			since = "since " + h.Since.Format(time.RFC3339)
		}
		e.find(Warning, fmt.Sprintf("a %s holds vacuum back %s, %s: %s", h.What, since, Count(h.Age, "transaction"),
			h.Who), "end it if nobody needs it: dead rows pile up in the whole database")
	}
	logins, err := ask[unseen](ctx, e.conn, unseenSQL)
	if err != nil {
		return err
	}
	for _, u := range logins {
		e.find(Warning, "this login is not shown what sessions of other roles do: those that have held vacuum back "+
			"for a while, or listen and do not read, may be missing here",
			"GRANT pg_read_all_stats TO "+u.Login)
	}
	if len(holders) == 0 && len(logins) == 0 {
		e.find(OK, "nobody has held it back for more than five minutes", "")
	}
	return nil
}

// queriesByID is how many queries for a job by its id the server must have locks for at once.
const queriesByID = 16

// untrimmedHours is long enough for a reaper that is down over a night and a day.
const untrimmedHours = 48

// tables checks whether the hot table is vacuumed, partitions are created, and the rest is trimmed.
func (e *examination) tables(ctx context.Context) error {
	t, err := askOne[tables](ctx, e.conn, tablesSQL)
	if err != nil {
		return err
	}
	before := len(e.findings)
	if t.DaysAhead < 1 { // one is enough until the reaper's next look, in an hour
		e.find(Problem, fmt.Sprintf(
			"the history or the events have partitions for %s ahead: jobs cannot be settled, or events not "+
				"published, without one", Count(t.DaysAhead, "day")),
			"run a reaper: OUTBOX_REAP=on in at least one process")
	}
	if t.Untrimmed > untrimmedHours {
		since := "since the schema was made or changed last"
		if t.Trimmed != nil {
			since = "since " + t.Trimmed.Format(time.RFC3339)
		}
		e.find(Warning, "what is beyond its retention has not all been removed "+since,
			"search the logs of the reapers for \"chore failed\" and for partitions that could not be dropped; if no "+
				"reaper runs, OUTBOX_REAP=on in at least one process")
	}
	if t.Dead > 100_000 && t.Dead > 10*t.Live {
		when := "never"
		if t.Vacuumed != nil {
			when = t.Vacuumed.Format(time.RFC3339)
		}
		e.find(Warning, fmt.Sprintf("outbox.jobs has %d dead and %d live rows, last vacuumed: %s", t.Dead,
			t.Live, when),
			"see the finding on vacuum; else give autovacuum more workers: its settings for this table are made to "+
				"keep up")
	}
	// A query by id cannot know the day: it locks each one, with its four indexes.
	if each, room := 5*t.Days, t.Locks*t.Sessions; each*queriesByID > room {
		e.find(Warning, fmt.Sprintf("the history has %s, and each query for a job by its id locks them all: %d at "+
			"once fill the server's table of locks, and then any statement may fail with \"out of shared memory\"",
			Count(t.Days, "day"), max(room/each, 1)),
			fmt.Sprintf("set max_locks_per_transaction to %d and restart the server, or keep closed jobs for less time",
				each*queriesByID/t.Sessions+1))
	}
	if len(e.findings) == before {
		e.find(OK, fmt.Sprintf("%s in outbox.jobs, partitions for %s ahead", Count(t.Dead, "dead row"),
			Count(t.DaysAhead, "day")), "")
	}
	return nil
}
