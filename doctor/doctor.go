// Package doctor checks an installation: the schema, notifications, what holds back vacuum, and which jobs wait. It
// changes nothing and advises.
//
//	findings, err := doctor.Examine(ctx, doctor.Target{Pool: pool})
package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/migrations"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Severity grades a finding.
type Severity string

const (
	OK      Severity = "ok"
	Warning Severity = "warning" // something is slower or less safe than it need be
	Problem Severity = "problem" // jobs do not run, or will not
)

// Finding is the answer to one question.
type Finding struct {
	Question string
	Severity Severity
	What     string
	Do       string // "" if nothing needs to be done
	Sink     string // that it is about; "" for none
}

// A Target is an installation to examine.
type Target struct {
	Pool *pgxpool.Pool
	// Listen sets how dispatchers connect to LISTEN; nil means as Pool does.
	Listen *pgx.ConnConfig
	// Except lists questions to leave out.
	Except []string
}

const timeout = 10 * time.Second // per question

// Examine asks every question. A question that cannot be answered is a finding itself; Examine returns an error only if
// the database does not answer at all.
func Examine(ctx context.Context, t Target) ([]Finding, error) {
	conn, err := t.Pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer conn.Release()
	ctx = operator.WithTenant(ctx, outbox.ID{}) // as ask does
	e := &examination{target: t, conn: conn.Conn()}
	for _, question := range []struct {
		name  string
		needs bool // it requires the schema
		ask   func(*examination, context.Context) error
	}{
		{"server", false, (*examination).database},
		{"server", false, (*examination).server},
		{"schema", false, (*examination).schema},
		{"wake-ups", false, (*examination).wakeUps},
		{"vacuum", false, (*examination).vacuum},
		{"tables", true, (*examination).tables},
		{"sinks", true, (*examination).sinks},
		{"bridges", true, (*examination).bridges},
		{"events", true, (*examination).events},
		{"workers", true, (*examination).workers}, // these two read all due jobs, so they come after the others
		{"jobs", true, (*examination).jobs},
	} {
		if question.needs && !e.migrated || slices.Contains(t.Except, question.name) {
			continue
		}
		e.question = question.name
		bound, cancel := context.WithTimeout(ctx, timeout)
		err := question.ask(e, bound)
		cancel()
		if err != nil {
			e.find(Problem, fmt.Sprintf("not answered: %v", err), remedy(err))
		}
		if e.unsupported {
			break // the other questions are about a Postgres that has what they ask for
		}
	}
	return e.findings, ctx.Err()
}

// examination is the state of a running Examine.
type examination struct {
	target      Target
	conn        *pgx.Conn
	question    string
	migrated    bool
	unsupported bool
	ahead       time.Duration // how far the server's clock is ahead of ours
	findings    []Finding
}

// since returns how long ago an instant of the server's was, by its clock.
func (e *examination) since(at time.Time) time.Duration { return time.Since(at) + e.ahead }

// remedy returns advice about a question that the server did not answer.
func remedy(err error) string {
	switch pgsession.State(err) {
	case pgsession.NoSuchStatement, pgsession.DuplicateStatement:
		return "a pooler hands prepared statements to sessions that do not have them, as PgBouncer before 1.21 does: add default_query_exec_mode=exec to DATABASE_URL"
	}
	if pgsession.State(err) == pgsession.InsufficientPrivilege {
		return "grant the role of DATABASE_URL one that may read it, such as outbox_reader: posthaste docs guides/tenants"
	}
	return "see whether the server is overloaded"
}

// Count returns a number with its noun: 1 problem, 2 problems.
func Count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// span returns how long something takes, in one unit.
func span(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return Count(int64(d/(24*time.Hour)), "day")
}

func (e *examination) find(s Severity, what, do string) {
	e.findings = append(e.findings, Finding{Question: e.question, Severity: s, What: what, Do: do})
}

// schema checks whether every migration of this build is applied.
func (e *examination) schema(ctx context.Context) error {
	state, err := migrations.Look(ctx, e.target.Pool)
	if err != nil {
		return err
	}
	e.migrated = state.Usable()
	if !e.migrated {
		e.find(Problem, state.String(), state.Remedy())
		return nil
	}
	notes, err := migrations.Notes(ctx, e.target.Pool)
	if err != nil {
		return err
	}
	for _, note := range notes {
		e.find(Warning, note.What, note.Do)
	}
	if state.Condition == migrations.Ahead {
		e.find(OK, state.String(), "")
	} else if len(notes) == 0 {
		e.find(OK, "it is the one that this program expects", "")
	}
	return nil
}

