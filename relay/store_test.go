package relay

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// broken is a connection that says how long a statement had.
type broken struct {
	connection
	until time.Time
}

func (b *broken) Query(ctx context.Context, _ string, _ ...any) (pgx.Rows, error) {
	b.until, _ = ctx.Deadline()
	return nil, errors.New("broken")
}

// What extends the lease while a store waits for it is known to that store: it does not give up at the old end.
func TestAStoreLastsAsLongAsTheLease(t *testing.T) {
	conn := &broken{}
	o := &ownership{publisher: &publisher{config: &Config{}}, conn: conn, until: time.Now()}
	o.storing.Lock()
	ended := make(chan error)
	go func() { ended <- o.store(t.Context()) }()
	time.Sleep(10 * time.Millisecond) // it waits
	extended := time.Now().Add(3 * time.Second)
	o.mu.Lock()
	o.until = extended
	o.mu.Unlock()
	o.storing.Unlock()
	if err := <-ended; err == nil || errors.Is(err, errLapsed) || !conn.until.Equal(extended) {
		t.Errorf("the store ends with %v, and had until %v, want until %v", err, conn.until, extended)
	}
}
