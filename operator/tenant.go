package operator

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

type tenantKey struct{}

// WithTenant returns a context that ties an operator to a tenant, or to all of them if it is zero: each of its
// transactions, including that of a single statement, begins with SET LOCAL app.tenant_id. On a pool that connects as a
// member of outbox_api, the database then shows and changes nothing else, whatever condition a statement lacks, and
// nothing at all in a context that WithTenant did not make; see docs/guides/tenants.md. There are two exceptions: the
// statements that bound what a part of a list costs read the rows of all tenants. Their results are a time, and the id
// of an act.
func WithTenant(ctx context.Context, tenant outbox.ID) context.Context {
	value := engine.AllTenants
	if !tenant.IsZero() {
		value = tenant.String()
	}
	return context.WithValue(ctx, tenantKey{}, value)
}

// tied is a pool whose transactions are tied to the tenant of their context.
type tied struct{ *pgxpool.Pool }

// Begin begins a transaction, in one round trip with the setting. Acts look again at rows that others have changed
// meanwhile, so it sets the isolation level whatever the default is.
func (p tied) Begin(ctx context.Context) (pgx.Tx, error) {
	tenant, ok := ctx.Value(tenantKey{}).(string)
	if !ok {
		return p.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	}
	// The value is an id in hex, or *: neither can end the literal.
	return p.BeginTx(ctx,
		pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL app.tenant_id = '" + tenant + "'"})
}

// ask sends a statement after the setting, in one round trip: statements sent together form one transaction.
func (p tied) ask(ctx context.Context, tenant, sql string, args []any) *tiedRows {
	batch := &pgx.Batch{}
	batch.Queue(`SELECT set_config('app.tenant_id', $1, true)`, tenant)
	batch.Queue(sql, args...)
	results := p.SendBatch(ctx, batch)
	if _, err := results.Exec(); err != nil {
		_ = results.Close() // with the same error
		return &tiedRows{err: err}
	}
	rows, err := results.Query()
	if err != nil {
		_ = results.Close()
		return &tiedRows{err: err}
	}
	return &tiedRows{Rows: rows, results: results}
}

// Exec executes a statement as the pool's Exec does, tied.
func (p tied) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tenant, ok := ctx.Value(tenantKey{}).(string)
	if !ok {
		return p.Pool.Exec(ctx, sql, args...)
	}
	rows := p.ask(ctx, tenant, sql, args)
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// Query executes a query as the pool's Query does, tied.
func (p tied) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	tenant, ok := ctx.Value(tenantKey{}).(string)
	if !ok {
		return p.Pool.Query(ctx, sql, args...)
	}
	rows := p.ask(ctx, tenant, sql, args)
	return rows, rows.err
}

// QueryRow executes a query as the pool's QueryRow does, tied.
func (p tied) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	tenant, ok := ctx.Value(tenantKey{}).(string)
	if !ok {
		return p.Pool.QueryRow(ctx, sql, args...)
	}
	return tiedRow{p.ask(ctx, tenant, sql, args)}
}

// tiedRows are rows whose transaction ends, and whose connection is released, once they have been read or closed.
type tiedRows struct {
	pgx.Rows // nil if the batch could not be sent
	results  pgx.BatchResults
	err      error
}

func (r *tiedRows) Next() bool {
	if r.Rows != nil && r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *tiedRows) Close() {
	if r.Rows != nil {
		r.Rows.Close()
		r.keep(r.Rows.Err())
	}
	if r.results != nil {
		r.keep(r.results.Close()) // this is where a commit fails
		r.results = nil
	}
}

// keep stores the first error.
func (r *tiedRows) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *tiedRows) Err() error { return r.err }

func (r *tiedRows) CommandTag() pgconn.CommandTag {
	if r.Rows == nil {
		return pgconn.CommandTag{}
	}
	return r.Rows.CommandTag()
}

// tiedRow is the first row of tiedRows.
type tiedRow struct{ rows *tiedRows }

func (r tiedRow) Scan(dest ...any) error {
	defer r.rows.Close()
	if !r.rows.Next() {
		if r.rows.err != nil {
			return r.rows.err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.err
}

// setTenant returns the end of a BeginQuery in a context that [WithTenant] made.
func setTenant(ctx context.Context) string {
	if tenant, ok := ctx.Value(tenantKey{}).(string); ok {
		return "; SET LOCAL app.tenant_id = '" + tenant + "'" // an id in hex, or *
	}
	return ""
}

// tenantIn returns the tenant of a context that [WithTenant] made; zero means all of them, or no such context.
func tenantIn(ctx context.Context) (tenant outbox.ID) {
	if value, ok := ctx.Value(tenantKey{}).(string); ok && value != engine.AllTenants {
		tenant, _ = outbox.ParseID(value) // as WithTenant wrote it
	}
	return tenant
}