// behind is the age from which an event that a sink has not published is a finding: days of the log are kept for at
// least as long.
const behind = 24 * time.Hour

// events checks whether sinks keep up with the log.
func (e *examination) events(ctx context.Context) error {
	sinks, err := operator.New(e.target.Pool).Sinks(ctx)
	if err != nil {
		return err
	}
	before := len(e.findings)
	if len(sinks) == 0 {
		published, err := askOne[struct{ Any bool }](ctx, e.conn, `SELECT EXISTS (SELECT FROM outbox.events)`)
		if err != nil {
			return err
		}
		if published.Any {
			e.find(Warning, "events are stored, and no sink is declared that publishes them",
				"name a sink and its routes in relay.yaml, and run a relay: posthaste docs operate/relay")
		}
	}
	for _, s := range sinks {
		if !s.Oldest.IsZero() && e.since(s.Oldest) > behind {
			e.find(Problem, fmt.Sprintf(
				"sink %s has not published events since %s: their days are kept, and fill the disk, or are lost as OUTBOX_UNREAD_EVENTS says", s.Name, s.Oldest.Format(time.RFC3339)),
				"see posthaste relay list for why; a sink that is not wanted any more holds its days until it is removed: posthaste relay remove "+s.Name)
		}
	}
	if len(e.findings) == before {
		e.find(OK, Count(len(sinks), "sink")+", none a day behind", "")
	}
	return nil
}

// workers checks which workers there are, and which jobs have none.
func (e *examination) workers(ctx context.Context) error {
	o := operator.New(e.target.Pool)
	all, err := o.Workers(ctx)
	if err != nil {
		return err
	}
	var there, deaf int
	for _, w := range all {
		switch {
		case w.Missing:
			e.find(Warning, fmt.Sprintf("dispatcher %s was last seen %s", w.Name, w.SeenAt.Format(time.RFC3339)),
				"see whether it was killed or cannot reach the database; its jobs run elsewhere")
		case !w.Listening && w.SeenAt.After(w.StartedAt): // its first row is written before it can hear
			deaf++
			fallthrough
		default:
			there++
		}
	}
	if deaf > 0 {
		e.find(Warning, fmt.Sprintf("%d of %d dispatchers are not listening: they poll", deaf, there),
			"see the finding on wake-ups, and their /readyz")
	}
	unhandled, err := o.Unhandled(ctx)
	if err != nil {
		return err
	}
	for _, u := range unhandled {
		e.find(Problem, fmt.Sprintf("%s of kind %s in queue %s due since %s, and no dispatcher has a handler",
			Count(u.Jobs, "job"), u.Kind, u.Queue, u.Oldest.Format(time.RFC3339)),
			"start a program that has a handler for the kind and works the queue")
	}
	if len(e.findings) == 0 || e.findings[len(e.findings)-1].Question != e.question {
		e.find(OK, Count(there, "dispatcher")+", and every due job has a handler", "")
	}
	return nil
}

// jobs checks what is late.
func (e *examination) jobs(ctx context.Context) error {
	w, err := askOne[work](ctx, e.conn, workSQL)
	if err != nil {
		return err
	}
	before := len(e.findings)
	if w.Lapsed > 0 {
		e.find(Problem, Count(w.Lapsed, "lease")+" lapsed more than 15 s ago and nobody took the jobs back",
			"run a reaper: OUTBOX_REAP=on in at least one process")
	}
	if w.OldestDue != nil && w.Now.Sub(*w.OldestDue) > time.Minute {
		e.find(Warning, fmt.Sprintf("the oldest due job waits since %s", w.OldestDue.Format(time.RFC3339)),
			"add dispatchers or concurrency, or see what they are waiting for")
	}
	if w.DeadLetters > 0 {
		e.find(Warning, Count(w.DeadLetters, "dead letter")+" to be replayed or dismissed",
			"inspect them: posthaste dlq groups")
	}
	if w.Paused != "" {
		e.find(Warning, "queues that are paused: "+w.Paused, "posthaste queues resume QUEUE, when it is time")
	}
	if len(e.findings) == before {
		e.find(OK, "nothing is late, nothing waits for a person", "")
	}
	return nil
}
