package operator_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// seen returns how many jobs of each tenant an operator lists.
func seen(t *testing.T, o *operator.Operator, ctx context.Context) map[outbox.ID]int {
	t.Helper()
	jobs, err := o.Jobs(ctx, operator.Filter{Limit: operator.MaxLimit})
	if err != nil {
		t.Error(err)
	}
	found := map[outbox.ID]int{}
	for _, job := range jobs {
		found[job.Tenant]++
	}
	return found
}

// One connection that serves tenant after tenant: each sees its own, a context
// without a tenant sees nothing, and an error in between leaves nothing behind.
func TestAContextTiesAnOperatorToATenant(t *testing.T) {
	t.Parallel()
	_, db := newRig(t)
	config := pgtest.Login(t, db, "outbox_api").Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	o := operator.New(pool)
	a, b := outbox.NewID(), outbox.NewID()
	own := map[outbox.ID]outbox.ID{a: enqueue(t, db, "mail", outbox.Options{Tenant: a}), b: enqueue(t, db, "mail", outbox.Options{Tenant: b})}
	var wg sync.WaitGroup
	for round := range 8 {
		for tenant, other := range map[outbox.ID]outbox.ID{a: b, b: a} {
			wg.Go(func() {
				ctx := operator.WithTenant(t.Context(), tenant)
				if got := seen(t, o, ctx); len(got) != 1 || got[tenant] != 1 {
					t.Errorf("round %d: tenant %s sees %v, want its one job", round, tenant, got)
				}
				if err := o.Retry(ctx, own[other]); !errors.Is(err, operator.ErrNotFound) {
					t.Errorf("retry another's job: %v, want %v", err, operator.ErrNotFound)
				}
				if _, err := o.Cancel(ctx, own[other]); !errors.Is(err, operator.ErrNotFound) {
					t.Errorf("cancel another's job: %v, want %v", err, operator.ErrNotFound)
				}
				if err := o.Pause(ctx, "default"); sqlState(err) != "42501" {
					t.Errorf("pause a queue, which is everybody's: %v, want it refused", err)
				}
			})
		}
		wg.Go(func() {
			if got := seen(t, o, t.Context()); len(got) != 0 {
				t.Errorf("without a tenant it sees %v, want nothing", got)
			}
		})
	}
	wg.Wait()
	all := operator.WithTenant(t.Context(), outbox.ID{})
	if got := seen(t, o, all); len(got) != 2 {
		t.Errorf("of all tenants it sees %v, want both jobs", got)
	}
	if _, err := o.Cancel(operator.WithTenant(t.Context(), a), own[a]); err != nil {
		t.Error(err)
	}
	if err := o.As(operator.Actor{Name: "ada"}).Pause(all, "default"); err != nil {
		t.Error(err)
	}
	cancelled, cancel := context.WithCancel(all)
	cancel()
	if _, err := o.Jobs(cancelled, operator.Filter{}); !errors.Is(err, context.Canceled) {
		t.Errorf("in a context that has ended: %v, want %v", err, context.Canceled)
	}
	if got := seen(t, o, all); len(got) != 2 { // the connection came back
		t.Errorf("afterwards it sees %v, want both jobs", got)
	}
}

func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}
