package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

type queueActs interface {
	Queues(context.Context) ([]operator.Queue, error)
	QueuesOf(ctx context.Context, tenant outbox.ID) ([]operator.Queue, error)
	Pause(ctx context.Context, queue string) error
	Resume(ctx context.Context, queue string) error
	Limit(ctx context.Context, queue string, limits operator.Limits) (int, operator.Rate, error)
}

var (
	_ queueActs = (*operator.Operator)(nil)
	_ queueActs = (*remote)(nil)
)

func (p *program) queuesCommand() *cli.Command {
	return &cli.Command{
		Name:  "queues",
		Usage: "list, pause, resume and limit queues",
		Commands: []*cli.Command{
			{
				Name:   "list",
				Usage:  "list the queues with open jobs and those that are paused or limited",
				Flags:  append(operatorFlags(), outputFlag(), onlyTenantFlag()),
				Action: p.listQueues,
			},
			p.queueCommand("pause", "stop claims of a queue in all processes; running jobs continue", queueActs.Pause),
			p.queueCommand("resume", "resume claims of a queue", queueActs.Resume),
			p.limitCommand(),
		},
	}
}

func (p *program) listQueues(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	var tenant outbox.ID
	if err := readTenant(c, &tenant); err != nil {
		return &usageError{err}
	}
	return operate(ctx, p, c, func(ctx context.Context, o queueActs) error {
		list := o.Queues
		if !tenant.IsZero() {
			list = func(ctx context.Context) ([]operator.Queue, error) { return o.QueuesOf(ctx, tenant) }
		}
		queues, err := list(ctx)
		if err != nil {
			return err
		}
		l := listing{header: []string{"queue", "paused_since", "max_running", "rate", "unavailable"}}
		for _, s := range openStatuses() {
			l.header = append(l.header, string(s))
		}
		for _, q := range queues {
			row := []any{
				q.Name, instant(q.PausedSince), limitText(q.MaxRunning), rateText(q.Rate),
				kindsText(q.Unavailable),
			}
			for _, s := range openStatuses() {
				row = append(row, q.Jobs[s])
			}
			l.add(row...)
		}
		return p.print(c, l)
	})
}

func openStatuses() (open []outbox.Status) {
	for _, s := range engine.Statuses[outbox.Status]() {
		if !s.Closed() {
			open = append(open, s)
		}
	}
	return open
}

func (p *program) queueCommand(name, usage string, act func(queueActs, context.Context, string) error) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, ArgsUsage: "QUEUE", Flags: append(operatorFlags(), reasonFlag()),
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := wantArgs(c, 1, 1); err != nil {
				return err
			}
			queue := c.Args().First()
			return operate(ctx, p, c, func(ctx context.Context, o queueActs) error {
				note := unusedQueue(ctx, o, queue)
				if err := act(o, ctx, queue); err != nil {
					return inFlagWords(err)
				}
				p.note(note)
				_, err := fmt.Fprintf(p.stdout, "%sd: %s\n", name, queue)
				return err
			})
		},
	}
}

// noteWithin is how long an act waits for a note: a database in trouble is slow, and the act is to help it.
const noteWithin = time.Second

// unusedQueue returns a note for a person who names a queue that has no open job and was neither paused nor limited:
// that is right before its first job, and otherwise a typing error. It must be called before an act, which makes the
// queue known. "" means no note, also where the queues cannot be listed within noteWithin.
func unusedQueue(ctx context.Context, o queueActs, queue string) string {
	ctx, cancel := context.WithTimeout(ctx, noteWithin)
	defer cancel()
	queues, err := o.Queues(ctx)
	var names []string
	for _, q := range queues {
		names = append(names, q.Name)
	}
	if err != nil || slices.Contains(names, queue) {
		return ""
	}
	return fmt.Sprintf("no open job is in queue %s, and it was neither paused nor limited%s", queue,
		didYouMean(queue, names))
}

