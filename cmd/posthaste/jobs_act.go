package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// jobAct is an act of the commands about jobs.
type jobAct struct {
	name, usage string
	possible    []outbox.Status // in others it is refused
	unless      []outbox.Status // meant by a filter that names none, as in the API
	inTime      bool            // refused for a job past its deadline
	do          func(jobActs, context.Context, outbox.ID) (requested bool, err error)
}

var (
	deadLetters = []outbox.Status{outbox.Failed, outbox.Dead}
	stoppable   = []outbox.Status{outbox.Created, outbox.Pending, outbox.Blocked, outbox.Retrying, outbox.Running}

	cancelAct = jobAct{
		"cancel", "cancel jobs: waiting ones at once, running ones by asking their handlers to stop",
		append(slices.Clone(stoppable), outbox.Cancelled), stoppable, false, // repeating it is harmless
		func(o jobActs, ctx context.Context, id outbox.ID) (bool, error) {
			became, err := o.Cancel(ctx, id)
			return became == operator.CancelRequested, err
		},
	}
	releaseAct = jobAct{
		"release", "let held jobs run",
		[]outbox.Status{outbox.Created},
		[]outbox.Status{outbox.Created},
		false, outright(jobActs.Release),
	}
	retryAct = jobAct{
		"retry", "run dead letters again with all their attempts, and waiting jobs at once",
		append(slices.Clone(deadLetters), outbox.Pending, outbox.Retrying), deadLetters, true, outright(jobActs.Retry),
	}
	dismissAct = jobAct{
		"dismiss", "dismiss dead letters: they move to the history", deadLetters, deadLetters, false,
		outright(jobActs.Dismiss),
	}
)

// outright returns a job act for an act that is done when it returns.
func outright(do func(jobActs, context.Context, outbox.ID) error) func(jobActs, context.Context,
	outbox.ID) (bool, error) {
	return func(o jobActs, ctx context.Context, id outbox.ID) (bool, error) { return false, do(o, ctx, id) }
}

const actDescription = `Acts on the IDs, or on the jobs that match all of the filters. A filter without --status
means jobs that are %s.

By filter it acts on the jobs that exist when it starts, newest first, and skips those
to which something has happened when their turn comes. It may be interrupted at any time; the
jobs done so far stay done. To continue, repeat the command.`

func (p *program) actCommand(a jobAct, more ...cli.Flag) *cli.Command {
	return &cli.Command{
		Name: a.name, Usage: a.usage, ArgsUsage: "[ID…]", Description: fmt.Sprintf(actDescription, oneOf(a.unless)),
		Flags: slices.Concat(jobFlags(), more, []cli.Flag{
			reasonFlag(),
			dryRunFlag("list the jobs it would act on, or count them by filter, as they are now"),
			yesFlag(),
		}),
		Action: func(ctx context.Context, c *cli.Command) error {
			ids, filter, err := whichJobs(c, a)
			if err != nil {
				return err
			}
			return operate(ctx, p, c, func(ctx context.Context, o jobActs) error {
				if len(ids) > 0 {
					return p.actOnNamed(ctx, c, o, a, ids)
				}
				return p.actOnMatching(ctx, c, o, a, filter)
			})
		},
	}
}

// whichJobs returns the jobs for a command to act on: without ids, those of the filter.
func whichJobs(c *cli.Command, a jobAct) (ids []outbox.ID, f operator.Filter, err error) {
	f, err = jobConditions(c)
	for _, s := range f.Statuses {
		if err == nil && !slices.Contains(a.possible, s) {
			err = fmt.Errorf("--status is %s: want %s, or there is nothing to %s", s, oneOf(a.possible), a.name)
		}
	}
	if err != nil {
		return nil, f, &usageError{err}
	}
	filtered := !f.Tenant.IsZero() || f.Kind != "" || f.Queue != "" || f.Key != "" || f.Fingerprint != "" ||
		len(f.Statuses) > 0 || !f.CreatedSince.IsZero() || !f.CreatedUntil.IsZero()
	switch {
	case c.NArg() > 0 && filtered:
		return nil, f, usagef("want IDs or filters, not both")
	case c.NArg() > 0:
		ids, err = jobIDs(c)
		return ids, f, err
	case !filtered:
		return nil, f, usagef("no jobs selected: want IDs or filters (see %s --help)", c.FullName())
	}
	if len(f.Statuses) == 0 {
		f.Statuses = a.unless
	}
	return nil, f, nil
}

// actOnNamed acts on each of the jobs. A failure does not keep it from the other jobs.
func (p *program) actOnNamed(ctx context.Context, c *cli.Command, o jobActs, a jobAct, ids []outbox.ID) error {
	if c.Bool("dry-run") {
		return p.onEach(ids, "would "+a.name+" ", func(id outbox.ID) error { return isPossible(ctx, o, a, id) })
	}
	if err := p.sure(ctx, c, a.name, len(ids), "jobs"); err != nil {
		return err
	}
	return p.onEach(ids, "", func(id outbox.ID) error {
		requested, err := a.do(o, ctx, id)
		if requested { // those that were running are not cancelled yet
			fmt.Fprintf(p.stderr, "%s is running: its handler has been asked to stop\n", id)
		}
		return err
	})
}

// onEach prints, after word, the jobs for which do returns no error.
func (p *program) onEach(ids []outbox.ID, word string, do func(outbox.ID) error) error {
	var errs []error
	for _, id := range ids {
		if err := do(id); err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(p.stdout, "%s%s\n", word, id)
	}
	return errors.Join(errs...)
}

