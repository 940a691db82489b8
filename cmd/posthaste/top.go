package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/operator"
)

const topDescription = `Shows depth, oldest age, rates, how long jobs waited and ran, dispatchers and dead
letters, and redraws them every interval until q or Ctrl-C. Without a terminal, or with
-n, it prints frames one after the other.

The cost of a frame hardly depends on the number of jobs: with more than some ten
thousand open jobs, waiting ones are counted on a sample (~). Rates come from Postgres's
own counters, which lag by up to a second; times are those of the jobs that closed last.

Through the API (--api) a frame shows the counts that the server has cached, with their
time at the top, and the dispatchers if the token is one of all tenants.`

func (p *program) topCommand() *cli.Command {
	return &cli.Command{
		Name: "top", Usage: "watch queue depth, throughput, latency, workers and dead letters",
		Description: topDescription,
		Flags: append(operatorFlags(),
			&cli.DurationFlag{
				Name: "interval", Aliases: []string{"i"}, Value: 2 * time.Second,
				Usage: "`DURATION` between frames",
			},
			&cli.IntFlag{
				Name: "frames", Aliases: []string{"n"},
				Usage: "print `N` frames and end; without a terminal: 1",
			}),
		Action: p.top,
	}
}

func (p *program) top(ctx context.Context, c *cli.Command) error {
	if err := wantArgs(c, 0, 0); err != nil {
		return err
	}
	interval, frames := c.Duration("interval"), c.Int("frames")
	var errs []error
	if interval < 100*time.Millisecond || interval > time.Hour {
		errs = append(errs, fmt.Errorf("--interval is %s: want 100ms to 1h", interval))
	}
	if frames < 0 || c.IsSet("frames") && frames == 0 {
		errs = append(errs, fmt.Errorf("--frames is %d: want at least 1", frames))
	}
	if len(errs) > 0 {
		return &usageError{errors.Join(errs...)}
	}
	return operate(ctx, p, c, func(ctx context.Context, o topView) error {
		w := &lookout{look: func(ctx context.Context) (sight, error) { return lookAround(ctx, o) }}
		if stdin, ok := p.stdin.(*os.File); ok && frames == 0 && isTerminal(stdin) && isTerminal(p.stdout.screen()) {
			return p.showScreen(ctx, w, interval)
		}
		return p.printFrames(ctx, w, interval, max(1, frames))
	})
}

type topView interface {
	overviewer
	workerList
}

// sight is the content of one frame.
type sight struct {
	operator.Overview
	cached  bool // by the API, some seconds ago
	workers []operator.Worker
	hidden  bool // ages, rates, times and workers are: the token may not see what all tenants share
	took    time.Duration
}

func lookAround(ctx context.Context, o topView) (s sight, err error) {
	began := time.Now()
	_, s.cached = o.(*remote)
	if s.Overview, err = o.Overview(ctx); err == nil {
		s.workers, err = o.Workers(ctx)
		if s.hidden = isProblem(err, client.CodeForbidden); s.hidden {
			err = nil
		}
	}
	s.took = time.Since(began)
	return s, err
}

// lookout remembers the looks from which rates are derived.
type lookout struct {
	look   func(context.Context) (sight, error)
	latest sight
	rates  rates
	err    error // of the latest look, which left the rest unchanged
}

// rates are in jobs per second, known from the second look on.
type rates struct {
	known            bool
	enqueued, closed float64
}

// again looks, and computes the rates.
func (w *lookout) again(ctx context.Context) {
	s, err := w.look(ctx)
	if w.err = err; err != nil {
		return
	}
	if !s.AsOf.Equal(w.latest.AsOf) { // or the API has not counted again
		w.rates = ratesBetween(w.latest.Overview, s.Overview)
	}
	w.latest = s
}

func ratesBetween(a, b operator.Overview) rates {
	seconds := b.AsOf.Sub(a.AsOf).Seconds()
	if a.AsOf.IsZero() || seconds <= 0 {
		return rates{}
	}
	return rates{
		known: true,
		// A counter that was reset, or lost a dropped day, starts over.
		enqueued: max(0, float64(b.Enqueued-a.Enqueued)) / seconds,
		closed:   max(0, float64(b.Closed-a.Closed)) / seconds,
	}
}

// printFrames shows what top shows, without a screen. A look that fails ends it.
func (p *program) printFrames(ctx context.Context, w *lookout, interval time.Duration, frames int) error {
	for i := range frames {
		if i > 0 {
			select {
			case <-ctx.Done():
				return nil // asked to stop
			case <-time.After(interval):
			}
			fmt.Fprintln(p.stdout)
		}
		if w.again(ctx); ctx.Err() != nil {
			return nil // asked to stop
		} else if w.err != nil {
			return w.err
		}
		if _, err := fmt.Fprintln(p.stdout, w.frame()); err != nil {
			return err
		}
	}
	return nil
}
