package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	terminalTick = 200 * time.Millisecond
	plainTick    = time.Second
)

// event tells of something that happened.
func (d *demo) event(format string, args ...any) {
	at := fmt.Sprintf("%6.1f s", time.Since(d.began).Seconds())
	d.screen.say("%s  %s", d.screen.paint(faint, at), fmt.Sprintf(format, args...))
}

// startDisplay shows the figures until the returned function is called, which
// may be called again.
func (d *demo) startDisplay(ctx context.Context, fail context.CancelCauseFunc) (stop func()) {
	d.began = time.Now()
	showing, cancel := context.WithCancel(ctx)
	var display sync.WaitGroup
	display.Go(func() {
		tick := plainTick
		if d.screen.terminal {
			tick = terminalTick
		}
		for sleep(showing, tick) == nil {
			f, err := measure(showing, d.db, pickupWindow)
			if err != nil {
				if showing.Err() == nil {
					fail(err)
				}
				return
			}
			d.display(f)
		}
	})
	return func() {
		cancel()
		display.Wait()
		d.screen.show()
	}
}

// display shows one measurement: a block on a terminal, else a line.
func (d *demo) display(f figures) {
	placed := int(d.customers.placed.Load())
	if !d.screen.terminal {
		d.screen.say("%6.1f s  placed %d, waiting %d, running %s, done %d, retries %d, pickup p50 %s p99 %s",
			time.Since(d.began).Seconds(), placed, f.waiting, f.whoRuns(d.killed()), f.done, f.retries, millis(f.p50),
			millis(f.p99))
		return
	}
	progress := number(placed)
	if placed <= d.orders {
		progress = fmt.Sprintf("%s %s of %s", bar(placed, d.orders, 30), number(placed), number(d.orders))
	}
	dead := ""
	if f.dead > 0 {
		dead = d.screen.paint(red, fmt.Sprintf("   dead %d", f.dead))
	}
	d.screen.show(
		"",
		fmt.Sprintf("  orders   %s", progress),
		fmt.Sprintf("  jobs     waiting %s   running %s   done %s   retries %s%s", number(f.waiting),
			f.whoRuns(d.killed()), number(f.done), number(f.retries), dead),
		fmt.Sprintf("  pickup   p50 %s   p99 %s   (last %s)", millis(f.p50), millis(f.p99), pickupWindow),
	)
}