func (p *program) limitCommand() *cli.Command {
	return &cli.Command{
		Name: "limit", Usage: "limit, in all processes together, how many jobs of a queue run at once and how many start in an interval", ArgsUsage: "QUEUE",
		Description: `Limits that are not named stay as they are. With a rate of 100/1m, no more than 100 jobs
start in any minute; all of them may start at once.`,
		Flags: append(operatorFlags(), reasonFlag(),
			&cli.IntFlag{Name: "max-running", Usage: "`N` jobs may run at once"},
			&cli.StringFlag{Name: "rate", Usage: "at most `N/INTERVAL` jobs may start, like 10/s or 100/5m"},
			&cli.BoolFlag{Name: "no-max-running", Usage: "any number may run at once"},
			&cli.BoolFlag{Name: "no-rate", Usage: "any number may start"},
		),
		Action: p.limitQueue,
	}
}

func (p *program) limitQueue(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 1, 1); err != nil {
		return err
	}
	queue := c.Args().First()
	limits, err := limitFlags(c)
	if err != nil {
		return &usageError{err}
	}
	return operate(ctx, p, c, func(ctx context.Context, o queueActs) error {
		note := unusedQueue(ctx, o, queue)
		maxRunning, rate, err := o.Limit(ctx, queue, limits)
		if err != nil {
			return inFlagWords(err)
		}
		p.note(note)
		_, err = fmt.Fprintf(p.stdout, "%s: %s\n", queue, limitsText(maxRunning, rate))
		return err
	})
}

func limitFlags(c *cli.Command) (limits operator.Limits, err error) {
	var errs []error
	for _, flag := range []string{"max-running", "rate"} {
		if c.IsSet(flag) && c.Bool("no-"+flag) {
			errs = append(errs, fmt.Errorf("--%s and --no-%[1]s exclude each other", flag))
		}
	}
	switch n := c.Int("max-running"); {
	case c.Bool("no-max-running"):
		limits.MaxRunning = new(0)
	case c.IsSet("max-running") && (n < 1 || n > operator.MaxRunningLimit):
		errs = append(errs, fmt.Errorf("--max-running is %d, want 1 to %d", n, operator.MaxRunningLimit))
	case c.IsSet("max-running"):
		limits.MaxRunning = &n
	}
	switch {
	case c.Bool("no-rate"):
		limits.Rate = new(operator.Rate{})
	case c.IsSet("rate"):
		rate, err := parseRate(c.String("rate"))
		if err != nil {
			errs = append(errs, fmt.Errorf("--rate is %q: %w", c.String("rate"), err))
		}
		limits.Rate = &rate
	}
	if limits == (operator.Limits{}) && len(errs) == 0 {
		errs = append(errs, errors.New("say which limit: --max-running, --rate, --no-max-running or --no-rate"))
	}
	return limits, errors.Join(errs...)
}

// parseRate parses 100/1m, and its short form 100/m.
func parseRate(v string) (rate operator.Rate, err error) {
	starts, interval, found := strings.Cut(v, "/")
	if !found {
		return rate, errors.New("want N/INTERVAL, like 10/s or 100/5m")
	}
	if rate.Starts, err = strconv.Atoi(starts); err != nil || rate.Starts < 1 || rate.Starts > operator.MaxRateStarts {
		return rate, fmt.Errorf("want 1 to %d starts", operator.MaxRateStarts)
	}
	if interval != "" && (interval[0] < '0' || interval[0] > '9') {
		interval = "1" + interval
	}
	rate.Interval, err = parseDuration(interval, operator.MinRateInterval, operator.MaxRateInterval)
	return rate, err
}

func limitText(maxRunning int) any {
	if maxRunning == 0 {
		return nil
	}
	return maxRunning
}

// kindsText lists kinds; it returns nil if the API leaves them out, or there are none.
func kindsText(kinds map[string]time.Time) any {
	if len(kinds) == 0 {
		return nil
	}
	return strings.Join(slices.Sorted(maps.Keys(kinds)), " ")
}

func rateText(rate operator.Rate) any {
	if rate.Starts == 0 {
		return nil
	}
	return fmt.Sprintf("%d/%s", rate.Starts, short(rate.Interval))
}

func limitsText(maxRunning int, rate operator.Rate) string {
	var parts []string
	if maxRunning > 0 {
		parts = append(parts, fmt.Sprintf("%d running at once", maxRunning))
	}
	if rate.Starts > 0 {
		parts = append(parts, fmt.Sprintf("%d starts in %s", rate.Starts, short(rate.Interval)))
	}
	return cmp.Or(strings.Join(parts, ", "), "no limits")
}
