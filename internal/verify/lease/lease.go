// Package lease checks that the lease of a job is linearizable: whatever many clients do to it at once, and whichever
// of them are killed before the response, there is one order of all operations that a lease in memory could have gone
// through. The histories come from the real statements on a real database; porcupine judges them, job by job. The
// package does not need package testing, so that a command can run it, too.
package lease

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// Statements are the statements that are checked. *sqlgen.Queries has the real ones.
type Statements interface {
	ClaimJobs(context.Context, sqlgen.ClaimJobsParams) ([]sqlgen.ClaimJobsRow, error)
	SettleSucceeded(context.Context, sqlgen.SettleSucceededParams) ([]pgtype.UUID, error)
	SettleInPlace(context.Context, sqlgen.SettleInPlaceParams) ([]pgtype.UUID, error)
	SettleStreamed(context.Context, sqlgen.SettleStreamedParams) ([]pgtype.UUID, error)
	SettleUnfinished(context.Context, sqlgen.SettleUnfinishedParams) ([]pgtype.UUID, error)
	ExtendLeases(context.Context, sqlgen.ExtendLeasesParams) ([]sqlgen.ExtendLeasesRow, error)
	ExpireLeases(context.Context, sqlgen.ExpireLeasesParams) ([]sqlgen.ExpireLeasesRow, error)
	RetryJob(context.Context, sqlgen.RetryJobParams) ([]sqlgen.RetryJobRow, error)
	DismissJob(context.Context, sqlgen.DismissJobParams) ([]pgtype.UUID, error)
	FindJob(ctx context.Context, id, tenant pgtype.UUID) ([]sqlgen.FindJobRow, error)
}

var _ Statements = (*sqlgen.Queries)(nil)

// Config says how much to check. Zero fields have the values of the scorecard.
type Config struct {
	Histories  int    // 200
	Operations int    // 400, in each history
	Seed       uint64 // of the clients' choices; their outcomes depend on the race
	// Statements returns the statements that a client runs on its connection; nil means the real ones.
	Statements func(*pgx.Conn) Statements
}

// Report is the result of a check, which passed if Linearizable equals Histories.
type Report struct {
	Histories    int
	Linearizable int
	Undecided    int // the checker ran out of time: not a success
	Operations   int // by clients
	Killed       int // clients that got no response to their operation
	Refused      int // writes with a lease that was lost
	Illegal      []Illegal
}

// Illegal is a history of one job that no lease could have gone through.
type Illegal struct {
	History int
	Events  []porcupine.Operation
}

// String lists the operations in the order in which they were requested.
func (i Illegal) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "history %d is not linearizable:\n", i.History)
	for _, op := range i.Events {
		fmt.Fprintf(&b, "%6d–%-6d client %d: %s\n", op.Call, min(op.Return, 999_999), op.ClientId,
			describe(op.Input, op.Output))
	}
	return b.String()
}

// patience bounds the checker for one job; it usually takes milliseconds.
const patience = 30 * time.Second

// Check makes histories and judges them. connect opens a connection of one client. The database must have no other jobs
// and no other users. An error means that the check could not be made.
func Check(ctx context.Context, connect func(context.Context) (*pgx.Conn, error), config Config) (Report, error) {
	if config.Statements == nil {
		config.Statements = func(conn *pgx.Conn) Statements { return sqlgen.New(conn) }
	}
	crowd, err := gather(ctx, connect, config)
	if err != nil {
		return Report{}, err
	}
	defer crowd.disperse(context.WithoutCancel(ctx))
	var report Report
	for i := range cmp.Or(config.Histories, 200) {
		h, err := crowd.play(ctx, i, cmp.Or(config.Operations, 400))
		if err != nil {
			return report, fmt.Errorf("history %d: %w", i, err)
		}
		report.add(i, h)
	}
	return report, nil
}

func (r *Report) add(i int, h *history) {
	r.Histories++
	r.Operations += h.asked
	r.Killed += h.killed
	r.Refused += h.refused
	verdict := porcupine.Ok
	for _, events := range h.byJob() {
		switch porcupine.CheckOperationsTimeout(register, events, patience) {
		case porcupine.Illegal:
			verdict = porcupine.Illegal
			r.Illegal = append(r.Illegal, Illegal{i, events})
		case porcupine.Unknown:
			r.Undecided++
			verdict = porcupine.Unknown
		}
	}
	if verdict == porcupine.Ok {
		r.Linearizable++
	}
}
