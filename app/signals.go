package app

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// oneIntention is the interval within which two signals count as one: Ctrl-C on a terminal reaches a whole group of
// processes, and the parent among them may pass it on.
const oneIntention = 300 * time.Millisecond

// Signals returns a context that ends at the first SIGINT or SIGTERM, for [Run], and a channel that is closed at the
// second, for [Config.Cut]; a signal right after the first counts as the same. A further signal ends the process.
// Signals stops watching when parent ends.
func Signals(parent context.Context) (ctx context.Context, cut <-chan struct{}) {
	ctx, cancel := context.WithCancelCause(parent)
	received := make(chan os.Signal, 2)
	signal.Notify(received, os.Interrupt, syscall.SIGTERM)
	second := make(chan struct{})
	go func() {
		defer signal.Stop(received)
		var first time.Time
		for {
			select {
			case <-parent.Done():
				cancel(context.Cause(parent))
				return
			case s := <-received:
				switch {
				case first.IsZero():
					first = time.Now()
					cancel(fmt.Errorf("signal: %s", s))
				case time.Since(first) > oneIntention:
					close(second)
					return
				}
			}
		}
	}()
	return ctx, second
}
