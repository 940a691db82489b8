package operator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// asOf is an [OpenFilter.AsOf]: the state of the server's transactions before a count of open jobs. Its text is that of
// a pg_snapshot, an @, and the microseconds of begun.
type asOf struct {
	// snapshot lists every transaction below its xmax that had not committed. The snapshot that the server takes lists
	// no subtransaction, and so takes the row of an open savepoint for one that was visible:
	//
	//	producer  BEGIN; SAVEPOINT a; stores 5000 jobs, whose rows have the id of the savepoint
	//	operator  counts 100 jobs, in a snapshot that lists the producer, but not its savepoint
	//	producer  COMMIT
	//	operator  acts on what was visible then: 5100
	snapshot string
	// begun is when the attempt of a running job that was counted had begun at the latest.
	begun time.Time
}

func (a asOf) String() string { return a.snapshot + "@" + strconv.FormatInt(a.begun.UnixMicro(), 10) }

const (
	// maxUnsettled bounds the transactions that a snapshot lists, and maxAsOf its text: each has up to 20 digits.
	maxUnsettled = 1500
	maxAsOf      = 32 << 10
	// maxAskedAbout bounds the transactions about which a count asks the server: some two seconds' work.
	maxAskedAbout = 4_000_000
	// claimsEnd is how long after the start of its statement a claim has ended at the latest: dispatchers have the
	// server cancel it after 10 s.
	claimsEnd = 12 * time.Second
)

// asOfNow returns the present state of the server's transactions. What it takes to have committed is visible to every
// statement that begins afterwards.
//
// It is the state of the transactions alone that decides about a waiting job. A running job's row may have been written
// again, so the time decides, too, and a claim may commit long after its time:
//
//	worker    claims a job: started_at = 12:00:00.000
//	operator  counts the job as pending, at 12:00:00.010
//	worker    COMMIT; extends the lease
//	operator  acts on what had begun by 12:00:00.010: the job is running, and was shown as pending
//
// So the time is that before a wait for all who were writing. If some of them go on, such as handlers with long
// transactions, one may be such a claim: then only an attempt that began earlier than any claim may last counts as
// unchanged although its row was written again.
func (o *Operator) asOfNow(ctx context.Context) (as asOf, err error) {
	begun, ended, err := o.waitForWriters(ctx)
	if err != nil {
		return as, err
	}
	if as.begun = begun; !ended {
		as.begun = begun.Add(-claimsEnd)
	}
	first, next, err := o.openIDs(ctx)
	if err != nil {
		return as, fmt.Errorf("find the oldest transaction: %w", err)
	}
	if next-first > maxAskedAbout {
		return as, ErrOldWriter
	}
	unsettled, err := o.db.ListUnsettled(ctx, sqlgen.ListUnsettledParams{
		Open: []int64{}, First: first, Last: next - 1, MaxRows: maxUnsettled + 1,
	})
	if err != nil {
		return as, fmt.Errorf("list uncommitted transactions: %w", err)
	}
	if len(unsettled) > maxUnsettled {
		return as, ErrOldWriter
	}
	as.snapshot = snapshotText(first, next, unsettled)
	return as, nil
}

// openIDs returns ids between which are those of all transactions that had written to this database and not ended: from
// first to below next. A subtransaction's id is above its parent's. Sessions come before prepared transactions, so that
// one which is prepared meanwhile is found among either.
func (o *Operator) openIDs(ctx context.Context) (first, next int64, err error) {
	err = pgx.BeginFunc(ctx, o.txs, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, forgetActivity); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			SELECT xact.next - coalesce(max(writer.before), 0), xact.next
			FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next) AS xact
			LEFT JOIN LATERAL (
				SELECT (xact.next - open.id::text::bigint) & 4294967295 AS before
				FROM (
					SELECT backend_xid AS id FROM pg_stat_activity
					WHERE datname = current_database() AND backend_xid IS NOT NULL
					UNION ALL
					SELECT transaction FROM pg_prepared_xacts WHERE database = current_database()
				) AS open
			) AS writer ON writer.before < 2147483648 -- the others are above
			GROUP BY xact.next`).Scan(&first, &next)
	})
	return first, next, err
}

// ErrOldWriter reports that open jobs cannot be counted now. A snapshot that left out uncommitted transactions would
// let an operation act on jobs that were not counted. Those of other databases of the server are among them, if they
// began after the oldest of this database: the server does not say of an id to which database it belongs.
var ErrOldWriter = errors.New("a transaction has been writing for so long that too many others have begun since, or " +
	"were rolled back; end it, or try again when it has ended")

func snapshotText(first, next int64, unsettled []int64) string {
	text := fmt.Appendf(nil, "%d:%d:", first, next)
	for i, id := range unsettled {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, id, 10)
	}
	return string(text)
}

// parseAsOf parses what asOf.String has returned. It accepts nothing that Postgres would refuse: a pg_snapshot is
// xmin:xmax:list, and the list rises from xmin to below xmax.
func parseAsOf(text string) (as asOf, ok bool) {
	snapshot, begun, found := strings.Cut(text, "@")
	micros, err := strconv.ParseUint(begun, 10, 63)
	if !found || err != nil || len(text) > maxAsOf || micros > math.MaxInt64/100 {
		return as, false
	}
	parts := strings.Split(snapshot, ":")
	if len(parts) != 3 {
		return as, false
	}
	first, err1 := transactionID(parts[0])
	next, err2 := transactionID(parts[1])
	if err1 != nil || err2 != nil || first > next {
		return as, false
	}
	if parts[2] != "" {
		least := first
		for part := range strings.SplitSeq(parts[2], ",") {
			id, err := transactionID(part)
			if err != nil || id < least || id >= next {
				return as, false
			}
			least = id
		}
	}
	return asOf{snapshot: snapshot, begun: time.UnixMicro(int64(micros))}, true
}

// transactionID parses an xid8. None has a lower half of zero.
func transactionID(text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 10, 63)
	if err == nil && uint32(id) == 0 {
		err = strconv.ErrRange
	}
	return id, err
}