// isPossible returns why an act on the job would be refused.
func isPossible(ctx context.Context, o jobActs, a jobAct, id outbox.ID) error {
	job, err := o.Job(ctx, id)
	if err == nil {
		err = a.wouldDo(job)
	}
	if r, ok := o.(*remote); ok && err == nil && a.inTime { // the API does not show what the database's clock says
		var would partDone
		if would, err = r.actOnSome(ctx, a.name, []foundJob{{id: id}}, true); err == nil && would.passed > 0 {
			err = fmt.Errorf("%s job %s: %w", a.name, id, operator.ErrPastDeadline)
		}
	}
	return err
}

// wouldDo returns why an act on a job in its present state would be refused.
func (a jobAct) wouldDo(job operator.Job) error {
	switch {
	case !slices.Contains(a.possible, job.Status):
		return &operator.StatusError{ID: job.ID, Status: job.Status, Act: a.name}
	case a.inTime && job.PastDeadline:
		return fmt.Errorf("%s job %s: %w", a.name, job.ID, operator.ErrPastDeadline)
	}
	return nil
}

// actOnMatching acts on the jobs that match the filter now: it finds all of them first, so that nobody confirms less
// than what happens.
func (p *program) actOnMatching(ctx context.Context, c *cli.Command, o jobActs, a jobAct, f operator.Filter) error {
	var found []foundJob
	for job, err := range o.All(ctx, f) {
		if err != nil {
			return err
		}
		found = append(found, foundAs(job))
	}
	requested := 0
	if c.Bool("dry-run") {
		would := operator.BulkProgress{}
		for progress, err := range a.inParts(ctx, o, found, &requested, a.wouldDoPart) {
			if err != nil {
				return err
			}
			would = progress
		}
		return p.dryRun(a.name, would.Done)
	}
	if err := p.sure(ctx, c, a.name, len(found), "jobs"); err != nil {
		return err
	}
	switch to := o.(type) { // a job that has moved on since is not what was confirmed
	case *operator.Operator:
		o = to.Only(f.Statuses...)
	case *remote:
		o = to.only(f.Statuses)
	}
	err := p.follow(a.name, a.inParts(ctx, o, found, &requested, a.onPart))
	if requested > 0 {
		fmt.Fprintf(p.stderr, "%d of them are running: their handlers have been asked to stop\n", requested)
	}
	return err
}

// foundJob is a job as a filter found it. Its epoch is that of which somebody has confirmed the act: it distinguishes a
// dead letter from one that was run again since, and died once more.
type foundJob struct {
	id    outbox.ID
	epoch *int64 // nil if it is not known, because the API's caller may not see it
}

func foundAs(j operator.Job) foundJob {
	if j.Tenant.IsZero() {
		return foundJob{id: j.ID}
	}
	return foundJob{j.ID, &j.Epoch}
}

const actPart = 100 // jobs per step of the progress; one request through the API

// inParts acts on jobs, one after the other, and counts those that were only asked.
func (a jobAct) inParts(ctx context.Context, o jobActs, jobs []foundJob, requested *int,
	do func(context.Context, jobActs, []foundJob) (partDone, error),
) iter.Seq2[operator.BulkProgress, error] {
	return func(yield func(operator.BulkProgress, error) bool) {
		progress := operator.BulkProgress{Matched: int64(len(jobs))}
		var locked []string
		for part := range slices.Chunk(jobs, actPart) {
			done, err := do(ctx, o, part)
			progress.Done += int64(done.done)
			progress.Passed += int64(done.passed + len(done.locked))
			*requested += done.requested
			if locked = append(locked, done.locked...); err != nil {
				err = errors.Join(lockedOut(a.name, locked), err)
			}
			if !yield(progress, err) || err != nil {
				return
			}
		}
		if len(locked) > 0 { // which keeps it from no other job
			yield(progress, lockedOut(a.name, locked))
		}
	}
}

// partDone is the result of an act on some jobs; requested ones count as done, too.
type partDone struct {
	done, requested, passed int
	locked                  []string // ids of jobs that another transaction has locked: nothing was done
}

// wouldDoPart counts what onPart would do.
func (a jobAct) wouldDoPart(ctx context.Context, o jobActs, jobs []foundJob) (d partDone, err error) {
	if r, ok := o.(*remote); ok {
		return r.actOnSome(ctx, a.name, jobs, true)
	}
	wanted := make([]operator.Wanted, len(jobs))
	for i, job := range jobs {
		wanted[i].ID = job.id
	}
	found, err := o.Find(ctx, wanted)
	for _, job := range found {
		if job.ID.IsZero() || a.wouldDo(job) != nil {
			d.passed++
		} else {
			d.done++
		}
	}
	return d, err
}

func (a jobAct) onPart(ctx context.Context, o jobActs, jobs []foundJob) (d partDone, err error) {
	if r, ok := o.(*remote); ok {
		return r.actOnSome(ctx, a.name, jobs, false)
	}
	for _, job := range jobs {
		on := o
		if direct, ok := o.(*operator.Operator); ok && job.epoch != nil {
			on = direct.AtEpoch(*job.epoch)
		}
		requested, err := a.do(on, ctx, job.id)
		switch _, conflict := errors.AsType[*operator.StatusError](err); {
		case err == nil:
			d.done++
		case conflict, errors.Is(err, operator.ErrNotFound), errors.Is(err, operator.ErrPastDeadline):
			d.passed++
		case pgsession.IsLockedOut(err):
			d.locked = append(d.locked, job.id.String())
		default:
			return d, err
		}
		if requested {
			d.requested++
		}
	}
	return d, nil
}

// oneOf returns a readable list: created, pending or blocked.
func oneOf(statuses []outbox.Status) string {
	text := ""
	for i, s := range statuses {
		switch i {
		case 0:
		case len(statuses) - 1:
			text += " or "
		default:
			text += ", "
		}
		text += string(s)
	}
	return text
}
