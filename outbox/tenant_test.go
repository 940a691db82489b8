package outbox

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// A policy of a user's own table, as docs/guides/tenants.md has it, and a role that it
// applies to.
const shop = `
	CREATE TABLE invoices (tenant_id uuid NOT NULL, total integer);
	ALTER TABLE invoices ENABLE ROW LEVEL SECURITY;
	CREATE POLICY own ON invoices TO outbox_worker USING (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
	GRANT SELECT, INSERT ON invoices TO outbox_worker;`

func TestAJobsTransactionIsOfItsTenant(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, shop)
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	exec(t, conn, `SET ROLE outbox_worker`)
	ctx := t.Context()
	job, other := &Claimed{ID: NewID(), Tenant: NewID(), DB: conn.Conn()}, &Claimed{ID: NewID(), Tenant: NewID(), DB: conn.Conn()}
	for _, j := range []*Claimed{job, other, job} {
		if err := j.Tx(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO invoices VALUES ($1, 7)`, j.Tenant)
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	err = job.Tx(ctx, func(tx pgx.Tx) error {
		if n := ask[int](t, tx, `SELECT count(*) FROM invoices`); n != 2 {
			t.Errorf("it sees %d invoices, want its tenant's 2", n)
		}
		_, err := tx.Exec(ctx, `INSERT INTO invoices VALUES ($1, 7)`, other.Tenant)
		return err
	})
	if err == nil {
		t.Error("it wrote an invoice of another tenant")
	}
	if n := ask[int](t, conn, `SELECT count(*) FROM invoices`); n != 0 {
		t.Errorf("after the transaction the connection sees %d invoices, want none", n)
	}
}

func TestATransactionIsOfItsOwnTenantAgainAfterASavepointOfAnother(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	seen := func(tx pgx.Tx) string {
		return ask[string](t, tx, `SELECT coalesce(current_setting('app.tenant_id', true), '')`)
	}
	outer, inner := NewID(), NewID()
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		before := seen(tx)
		err := InTenant(t.Context(), tx, outer, func(tx pgx.Tx) error {
			err := InTenant(t.Context(), tx, inner, func(tx pgx.Tx) error {
				if got := seen(tx); got != inner.String() {
					t.Errorf("inside it is %q, want %s", got, inner)
				}
				return nil
			})
			if got := seen(tx); got != outer.String() {
				t.Errorf("after the inner savepoint it is %q, want %s", got, outer)
			}
			return err
		})
		if got := seen(tx); got != before {
			t.Errorf("after the outer savepoint it is %q, want %q", got, before)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

func TestAJobsTransactionNeedsADispatcher(t *testing.T) {
	t.Parallel()
	never := func(pgx.Tx) error { t.Error("it was begun"); return nil }
	if err := (&Claimed{ID: NewID(), Tenant: NewID()}).Tx(t.Context(), never); err == nil {
		t.Error("without a dispatcher there is no error")
	}
	if err := (&Claimed{ID: NewID(), DB: pgtest.New(t)}).Tx(t.Context(), never); err == nil {
		t.Error("without a tenant there is no error")
	}
}

// Jobs that a handler enqueues in such a transaction wake the dispatchers once it
// has committed, if it is a producer that begins.
func TestAProducerBeginsATenantsTransaction(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	producer := NewProducer(db, NotifyOff)
	tenant, failure := NewID(), errors.New("no")
	for _, want := range []error{nil, failure} {
		err := InTenant(t.Context(), producer, tenant, func(tx pgx.Tx) error {
			_, err := Enqueue(t.Context(), tx, greet{}, Options{Tenant: tenant})
			return errors.Join(err, want)
		})
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if n := countJobs(t, db); n != 1 {
		t.Errorf("%d jobs, want the one of the transaction that committed", n)
	}
	err := engine.InTenant(context.WithoutCancel(t.Context()), db, engine.AllTenants, func(tx pgx.Tx) error {
		if got := ask[string](t, tx, `SELECT current_setting('app.tenant_id')`); got != "*" {
			t.Errorf("app.tenant_id = %q, want *", got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
