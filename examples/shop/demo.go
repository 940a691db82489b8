package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// patience is how long after the last order everything has to be done.
const patience = 90 * time.Second

var (
	errInterrupted = errors.New("interrupted")
	errDisproved   = errors.New("not everything holds that was promised")
	errTooLong     = errors.New("the jobs did not come to an end")
)

// demo is one demonstration. See tell for its story.
type demo struct {
	orders   int
	over     time.Duration // how long the customers take
	leaseTTL time.Duration
	stay     bool

	*premises
	screen    *screen
	team      *team
	customers *customers
	began     time.Time
	victim    atomic.Pointer[worker]
	open      bool  // until somebody interrupts: everything was proven
	leftover  error // what the clean-up could not do
}

// runDemo runs the demonstration and clears everything away, however it ends.
func runDemo(ctx context.Context, args []string) error {
	d := &demo{}
	flags := flag.NewFlagSet("shop demo", flag.ContinueOnError)
	flags.IntVar(&d.orders, "orders", 2000, "how many orders are placed")
	flags.DurationVar(&d.over, "for", 24*time.Second, "how long that takes")
	flags.DurationVar(&d.leaseTTL, "lease-ttl", 15*time.Second, "when a dead worker's jobs are taken over")
	flags.BoolVar(&d.stay, "stay", false, "leave the shop running until Ctrl-C")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp // Parse has printed the mistake
	}
	if d.orders < 1 || d.over <= 0 || d.leaseTTL < time.Second {
		return errors.New("want --orders 1 or more, --for more than 0, --lease-ttl 1s or more")
	}

	signal.Ignore(syscall.SIGPIPE) // a reader who goes away is noticed by the screen
	signals, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, fail := context.WithCancelCause(signals)
	defer fail(nil)
	go watchParent(ctx, fail)

	err := d.run(ctx, fail)
	if d.leftover != nil || signals.Err() == nil {
		return errors.Join(err, d.leftover)
	}
	d.screen.say("stopped; the workers and the database are gone")
	if err == nil || d.open {
		return nil
	}
	return errInterrupted
}

// run sets up, tells the story, and clears away.
func (d *demo) run(ctx context.Context, fail context.CancelCauseFunc) (err error) {
	d.screen = newScreen(os.Stdout, fail)
	d.premises, err = prepare(ctx, d.screen)
	if err != nil {
		return endedBy(ctx, err)
	}
	d.customers = &customers{producer: outbox.NewProducer(d.db, outbox.NotifyCoalesced)}
	d.team = &team{databaseURL: d.url, leaseTTL: d.leaseTTL, fail: fail}
	endDisplay := d.startDisplay(ctx, fail)
	defer func() {
		endDisplay()
		if stopErr := d.team.stop(stopPatience); ctx.Err() == nil { // Ctrl-C reached the workers too
			err = errors.Join(err, stopErr)
		}
		d.leftover = d.clear()
	}()
	return d.tell(ctx, fail, endDisplay)
}

// tell tells the story: a rush of orders with a death in the middle, and the proof. What goes wrong in the background
// calls fail, which ends ctx.
func (d *demo) tell(ctx context.Context, fail context.CancelCauseFunc, endDisplay func()) error {
	takeover, err := d.rush(ctx, fail)
	if err != nil {
		return err
	}
	if !d.stay {
		if err := d.team.stop(stopPatience); err != nil {
			return endedBy(ctx, err)
		}
		d.event("the workers have drained and stopped")
		endDisplay()
	}
	if err := d.prove(ctx, takeover); err != nil || !d.stay {
		return endedBy(ctx, err)
	}
	return d.goOn(ctx)
}

// rush has two workers serve the customers, kills one of them, hires another, and
// returns when nothing is left to do.
func (d *demo) rush(ctx context.Context, fail context.CancelCauseFunc) (takeover *takeover, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.over+patience, errTooLong)
	var background sync.WaitGroup
	defer func() {
		err = d.explain(ctx, err)
		cancel()
		background.Wait()
	}()
	do := func(task func(context.Context) error) {
		background.Go(func() {
			if err := task(ctx); err != nil {
				fail(err)
			}
		})
	}

	if err := d.hire(ctx, "a"); err != nil {
		return nil, err
	}
	if err := d.hire(ctx, "b"); err != nil {
		return nil, err
	}
	do(d.serve)
	if takeover, err = d.kill(ctx); err != nil {
		return nil, err
	}
	taken := takeover // what follows may return while this goes on
	do(func(ctx context.Context) error { return d.follow(ctx, taken) })
	if err := sleep(ctx, d.over/6); err != nil {
		return nil, err
	}
	if err := d.hire(ctx, "c"); err != nil {
		return nil, err
	}
	background.Wait()
	return takeover, d.awaitDone(ctx)
}

