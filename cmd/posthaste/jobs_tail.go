package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	tailPages   = 5    // of new jobs that one look reads
	tailFollows = 1000 // open jobs whose changes are looked for
	// tailOverlap is how far behind the newest job new ones are looked for: an id is made before its transaction
	// commits.
	tailOverlap = time.Minute
)

const tailDescription = `Prints a line for every new job and every change of a status that it sees, until
Ctrl-C.

Through the API (--api) the server sends changes as they happen, which requires
admin.stream. After a lost connection the command reconnects and continues where it was.
It prints a note when changes may be missing: it was disconnected for more than an hour,
or more changed at once than the server sends one by one. States in between may be
skipped. With --key, and for tokens without admin.stream, it polls instead.

Directly on the database it polls, and after an outage it continues where it was. It may
miss a status that a job had for less than the interval; changes of jobs that existed
before it started, beyond the newest 1000 open ones; and new jobs if more than 1000 arrive
between two polls, if the producer's clock is wrong by more than a minute, or if the
producer's transaction took longer to commit. It prints a note when it detects this.

-o json prints an object per line; fields that the API does not return are null.`

func (p *program) tailCommand() *cli.Command {
	return &cli.Command{
		Name: "tail", Usage: "print new jobs and changes of status as they happen", Description: tailDescription,
		Flags: append(append(operatorFlags(), onlyFlags()...), jsonOrText(),
			&cli.StringSliceFlag{
				Name:  "status",
				Usage: "only changes to this `STATUS`, repeated or separated by commas",
			},
			&cli.StringSliceFlag{
				Name:  "job",
				Usage: "only the job with this `ID`, repeated or separated by commas, at most 100",
			},
			&cli.DurationFlag{
				Name: "interval", Value: followInterval,
				Usage: "`DURATION` between two polls, at least",
			}),
		Action: p.tailJobs,
	}
}

const tailMostJobs = 100 // that are named; the API accepts no more

// tailed selects what to print.
type tailed struct {
	filter operator.Filter // its statuses are those that a job has reached
	jobs   []outbox.ID     // nil means any
}

func readTailed(c *cli.Command) (w tailed, err error) {
	w.filter = operator.Filter{Kind: c.String("kind"), Queue: c.String("queue"), Key: c.String("key")}
	w.filter.Statuses, err = readStatuses(c)
	err = errors.Join(err, readTenant(c, &w.filter.Tenant))
	for _, text := range c.StringSlice("job") {
		id, bad := outbox.ParseID(text)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("--job: %w", bad))
		}
		w.jobs = append(w.jobs, id)
	}
	if n := len(w.jobs); n > tailMostJobs {
		err = errors.Join(err, fmt.Errorf("--job: %d are named, want at most %d", n, tailMostJobs))
	}
	if d := c.Duration("interval"); d < 10*time.Millisecond {
		err = errors.Join(err, fmt.Errorf("--interval is %s: want at least 10ms", d))
	}
	return w, err
}

func (p *program) tailJobs(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	w, err := readTailed(c)
	if err != nil {
		return &usageError{err}
	}
	return operate(ctx, p, c, func(ctx context.Context, o found) error {
		if r, ok := o.(*remote); ok {
			if ok, err := p.streamJobs(ctx, c, r, w); ok || err != nil {
				return err
			}
		}
		return p.newTail(c, w).run(ctx, o, c.Duration("interval"))
	})
}

// newTail returns a tail that looks periodically.
func (p *program) newTail(c *cli.Command, w tailed) *tail {
	statuses := w.filter.Statuses
	w.filter.Statuses = nil // they select changes rather than jobs
	return &tail{
		filter: w.filter, jobs: w.jobs, known: map[outbox.ID]mark{}, comment: p.comment,
		print: func(from outbox.Status, j operator.Job) error {
			if len(statuses) > 0 && !slices.Contains(statuses, j.Status) {
				return nil
			}
			return p.printChange(c, cmp.Or(string(from), newJob), j)
		},
	}
}

func (p *program) comment(text string) { fmt.Fprintln(p.stderr, "posthaste: "+oneLine(text)) }

// found is the part of an operator that a tail queries.
type found interface {
	Jobs(context.Context, operator.Filter) ([]operator.Job, error)
	Find(context.Context, []operator.Wanted) ([]operator.Job, error)
}

var _ found = (*operator.Operator)(nil)

// tail remembers the jobs whose changes it reports, and how far it has looked for new ones.
type tail struct {
	filter  operator.Filter
	jobs    []outbox.ID // those that may still change, if jobs were named
	floor   outbox.ID   // older ids are not new
	known   map[outbox.ID]mark
	print   func(from outbox.Status, j operator.Job) error // from is "" for a new job
	comment func(string)
}

