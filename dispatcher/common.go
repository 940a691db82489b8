package dispatcher

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/health"
	"github.com/posthaste-dev/posthaste/internal/backoff"
)

// noticeWithin bounds how long this process does not look at what an operator may have done (a pause, a limit, a
// cancellation), so that every such act takes effect within a second, also if its notification is lost: the rest of the
// second is for a timer that fires late and for the database's answer.
const noticeWithin = 700 * time.Millisecond

// common holds what all parts of a dispatcher share: its identity, what it handles, where it logs, and its phase. Each
// part has its own statements and neighbours.
type common struct {
	worker         string // the holder of its leases: Config.Worker and a suffix that no other process has
	kinds          []string
	routes         map[string]*route
	leaseTTL       time.Duration
	claimBytes     int                  // see Config
	poll           func() time.Duration // between polls for jobs of which no notification came
	handlerContext context.Context      // parent of the handlers' contexts: Run's values without its end
	waiting        context.Context      // while it lasts, the process waits for the database's answers
	settling       context.Context      // while it lasts, outcomes that are not stored are tried again; ends first
	log            *slog.Logger
	logJobs        LogJobs
	metrics        *metrics
	health         *health.Health
	phase          *phase
}

// untilAnswered repeats ask until the database answers or ctx ends. Then it returns the cause of ctx.
func (p *common) untilAnswered(ctx context.Context, complaint string, ask func(bound context.Context) error) error {
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

// boundSettling returns the context of one statement that stores outcomes or what follows from them. It ends with
// p.settling. After that each outcome gets one short try, as long as p.waiting lasts, because its handler may have
// returned only then.
func (p *common) boundSettling() (context.Context, context.CancelFunc) {
	if p.settling.Err() != nil {
		return p.boundHint()
	}
	return bounded(p.settling)
}

// boundHint returns the context of one optional statement. It does not end with Run's context.
func (p *common) boundHint() (context.Context, context.CancelFunc) {
	return context.WithTimeout(p.waiting, hintTimeout)
}

// LogJobs selects which lines about jobs are logged.
type LogJobs string

// Values of [LogJobs].
const (
	LogAll      LogJobs = "all"
	LogFailures LogJobs = "failures" // lines about failures, and summaries of them
	LogNone     LogJobs = "off"
)

// phase records how far a dispatcher has come. It only moves on.
type phase struct{ atomic.Int32 }

const (
	idle int32 = iota // before Run
	starting
	claiming // until the context of Run ends
	draining // running jobs may finish, waiting ones go back
	cutOff   // the grace period is over
)

func (p *phase) isClaiming() bool { return p.Load() == claiming }
func (p *phase) isCutOff() bool   { return p.Load() == cutOff }
