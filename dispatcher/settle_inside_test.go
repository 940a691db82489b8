package dispatcher

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// unanswered stores successes the first time, without an answer, and refuses the second try because of a lock. The lock
// is gone before anybody looks for it, and from then on nothing is left to settle.
type unanswered struct {
	settleStatements
	tries  int
	stored []pgtype.UUID
}

func (u *unanswered) SettleSucceeded(_ context.Context, p sqlgen.SettleSucceededParams) ([]pgtype.UUID, error) {
	switch u.tries++; u.tries {
	case 1:
		u.stored = p.Ids
		return nil, context.DeadlineExceeded
	case 2:
		return nil, &pgconn.PgError{Code: pgsession.LockNotAvailable}
	}
	return nil, nil
}

func (u *unanswered) FindLocked(context.Context, []pgtype.UUID) ([]pgtype.UUID, error) {
	return nil, nil
}

func (u *unanswered) CloseAttempts(context.Context, sqlgen.CloseAttemptsParams) ([]sqlgen.CloseAttemptsRow, error) {
	return nil, nil
}

func (u *unanswered) FindSucceeded(context.Context, []pgtype.UUID, []int64) ([]pgtype.UUID, error) {
	return u.stored, nil
}

func (u *unanswered) StreamRefused(context.Context, sqlgen.StreamRefusedParams) error { return nil }

// An outcome that a try without an answer has stored is a success, even if a later try was split up.
func TestASettlementThatIsTakenApartKnowsOfTheTryBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mux := new(Mux)
		mux.HandleRaw(tiny{}.Kind(), nil)
		d, err := New(nil, mux, Config{})
		if err != nil {
			t.Fatal(err)
		}
		d.compose(t.Context(), nil, nil)
		d.process.health.leave = func(error) {}
		u := new(unanswered)
		d.settler.statements.db, d.settler.reporter.db = u, u
		route := d.process.routes[tiny{}.Kind()]
		var batch []*attempt
		for n := range 8 {
			job := newJob(tiny{}.Kind(), numbered(n&1), 0, []string{"", "k"}[n>>1&1])
			batch = append(batch, &attempt{job: job, route: route, waker: newWaker(), outcome: outcome.Outcome{Status: outbox.Succeeded}})
		}
		d.settler.settle(batch)
		if lost, succeeded := counted(t, d.process.metrics.leasesLost), counted(t, route.counts.succeeded); lost != 0 || succeeded != 8 {
			t.Errorf("%v leases are lost, and %v jobs have succeeded; want 0, and 8", lost, succeeded)
		}
	})
}

// counted returns the value of a counter.
func counted(t *testing.T, c prometheus.Metric) float64 {
	t.Helper()
	m := new(dto.Metric)
	if err := c.Write(m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}
