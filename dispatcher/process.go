package dispatcher

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

// process is what the parts of a dispatcher have in common: who it is, what it handles, where it logs, and how far
// it has come. The statements and the neighbours that a part needs are its own.
type process struct {
	worker         string // the name under which it holds leases: Config.Worker and a suffix that no other process has
	kinds          []string
	routes         map[string]*route
	leaseTTL       time.Duration
	claimBytes     int             // see Config
	handlerContext context.Context // what handlers' contexts come from: Run's values without its end
	log            *slog.Logger
	logJobs        LogJobs
	metrics        *metrics
	health         *health
	phase          *phase
}

// untilAnswered asks until the database answers, or ctx ends, of which it returns the cause.
func (p *process) untilAnswered(ctx context.Context, complaint string, ask func(bound context.Context) error) error {
	var retry backoff.Backoff
	for {
		bound, cancel := bounded(ctx)
		err := ask(bound)
		cancel()
		if err == nil {
			return nil
		}
		p.health.Failed(err)
		p.health.Complain(ctx, complaint, err)
		if err := retry.Wait(ctx); err != nil {
			return err
		}
	}
}

// LogJobs says which of the lines that follow a job are logged.
type LogJobs string

// Which lines about jobs are logged.
const (
	LogAll      LogJobs = "all"
	LogFailures LogJobs = "failures" // those about failures, and sums of them
	LogNone     LogJobs = "off"
)

// phase is how far a dispatcher has come. That of a [Dispatcher] only moves on; an [Inline] is cut off while it stores
// outcomes, and claims again.
type phase struct{ atomic.Int32 }

const (
	starting int32 = iota
	claiming       // until the context of Run ends
	draining       // what runs may end, what waits goes back
	cutOff         // the grace period is over
)

func (p *phase) isClaiming() bool { return p.Load() == claiming }
func (p *phase) isCutOff() bool   { return p.Load() == cutOff }
