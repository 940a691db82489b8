package pgtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Stalls queries the server every lookEvery. If that takes longer than usualDelay, the machine was busy with something
// else.
const (
	lookEvery  = 10 * time.Millisecond
	usualDelay = 50 * time.Millisecond
)

// Stalls measures how busy the machine is, for a test that checks how soon something happens. The function that it
// returns stops that, and returns for how long, in all, this process and the server had to wait for their turn.
func Stalls(t testing.TB, db *pgxpool.Pool) func() time.Duration {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var stalled time.Duration
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for last := time.Now(); ctx.Err() == nil; {
			<-tick.C
			_, _ = db.Exec(context.Background(), `SELECT`)
			now := time.Now()
			stalled += max(now.Sub(last)-usualDelay, 0)
			last = now
		}
	}()
	end := sync.OnceValue(func() time.Duration {
		stop()
		<-ended
		return stalled
	})
	t.Cleanup(func() { end() })
	return end
}
