package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// An operation on open jobs stores, before it acts on the first of them, which jobs it concerns: acting on one may
// change others, such as those behind it in its key. To store a million takes longer than a request may. So the start
// stores up to 20 000; if there are more, steps of the operation store them all, and then act. The filter of such an
// operation has the AsOf of the count: what changes before its jobs are stored is left alone, as what changes later is.

const (
	// atOnce is how many jobs the start of an operation stores.
	atOnce = 20_000
	// collects stands before the act of an operation while its steps store its jobs. Builds that do not know of such
	// steps do not know the act, and take none.
	collects = "collect "
	// readAtOnce is how many open jobs such a step reads, whether or not they match: those of the operation's tenant,
	// or of all tenants if it concerns them all, or the root tenant, whose jobs are not in jobs_tenant_idx.
	readAtOnce = 50_000
	// byRows makes the server choose the index in which it reads the fewest rows. By the cost of pages, the primary key
	// looks cheaper than the index of a tenant whose rows are scattered, although up to fifty times as many rows are
	// read then, those of others.
	byRows = `; SET LOCAL seq_page_cost = 0; SET LOCAL random_page_cost = 0`
)

// storeMeant begins a statement that stores jobs of an operation; meantJobs follows, with $1 to $9.
const storeMeant = `INSERT INTO outbox.operation_jobs (operation_id, job_id, tenant_id, epoch)
SELECT $10, jobs.id, jobs.tenant_id, jobs.epoch `

// countCollected stores how many more jobs of an operation are stored, and its act, in which collects is there no more
// when all are.
const countCollected = `UPDATE outbox.operations SET open_act = $2,
	filter = filter || jsonb_build_object('collected', coalesce((filter ->> 'collected')::bigint, 0) + $3::bigint) WHERE id = $1`

// errMany reports that an operation concerns more jobs than its start stores.
var errMany = errors.New("there are more jobs than are stored at once")

// startOnJobs stores an operation on open jobs, together with the jobs that it concerns if they are few.
func (o *Operator) startOnJobs(ctx context.Context, n OperationSpec) (Operation, error) {
	started, err := o.startOnFew(ctx, n)
	if !errors.Is(err, errMany) {
		return started, err
	}
	counted, err := o.MatchOpenJobs(ctx, n.Act, n.Jobs)
	if err != nil {
		return Operation{}, err
	}
	asOf := n.Jobs
	asOf.AsOf = counted.AsOf
	ctx, cancel := bounded(ctx)
	defer cancel()
	err = pgx.BeginFunc(ctx, o.txs, func(tx pgx.Tx) error {
		started, err = o.storeOnJobs(ctx, tx, n, asOf, counted.Matched)
		return err
	})
	return started, err
}

// startOnFew returns errMany if the operation concerns too many jobs.
func (o *Operator) startOnFew(ctx context.Context, n OperationSpec) (started Operation, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	err = pgx.BeginFunc(ctx, o.txs, func(tx pgx.Tx) error {
		if n.Jobs.AsOf != "" {
			if here, err := isOfThisServer(ctx, tx, n.Jobs.AsOf); err != nil || !here {
				return cmp.Or(err, invalid.Field("OpenFilter.AsOf", "is of a count on another server: count again"))
			}
		}
		params := append(n.Jobs.params(n.Act), pgvalue.UUID(n.ID), atOnce+1)
		filled, err := tx.Exec(ctx, storeMeant+meantJobs+` LIMIT $11 ON CONFLICT DO NOTHING`, params...)
		switch {
		case err != nil:
			return err
		case filled.RowsAffected() > atOnce:
			return errMany
		}
		f := n.Jobs
		f.AsOf = ""
		started, err = o.storeOnJobs(ctx, tx, n, f, filled.RowsAffected())
		return err
	})
	return started, err
}

