package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	tailPages   = 5    // of new jobs that one look reads
	tailFollows = 1000 // open jobs whose changes are looked for
	// tailOverlap is how far behind the newest job new ones are looked for: an id is
	// made before its transaction commits.
	tailOverlap = time.Minute
)

const tailDescription = `Prints a line for every new job and every change of a status that it sees, until
Ctrl-C. It looks again and again, from where it was: after an outage it goes on.

What it may skip: a status that a job had for less than the interval; changes of
jobs that were there before it began, beyond the newest 1000 open ones; and new
jobs of which there are more than 1000 between two looks, or whose producer's
clock is wrong by more than a minute, or whose transaction took longer to commit.
It says so when it knows.`

func (p *program) tailCommand() *cli.Command {
	return &cli.Command{
		Name: "tail", Usage: "print new jobs and changes of their statuses as they come", Description: tailDescription,
		Flags: append(operatorFlags(), jsonOrText(),
			&cli.StringFlag{Name: "kind", Usage: "only of this `KIND`"},
			&cli.StringFlag{Name: "queue", Usage: "only of this `QUEUE`"},
			&cli.StringFlag{Name: "key", Usage: "only with this `KEY`"},
			&cli.StringSliceFlag{Name: "status", Usage: "only changes to this `STATUS`, repeated or separated by commas"},
			&cli.DurationFlag{Name: "interval", Value: followInterval, Usage: "`DURATION` between two looks, at least"}),
		Action: p.tailJobs,
	}
}

func (p *program) tailJobs(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	statuses, err := readStatuses(c)
	if d := c.Duration("interval"); d < 10*time.Millisecond {
		err = errors.Join(err, fmt.Errorf("--interval is %s: want at least 10ms", d))
	}
	if err != nil {
		return &usageError{err}
	}
	t := &tail{
		filter: operator.Filter{Kind: c.String("kind"), Queue: c.String("queue"), Key: c.String("key")}, known: map[outbox.ID]mark{},
		print:   func(from outbox.Status, j operator.Job) error { return p.printChange(c, from, j) },
		comment: func(text string) { fmt.Fprintln(p.stderr, "posthaste: "+text) },
	}
	if len(statuses) > 0 {
		all := t.print
		t.print = func(from outbox.Status, j operator.Job) error {
			if !slices.Contains(statuses, j.Status) {
				return nil
			}
			return all(from, j)
		}
	}
	return operate(ctx, p, c, func(ctx context.Context, o found) error {
		return t.run(ctx, o, c.Duration("interval"))
	})
}

// found is what a tail asks of an operator.
type found interface {
	Jobs(context.Context, operator.Filter) ([]operator.Job, error)
	Find(context.Context, []operator.Wanted) ([]operator.Job, error)
}

var _ found = (*operator.Operator)(nil)

// tail remembers the jobs whose changes it is to tell, and up to where it has
// looked for new ones.
type tail struct {
	filter  operator.Filter
	floor   outbox.ID // older ids are not new
	known   map[outbox.ID]mark
	print   func(from outbox.Status, j operator.Job) error // from is "" for a new job
	comment func(string)
}

// mark is how a job was when it was last seen.
type mark struct {
	status outbox.Status
	epoch  int64
}

func markOf(j operator.Job) mark { return mark{j.Status, j.Epoch} }

// run begins from now on. Only the first look may fail; then a database that is away
// is waited for.
func (t *tail) run(ctx context.Context, o found, interval time.Duration) error {
	if err := t.begin(ctx, o); err != nil {
		return err
	}
	complained := false
	for {
		began := time.Now()
		err := t.look(ctx, o)
		_, unprinted := errors.AsType[*printError](err)
		switch {
		case ctx.Err() != nil:
			return nil // asked to stop
		case unprinted:
			return err
		case err != nil && !complained:
			t.comment(err.Error() + "; trying again")
		}
		complained = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(interval, 2*time.Since(began))): // at most a third of the time is queries
		}
	}
}

// printError says that nobody can be told any more.
type printError struct{ err error }

func (e *printError) Error() string { return e.err.Error() }
func (e *printError) Unwrap() error { return e.err }

// begin learns which jobs there are, and tells nothing. The floor comes first: a job
// that is enqueued from then on, and any that commits after its page was read, is
// above it and unknown, and so it is told by the next look.
func (t *tail) begin(ctx context.Context, o found) error {
	newest := t.filter
	newest.Limit = 1
	page, err := o.Jobs(ctx, newest)
	if err != nil {
		return err
	}
	for _, j := range page {
		t.raise(j)
	}
	f := t.filter
	f.After = t.floor
	recent, _, err := t.pages(ctx, o, f)
	if err != nil {
		return err
	}
	f = t.filter
	f.Statuses = openStatuses()
	open, more, err := t.pages(ctx, o, f)
	if err != nil {
		return err
	}
	for _, j := range append(recent, open...) {
		t.known[j.ID] = markOf(j)
	}
	if more {
		t.comment(fmt.Sprintf("there are more than %d open jobs: only the newest are followed", tailFollows))
	}
	return nil
}