// serve has all orders placed.
func (d *demo) serve(ctx context.Context) error {
	d.event("%s orders come in over %s, each with a receipt to send and stock to reserve", number(d.orders), d.over)
	if err := d.customers.come(ctx, d.orders, d.over/time.Duration(d.orders)); err != nil {
		return err
	}
	d.event("all orders are placed")
	return nil
}

// explain makes of an error the reason behind it, and says what is unfinished if
// it all took too long.
func (d *demo) explain(ctx context.Context, err error) error {
	err = endedBy(ctx, err)
	if !errors.Is(err, errTooLong) {
		return err
	}
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	f, lookErr := measure(look, d.db, pickupWindow)
	if lookErr != nil {
		return fmt.Errorf("%w within %s, and the database does not tell what is left: %w", err, d.over+patience,
			lookErr)
	}
	return fmt.Errorf("%w within %s: %d of %d orders placed, jobs waiting %d, running %s, dead %d",
		err, d.over+patience, d.customers.placed.Load(), d.orders, f.waiting, f.whoRuns(d.killed()), f.dead)
}

// hire starts a worker.
func (d *demo) hire(ctx context.Context, name string) error {
	w, err := d.team.start(ctx, name)
	if err == nil {
		d.event("worker %s works: process %d, http://%s/metrics", name, w.cmd.Process.Pid, w.admin)
	}
	return err
}

// kill waits for the middle of the rush and kills a worker that has its hands full. One that had finished all of it
// before it died proves nothing: another takes its place, and the next is killed.
func (d *demo) kill(ctx context.Context) (*takeover, error) {
	if err := sleep(ctx, d.over/3); err != nil {
		return nil, err
	}
	t, err := d.killBusy(ctx)
	for err == nil && len(t.ids) == 0 {
		if err = d.hire(ctx, t.worker+"2"); err == nil {
			t, err = d.killBusy(ctx)
		}
	}
	if err != nil {
		return nil, err
	}
	d.event("%s", d.screen.paint(bold, fmt.Sprintf("kill -9 of worker %s, which held %d jobs; their leases last for %s",
		t.worker, len(t.ids), d.leaseTTL)))
	return t, nil
}

func (d *demo) killBusy(ctx context.Context) (*takeover, error) {
	name, err := awaitBusy(ctx, d.db)
	if err != nil {
		return nil, err
	}
	w, err := d.team.kill(name)
	if err != nil {
		return nil, err
	}
	d.victim.Store(w)
	return watchTakeover(ctx, d.db, w)
}

// killed returns the name of the worker that was killed, "" if none was.
func (d *demo) killed() string {
	if w := d.victim.Load(); w != nil {
		return w.name
	}
	return ""
}

// follow tells of the dead worker's jobs as they run again.
func (d *demo) follow(ctx context.Context, t *takeover) error {
	reported := false
	return poll(ctx, 100*time.Millisecond, func() (bool, error) {
		if err := t.look(ctx, d.db); err != nil {
			return false, err
		}
		if t.again > 0 && !reported && !t.complete() {
			d.event("the first of worker %s's jobs ran again %s after the kill", t.worker, seconds(t.first))
			reported = true
		}
		if t.complete() {
			d.event("all %d jobs of worker %s ran again, %s to %s after the kill", len(t.ids), t.worker,
				seconds(t.first), seconds(t.last))
		}
		return t.complete(), nil
	})
}

// awaitDone returns when no job is left that could be done.
func (d *demo) awaitDone(ctx context.Context) error {
	return poll(ctx, 100*time.Millisecond, func() (bool, error) {
		f, err := measure(ctx, d.db, pickupWindow)
		return f.open() == 0, err
	})
}

// prove prints the figures of the whole run and the checks.
func (d *demo) prove(ctx context.Context, t *takeover) error {
	took := time.Since(d.began)
	f, err := measure(ctx, d.db, took+time.Minute)
	if err != nil {
		return err
	}
	findings, err := check(ctx, d.db, int(d.customers.placed.Load()), t)
	if err != nil {
		return err
	}
	d.screen.say("\n%s orders, %s jobs done in %s · %s failed or interrupted attempts · pickup p50 %s, p99 %s\n",
		number(d.orders), number(f.done), seconds(took), number(f.retries), millis(f.p50), millis(f.p99))
	if !report(d.screen, findings) {
		return errDisproved
	}
	d.screen.say("\n%s", d.screen.paint(green, "Every order had each effect exactly once."))
	return nil
}

// endedBy returns why ctx ended, if it did, in place of an error: errors that followed from that say less.
func endedBy(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// watchParent ends the demonstration when the process that started it is gone,
// such as a `go run` that was killed: nobody could stop it any more.
func watchParent(ctx context.Context, fail context.CancelCauseFunc) {
	parent := os.Getppid()
	for sleep(ctx, time.Second) == nil {
		if os.Getppid() != parent {
			fail(errors.New("the process that started this one is gone"))
			return
		}
	}
}

// sleep waits for d, or returns why ctx ended before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
