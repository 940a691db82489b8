package main

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v3"
	"golang.org/x/sync/errgroup"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// operatorFlags returns the flags of the commands that query the database or the API.
func operatorFlags() []cli.Flag { return flags("database-url", "api", "token") }

// operate runs a command's act on the database or, with --api, through the API. B contains what the command queries and
// does; an *operator.Operator can do all of it. If the API has no route for something, *remote has no method for it,
// and the command reports that.
func operate[B any](ctx context.Context, p *program, c *cli.Command, act func(context.Context, B) error) error {
	s, err := p.load(c, "database-url", "api", "token")
	if err != nil {
		return err
	}
	viaAPI, err := wantsAPI(c, s)
	if err != nil {
		return err
	}
	if viaAPI {
		return p.throughAPI(ctx, c, s, func(ctx context.Context, r *remote) error {
			b, can := any(r).(B)
			if !can {
				return usagef("%s: %s", c.FullName(), notThroughAPI)
			}
			return act(ctx, b)
		})
	}
	return withPool(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) error {
		o := operator.New(pool).As(p.actor()).Because(c.String("reason"))
		return inFlagWords(act(ctx, any(o).(B))) // each B is checked next to its declaration
	})
}

func wantsAPI(c *cli.Command, s settings) (bool, error) {
	if c.IsSet("api") && c.IsSet("database-url") {
		return false, usagef("--api and --database-url: want one of them")
	}
	return s.apiURL != "" && !c.IsSet("database-url"), nil
}

func (p *program) throughAPI(ctx context.Context, c *cli.Command, s settings,
	act func(context.Context, *remote) error,
) error {
	way := &line{}
	api, err := client.New(s.apiURL, client.Config{Token: s.apiToken, HTTP: &http.Client{Transport: way}})
	if err != nil {
		return &usageError{err}
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	reason := c.String("reason")
	err = act(client.WithReason(ctx, reason),
		&remote{api: api, line: way, reason: reason, cursors: map[string]string{}})
	if isProblem(err, client.CodeInvalidInput) || isProblem(err, client.CodeMalformedRequest) {
		return &usageError{err}
	}
	return err
}

// remote is the API behind the methods of package operator, as far as it has routes.
type remote struct {
	api     *client.Client
	line    *line
	reason  string
	while   []string          // statuses of the jobs that actOnSome acts on; empty means any
	forget  bool              // drop what a job with a new payload has remembered
	cursors map[string]string // of the page after the one that ended with this id
}

// patience limits one request: a shorter limit would give up what the server still works on.
const patience = 30 * time.Second

func patient(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, patience)
}

// idOf parses an id of the API, a UUID; anything else becomes the zero id.
func idOf(text string) outbox.ID {
	id, _ := outbox.ParseID(text) // "" if there is none
	return id
}