// mark is a job's state when it was last seen.
type mark struct {
	status outbox.Status
	epoch  int64
}

func markOf(j operator.Job) mark { return mark{j.Status, j.Epoch} }

// run begins from now on. The first look must succeed; later it waits for an unavailable database.
func (t *tail) run(ctx context.Context, o found, interval time.Duration) error {
	if err := t.begin(ctx, o); ctx.Err() != nil {
		return nil // asked to stop
	} else if err != nil {
		return err
	}
	return lookAgain(ctx, interval, t.comment, func() (ended bool, err error) { return false, t.look(ctx, o) })
}

// lookAgain looks again and again, until there is nothing more to see or ctx ends. It waits for an unavailable database
// or API, and returns any other error, such as that of a job that is gone, of an output, or of a revoked token.
func lookAgain(ctx context.Context, interval time.Duration, comment func(string),
	look func() (ended bool, err error),
) error {
	complained := false
	for {
		began := time.Now()
		ended, err := look()
		switch {
		case ctx.Err() != nil:
			return nil // asked to stop
		case ended, err != nil && !maySucceed(err):
			return err
		case err != nil && !complained:
			comment(err.Error() + "; trying again")
		}
		complained = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(interval, 2*time.Since(began))): // at most a third of the time is queries
		}
	}
}

// maySucceed reports whether the same question may be answered later, although nobody changes anything: the database or
// the network is unavailable, or the API has too much to do.
func maySucceed(err error) bool {
	if _, ok := errors.AsType[*printError](err); ok {
		return false
	}
	if problem, ok := errors.AsType[*client.Problem](err); ok {
		return problem.Status == http.StatusTooManyRequests || problem.Status >= http.StatusInternalServerError
	}
	return pgsession.IsAway(err) && !pgsession.IsLoginRefused(err) || pgsession.IsLockedOut(err)
}

// printError means that the output is gone.
type printError struct{ err error }

func (e *printError) Error() string { return e.err.Error() }
func (e *printError) Unwrap() error { return e.err }

// begin learns which jobs exist, and prints nothing. It determines the floor first: a job that is enqueued from then
// on, and any that commits after its page was read, is above the floor and unknown, so the next look prints it.
func (t *tail) begin(ctx context.Context, o found) error {
	if t.jobs != nil {
		named, err := t.named(ctx, o)
		for _, j := range named {
			t.known[j.ID] = markOf(j)
		}
		return err
	}
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

// named returns the jobs that were named, if they exist and match the filter. It does not query those that have closed
// again.
func (t *tail) named(ctx context.Context, o found) ([]operator.Job, error) {
	wanted := make([]operator.Wanted, len(t.jobs))
	for i, id := range t.jobs {
		wanted[i] = operator.Wanted{ID: id, Tenant: t.filter.Tenant}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	jobs, err := o.Find(ctx, wanted)
	if err != nil {
		return nil, err
	}
	open := []outbox.ID{}
	for i, j := range jobs {
		if !j.Status.Closed() {
			open = append(open, wanted[i].ID)
		}
	}
	t.jobs = open
	return slices.DeleteFunc(jobs, func(j operator.Job) bool {
		f := t.filter
		return j.ID.IsZero() || f.Kind != "" && f.Kind != j.Kind || f.Queue != "" && f.Queue != j.Queue ||
			f.Key != "" && f.Key != j.Key
	}), nil
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

// look reports what is new and what has changed since the last look, oldest first.
func (t *tail) look(ctx context.Context, o found) error {
	if t.jobs != nil {
		named, err := t.named(ctx, o)
		if err != nil {
			return err
		}
		return t.tell(named)
	}
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

// tell prints what differs from the known states. It stores a state before it prints it, so that nothing is printed
// twice.
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
	for id, m := range t.known { // remember a closed job as long as it could look new
		if m.status.Closed() && bytes.Compare(id[:], t.floor[:]) <= 0 {
			delete(t.known, id)
		}
	}
	return nil
}

// raise moves the floor to shortly before the newest job that was seen. The time in its id is its producer's: a clock
// that is ahead must not hide the jobs of others.
func (t *tail) raise(newest operator.Job) {
	ms := min(binary.BigEndian.Uint64(newest.ID[:8])>>16, uint64(max(0, newest.CreatedAt.UnixMilli())))
	var floor outbox.ID
	binary.BigEndian.PutUint64(floor[:8], (ms-min(ms, uint64(tailOverlap.Milliseconds())))<<16)
	if bytes.Compare(floor[:], t.floor[:]) > 0 {
		t.floor = floor
	}
}
