package main

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// followInterval is how long jobs logs --follow waits between looks.
const followInterval = 500 * time.Millisecond

func (p *program) jobLogsCommand() *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Usage:     "print the newest lines that a job has logged, oldest first",
		ArgsUsage: "ID",
		Flags: append(operatorFlags(), jsonOrText(),
			&cli.BoolFlag{
				Name: "follow", Aliases: []string{"f"},
				Usage: "print new lines as they arrive, until the job is closed or is a dead letter",
			}),
		Action: p.jobLogs,
	}
}

type jobLog interface {
	Job(context.Context, outbox.ID) (operator.Job, error)
	Logs(context.Context, outbox.ID, operator.LogPosition) ([]operator.LogLine, error)
}

var _ jobLog = (*operator.Operator)(nil)

// jsonOrText replaces outputFlag where lines are printed as they come: a table would have to wait for the last one.
func jsonOrText() cli.Flag {
	return &cli.StringFlag{
		Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "`text|json`; json prints an object per line",
		Validator: func(v string) error {
			if _, err := parseOneOf(v, "text", "json"); err != nil {
				return fmt.Errorf("--output is %q: %w", v, err)
			}
			return nil
		},
	}
}

func (p *program) jobLogs(ctx context.Context, c *cli.Command) error {
	ids, err := jobIDs(c)
	if err != nil {
		return err
	}
	if len(ids) != 1 {
		return wantArgs(c, 1, 1)
	}
	return operate(ctx, p, c, func(ctx context.Context, o jobLog) error {
		after := operator.LogPosition{}
		look := func() (ended bool, err error) {
			// Query the status first: lines that are logged before a job ends are visible once it has ended.
			ended = true
			if c.Bool("follow") {
				job, err := o.Job(ctx, ids[0])
				if err != nil {
					return false, err
				}
				ended = job.Status.Closed() || job.Status == outbox.Failed || job.Status == outbox.Dead
			}
			lines, err := o.Logs(ctx, ids[0], after)
			if err != nil {
				return false, err
			}
			for _, line := range lines {
				if err := p.printLogLine(c, line); err != nil {
					return false, &printError{err}
				}
				after = line.LogPosition
			}
			return ended, nil
		}
		ended, err := look()
		switch {
		case c.Bool("follow") && ctx.Err() != nil:
			return nil // asked to stop
		case ended || err != nil:
			return err
		}
		return lookAgain(ctx, followInterval, p.comment, look)
	})
}

func (p *program) printLogLine(c *cli.Command, l operator.LogLine) error {
	if c.String("output") == "json" {
		object, err := listing{header: []string{"at", "level", "message", "epoch", "line"}}.object(
			[]any{instant(l.At), l.Level.String(), l.Message, known(l.Epoch), l.Line})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(p.stdout, string(object))
		return err
	}
	_, err := fmt.Fprintln(p.stdout, l.At.Local().Format("2006-01-02 15:04:05.000"), fmt.Sprintf("%-5s", l.Level),
		oneLine(l.Message))
	return err
}

// jobReports is what a job has reported, except for its log.
type jobReports struct {
	progress   operator.Progress
	checkpoint operator.Checkpoint
	steps      []operator.Step
}

// collectReports leaves the checkpoint out if it cannot be queried: the API does not show what a handler remembers.
func collectReports(ctx context.Context, o jobDetails, id outbox.ID) (r jobReports, err error) {
	if r.progress, err = o.Progress(ctx, id); err != nil {
		return r, err
	}
	if direct, ok := o.(interface {
		Checkpoint(context.Context, outbox.ID) (operator.Checkpoint, error)
	}); ok {
		if r.checkpoint, err = direct.Checkpoint(ctx, id); err != nil {
			return r, err
		}
	}
	r.steps, err = o.Steps(ctx, id)
	return r, err
}

var reportColumns = []string{"progress", "checkpoint", "steps"}

// objects returns the values of reportColumns for machines.
func (r jobReports) objects() []any {
	var progress, checkpoint any
	if p := r.progress; !p.ReportedAt.IsZero() {
		progress = map[string]any{
			"current": p.Current, "total": p.Total, "message": p.Message,
			"reported_at": instant(p.ReportedAt),
		}
	}
	if c := r.checkpoint; c.Data != nil {
		checkpoint = map[string]any{"data": content("", c.Data), "saved_at": instant(c.SavedAt), "epoch": c.Epoch}
	}
	steps := []map[string]any{}
	for _, s := range r.steps {
		steps = append(steps, map[string]any{
			"name": s.Name, "epoch": s.Epoch, "finished_at": instant(s.FinishedAt), "took": s.Took.String(),
			"result": content("", s.Result),
		})
	}
	return []any{progress, checkpoint, steps}
}

// readable returns the same values for people.
func (r jobReports) readable() []any {
	return []any{readableProgress(r.progress), readable(r.checkpoint.Data), len(r.steps)}
}

func readableProgress(p operator.Progress) string {
	if p.ReportedAt.IsZero() {
		return ""
	}
	text := fmt.Sprint(p.Current)
	if p.Total > 0 {
		text = fmt.Sprintf("%d of %d (%.0f %%)", p.Current, p.Total, 100*float64(p.Current)/float64(p.Total))
	}
	return fmt.Sprintf("%s %s (%s)", text, p.Message, p.ReportedAt.Local().Format(time.RFC3339))
}