func textOf(id outbox.ID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

// Job leaves out failed attempts if the token may not read them.
func (r *remote) Job(ctx context.Context, id outbox.ID) (operator.Job, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	found, err := r.api.Job(ctx, id.String())
	if err != nil {
		return operator.Job{}, err
	}
	job := jobOf(found)
	attempts, err := r.api.Attempts(ctx, id.String())
	if err != nil && !isProblem(err, client.CodeForbidden) {
		return job, err
	}
	for _, a := range attempts {
		job.Attempts = append(job.Attempts, operator.Attempt{
			Attempt: a.Attempt, Epoch: a.Epoch, Worker: a.Worker, StartedAt: a.StartedAt, FinishedAt: a.FinishedAt,
			ErrorCode: a.Error.Code, ErrorMessage: a.Error.Message, Stack: a.Stack,
		})
	}
	result, err := r.api.Result(ctx, id.String())
	if err != nil && !isProblem(err, client.CodeJobNotFinished) {
		return job, err
	}
	job.Result = result.Result
	if result.ResultBase64 != nil {
		job.Result = result.ResultBase64
	}
	return job, nil
}

func isProblem(err error, code client.Code) bool {
	p, ok := errors.AsType[*client.Problem](err)
	return ok && p.Code == code
}

func jobOf(j client.Job) operator.Job {
	job := operator.Job{
		ID: idOf(j.ID), Parent: idOf(j.Parent), Queue: j.Queue, Kind: j.Kind, Status: outbox.Status(j.Status),
		Priority: j.Priority, Key: j.Key,
		CreatedAt: j.CreatedAt, RunAt: j.RunAt, Deadline: j.Deadline, StartedAt: j.StartedAt, FinishedAt: j.FinishedAt,
		CancelRequestedAt: j.CancelRequestedAt,
		ContentType:       j.PayloadContentType, Payload: j.Payload,
	}
	if j.PayloadBase64 != nil {
		job.Payload = j.PayloadBase64
	}
	if j.Error != nil {
		job.ErrorCode, job.ErrorMessage = j.Error.Code, j.Error.Message
	}
	if in := j.Internals; in != nil {
		job.Tenant, job.Attempt, job.MaxAttempts, job.LostLeases, job.Epoch = idOf(in.Tenant), in.Attempt,
			in.MaxAttempts, in.LostLeases, in.Epoch
		job.Timeout, job.Worker, job.LeaseExpiresAt = seconds(in.TimeoutSeconds), in.Worker, in.LeaseExpiresAt
		for _, wait := range in.BackoffSeconds {
			job.Backoff = append(job.Backoff, seconds(wait))
		}
		job.PayloadBytes, job.Streamed, job.Headers = in.PayloadBytes, in.Streamed, in.Headers
	}
	return job
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// Jobs reads one page. The cursor that came with a page leads to the next one; to find the page before a job that has
// not been listed yet, it reads through all newer ones.
func (r *remote) Jobs(ctx context.Context, f operator.Filter) ([]operator.Job, error) {
	filter := jobFilterOf(f)
	found, err := before(r.cursors, textOf(f.Before), f.Limit,
		func(limit int, cursor string) ([]client.Job, string, error) {
			ctx, cancel := patient(ctx)
			defer cancel()
			page, err := r.api.JobPage(ctx, filter, client.PageRequest{Limit: limit, Cursor: cursor})
			return page.Jobs, page.Next, err
		}, func(j client.Job) string { return j.ID })
	jobs := make([]operator.Job, len(found))
	for i, j := range found {
		jobs[i] = jobOf(j)
	}
	return jobs, err
}

// Page reads a page as Jobs does: each of its requests takes bounded time.
func (r *remote) Page(ctx context.Context, f operator.Filter) (operator.JobPage, error) {
	f.Limit = cmp.Or(f.Limit, operator.DefaultLimit)
	jobs, err := r.Jobs(ctx, f)
	if err != nil || len(jobs) < f.Limit {
		return operator.JobPage{Jobs: jobs}, err
	}
	return operator.JobPage{Jobs: jobs, Next: jobs[len(jobs)-1].ID}, nil
}

// All reads page after page.
func (r *remote) All(ctx context.Context, f operator.Filter) iter.Seq2[operator.Job, error] {
	return func(yield func(operator.Job, error) bool) {
		for f.Limit = operator.MaxLimit; ; {
			jobs, err := r.Jobs(ctx, f)
			if err != nil {
				yield(operator.Job{}, err)
				return
			}
			for _, job := range jobs {
				if !yield(job, nil) {
					return
				}
				f.Before = job.ID
			}
			if len(jobs) < f.Limit {
				return
			}
		}
	}
}

func jobFilterOf(f operator.Filter) client.JobFilter {
	filter := client.JobFilter{
		Tenant: textOf(f.Tenant), Kind: f.Kind, Queue: f.Queue, Key: f.Key, Fingerprint: f.Fingerprint,
		CreatedSince: f.CreatedSince, CreatedUntil: f.CreatedUntil,
		Worker: f.Worker, ErrorCode: f.ErrorCode, MinAttempt: f.MinAttempt, Parent: textOf(f.Parent),
		IDPrefix: f.IDPrefix, Contains: f.Contains,
		FinishedSince: f.FinishedSince, FinishedUntil: f.FinishedUntil,
	}
	for _, s := range f.Statuses {
		filter.Status = append(filter.Status, string(s))
	}
	return filter
}

// before reads the page that begins after the item with the given id: with the cursor that is remembered for it, or
// else by reading from the first page on. Ids sort as their items do, newest first.
func before[T any](cursors map[string]string, id string, limit int,
	read func(limit int, cursor string) ([]T, string, error), idOf func(T) string,
) (page []T, err error) {
	cursor, known := cursors[id]
	for {
		items, next, err := read(limit-len(page), cursor)
		if err != nil {
			return nil, err
		}
		if len(items) > 0 && next != "" {
			cursors[idOf(items[len(items)-1])] = next
		}
		for _, item := range items {
			if id == "" || known || idOf(item) < id {
				page = append(page, item)
			}
		}
		if next == "" || len(page) >= limit {
			return page, nil
		}
		cursor = next
	}
}

// Find queries each job individually.
func (r *remote) Find(ctx context.Context, wanted []operator.Wanted) ([]operator.Job, error) {
	found := make([]operator.Job, len(wanted))
	var g errgroup.Group
	g.SetLimit(4)
	for i, w := range wanted {
		g.Go(func() error {
			ctx, cancel := patient(ctx)
			defer cancel()
			job, err := r.api.Job(ctx, w.ID.String())
			if err == nil {
				found[i] = jobOf(job)
			} else if isProblem(err, client.CodeJobNotFound) {
				err = nil
			}
			return err
		})
	}
	return found, g.Wait()
}

func (r *remote) Progress(ctx context.Context, id outbox.ID) (operator.Progress, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	p, err := r.api.Progress(ctx, id.String())
	return operator.Progress{Current: p.Current, Total: p.Total, Message: p.Message, ReportedAt: p.ReportedAt}, err
}

// Steps returns none if the token may not read them.
func (r *remote) Steps(ctx context.Context, id outbox.ID) ([]operator.Step, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	found, err := r.api.Steps(ctx, id.String())
	if isProblem(err, client.CodeForbidden) {
		err = nil
	}
	steps := make([]operator.Step, len(found))
	for i, s := range found {
		steps[i] = operator.Step{
			Name: s.Name, Epoch: s.Epoch, FinishedAt: s.FinishedAt, Took: seconds(s.TookSeconds),
			Result: s.Result,
		}
	}
	return steps, err
}

// Logs continues where the latest call for the job ended, unless after is zero: the API has its own form of places.
func (r *remote) Logs(ctx context.Context, id outbox.ID, after operator.LogPosition) ([]operator.LogLine, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	ended := "the log of " + id.String()
	place := ""
	if after != (operator.LogPosition{}) {
		place = r.cursors[ended]
	}
	log, err := r.api.Log(ctx, id.String(), place)
	if err != nil {
		return nil, err
	}
	r.cursors[ended] = log.Next
	lines := make([]operator.LogLine, len(log.Lines))
	for i, l := range log.Lines {
		lines[i] = operator.LogLine{LogPosition: operator.LogPosition{Line: l.Line}, At: l.At, Message: l.Message}
		_ = lines[i].Level.UnmarshalText([]byte(l.Level)) // INFO if it is not a level of slog
	}
	return lines, nil
}