// storeOnJobs stores an operation with the filter f, whose AsOf is set if its jobs are still to be stored.
func (o *Operator) storeOnJobs(ctx context.Context, tx pgx.Tx, n OperationSpec, f OpenFilter,
	matched int64,
) (Operation, error) {
	started := Operation{
		ID: n.ID, Tenant: n.Jobs.Tenant, Act: n.Act, Jobs: n.Jobs, Edit: n.Edit, PerSecond: n.PerSecond,
		Matched: matched, Collecting: f.AsOf != "",
		Actor: o.by.actor, Reason: o.by.reason, RequestID: o.by.requestID,
	}
	act := string(n.Act)
	if f.AsOf != "" {
		act = collects + act
	}
	n.Jobs = f
	filter, err := n.storedJobs()
	if err != nil {
		return started, err
	}
	at, err := sqlgen.New(tx).StartOperation(ctx, sqlgen.StartOperationParams{
		ID: pgvalue.UUID(started.ID), TenantID: pgvalue.UUIDOrNull(started.Tenant), Act: act,
		Filter: filter, PerSecond: n.PerSecond,
		Matched: started.Matched, Actor: started.Actor, Reason: started.Reason, RequestID: started.RequestID,
		Most: maxOperations,
	})
	started.StartedAt = at.Time
	return started, err
}

// collectJobs stores the next of an operation's jobs, in the order of their ids, in the transaction that locks it. It
// reads at most readAtOnce of them.
func (o *Operator) collectJobs(ctx context.Context, tx pgx.Tx, taken sqlgen.TakeOperationRow) error {
	filter, meant, err := readOpenJobs(taken.Filter)
	if err != nil {
		return err
	}
	if filter.AsOf = meant.AsOf; taken.TenantID.Valid {
		filter.Tenant = taken.TenantID.Bytes
	}
	if here, err := isOfThisServer(ctx, tx, meant.AsOf); err != nil || !here {
		return cmp.Or(err, errors.New("its jobs were counted on another server: stop it, and start it again"))
	}
	if _, err := tx.Exec(ctx, scanIndexes+inOrder+byRows); err != nil {
		return err
	}
	indexed := pgvalue.UUIDOrNull(filter.Tenant)
	if filter.Tenant == outbox.RootTenant {
		indexed.Valid = false
	}
	from, last, all := pgtype.UUID{Bytes: taken.Position.Bytes, Valid: true}, newest, false
	err = tx.QueryRow(ctx, `SELECT id FROM outbox.jobs WHERE id > $1 AND ($2::uuid IS NULL OR tenant_id = $2)
		ORDER BY id OFFSET $3 LIMIT 1`, from, indexed, readAtOnce).Scan(&last)
	if all = errors.Is(err, pgx.ErrNoRows); err != nil && !all {
		return err
	}
	act := strings.TrimPrefix(taken.Act, collects)
	params := append(filter.params(OperationAct(act)), taken.ID, from, last)
	stored, err := tx.Exec(ctx, storeMeant+meantJobs+` AND jobs.id > $11 AND jobs.id <= $12`, params...)
	if err != nil {
		return fmt.Errorf("store its jobs: %w", err)
	}
	now := taken.Act
	if all { // the next step begins with the first of them
		now, last = act, pgtype.UUID{Valid: true}
	}
	if _, err := tx.Exec(ctx, countCollected, taken.ID, now, stored.RowsAffected()); err != nil {
		return err
	}
	return sqlgen.New(tx).AdvanceOperation(ctx, sqlgen.AdvanceOperationParams{
		ID: taken.ID, Position: last, Pause: pgvalue.Interval(0),
	})
}

// isOfThisServer reports whether the moment of a count is one of this server: after a restore, the ids of transactions
// begin again, and jobs that nobody has counted would look as if they had been there.
func isOfThisServer(ctx context.Context, tx pgx.Tx, asOf string) (here bool, err error) {
	at, ok := parseAsOf(asOf)
	if !ok {
		return false, nil
	}
	err = tx.QueryRow(ctx, `SELECT pg_snapshot_xmax($1::text::pg_snapshot) <= pg_snapshot_xmax(pg_current_snapshot())`,
		at.snapshot).Scan(&here)
	return here, err
}