// pages reads jobs until there are no more, or too many.
func (t *tail) pages(ctx context.Context, o found, f operator.Filter) (jobs []operator.Job, more bool, err error) {
	f.Limit = operator.MaxLimit
	for range tailPages {
		page, err := o.Jobs(ctx, f)
		if err != nil {
			return nil, false, err
		}
		news := false
		for _, j := range page {
			if bytes.Compare(j.ID[:], f.After[:]) <= 0 { // the API has no such filter
				return jobs, false, nil
			}
			_, known := t.known[j.ID]
			news = news || !known
			jobs = append(jobs, j)
			f.Before = j.ID
		}
		if len(page) < f.Limit || !news {
			return jobs, false, nil
		}
	}
	return jobs, true, nil
}

// look tells what is new and what has changed since the last look, oldest first.
func (t *tail) look(ctx context.Context, o found) error {
	f := t.filter
	f.After = t.floor
	jobs, more, err := t.pages(ctx, o, f)
	if err != nil {
		return err
	}
	seen := map[outbox.ID]bool{}
	for _, j := range jobs {
		seen[j.ID] = true
	}
	var wanted []operator.Wanted
	for id, m := range t.known {
		if !seen[id] && !m.status.Closed() {
			wanted = append(wanted, operator.Wanted{ID: id})
		}
	}
	slices.SortFunc(wanted, func(a, b operator.Wanted) int { return bytes.Compare(b.ID[:], a.ID[:]) })
	for _, left := range wanted[min(tailFollows, len(wanted)):] {
		delete(t.known, left.ID)
	}
	wanted = wanted[:min(tailFollows, len(wanted))]
	if len(wanted) > 0 {
		older, err := o.Find(ctx, wanted)
		if err != nil {
			return err
		}
		for i, j := range older {
			if j.ID.IsZero() { // trimmed
				delete(t.known, wanted[i].ID)
				continue
			}
			jobs = append(jobs, j)
		}
	}
	if more {
		t.comment("more new jobs than can be followed: some were left out")
	}
	return t.tell(jobs)
}

// tell prints what differs from what is known. A job is known before it is printed:
// nothing is told twice.
func (t *tail) tell(jobs []operator.Job) error {
	slices.SortStableFunc(jobs, func(a, b operator.Job) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	for _, j := range jobs {
		before, isKnown := t.known[j.ID]
		t.known[j.ID] = markOf(j)
		if isKnown && before == markOf(j) {
			continue
		}
		if err := t.print(before.status, j); err != nil {
			return &printError{err}
		}
	}
	if len(jobs) > 0 {
		t.raise(jobs[len(jobs)-1])
	}
	for id, m := range t.known { // a closed one is remembered as long as it could look new
		if m.status.Closed() && bytes.Compare(id[:], t.floor[:]) <= 0 {
			delete(t.known, id)
		}
	}
	return nil
}

// raise has new jobs looked for from shortly before the newest one that was seen. Its
// id has the time of its producer's clock: one that is ahead must not make us
// blind to the jobs of others.
func (t *tail) raise(newest operator.Job) {
	ms := min(binary.BigEndian.Uint64(newest.ID[:8])>>16, uint64(max(0, newest.CreatedAt.UnixMilli())))
	var floor outbox.ID
	binary.BigEndian.PutUint64(floor[:8], (ms-min(ms, uint64(tailOverlap.Milliseconds())))<<16)
	if bytes.Compare(floor[:], t.floor[:]) > 0 {
		t.floor = floor
	}
}

func (p *program) printChange(c *cli.Command, from outbox.Status, j operator.Job) error {
	seen := time.Now()
	if c.String("output") == "json" {
		var before any
		if from != "" {
			before = from
		}
		object, err := listing{header: []string{"seen_at", "id", "from", "status", "kind", "queue", "attempt", "max_attempts", "worker", "error_code", "run_at", "finished_at"}}.
			object([]any{seen, j.ID, before, j.Status, j.Kind, j.Queue, j.Attempt, j.MaxAttempts, j.Worker, j.ErrorCode, instant(j.RunAt), instant(j.FinishedAt)})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(p.stdout, string(object))
		return err
	}
	change := "new → " + j.Status.String()
	if from != "" {
		change = from.String() + " → " + j.Status.String()
	}
	line := fmt.Sprintf("%s  %s  %-22s %s in %s, attempt %d of %d", seen.Format("15:04:05.000"), j.ID, change, j.Kind, j.Queue, j.Attempt, j.MaxAttempts)
	if j.ErrorCode != "" && j.Status != outbox.Succeeded {
		line += ", " + j.ErrorCode
	}
	_, err := fmt.Fprintln(p.stdout, oneLine(line))
	return err
}
