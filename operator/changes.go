package operator

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Change is a job whose status may have changed, as it is now.
type Change struct {
	ID         outbox.ID
	Tenant     outbox.ID
	Queue      string
	Kind       string
	Status     outbox.Status
	Epoch      int64 // rises with every attempt and whatever ends one
	Attempt    int
	FinishedAt time.Time // zero while the job is open
	ErrorCode  string    // of the latest failed attempt; "" for none
}

// Position is how far a reader of changes has come. It says the same to every
// process at the same database server. The zero Position is none.
type Position struct {
	horizon uint64    // every transaction below had ended
	since   time.Time // no transaction from the horizon on had begun to write before

	// The next since, once the horizon has passed next: the transactions from there on
	// began to write later than at. Not a part of the text.
	next uint64
	at   time.Time
}

// ErrPositionLost says that what changed since a position cannot be told any more:
// it is too old, or another server's.
var ErrPositionLost = errors.New("the position is too old, or another database's")

// MaxPositionAge is how long after it was taken a position can be read from.
const MaxPositionAge = time.Hour

const (
	// slowStart is how long before its transaction got an id a statement may have
	// begun, by whose time its rows are stored: it may have waited for a lock.
	slowStart = 30 * time.Second
	// firstReach is how long before somebody began to read a transaction may have begun to
	// write that commits afterwards. That of later ones is known.
	firstReach = 5 * time.Minute
	// maxTransactions is half of how far apart 32 bits of two ids can tell which is first.
	maxTransactions = 1 << 30
)

// IsZero reports whether it is none.
func (p Position) IsZero() bool { return p.horizon == 0 }

// String is how the position is given to others.
func (p Position) String() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], p.horizon)
	binary.BigEndian.PutUint64(b[8:], uint64(p.since.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// ParsePosition reads what String wrote.
func ParsePosition(text string) (Position, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != 16 {
		return Position{}, &outbox.InvalidError{Field: "Position", Reason: "is not one that was given"}
	}
	micros := int64(binary.BigEndian.Uint64(b[8:]))
	p := Position{horizon: binary.BigEndian.Uint64(b[:8]), since: time.UnixMicro(micros)}
	if p.IsZero() || micros < 0 || p.since.Year() > 9999 {
		return Position{}, &outbox.InvalidError{Field: "Position", Reason: "is not one that was given"}
	}
	return p, nil
}

// Now returns the position from which on a reader learns of every change that was
// not visible when Now was called. A transaction that had been writing for more
// than five minutes then is the exception. tx may be any transaction.
func Now(ctx context.Context, tx pgx.Tx) (Position, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	row, err := sqlgen.New(tx).FindPosition(ctx)
	if err != nil {
		return Position{}, fmt.Errorf("find the position: %w", err)
	}
	return Position{}.advance(row.Horizon, row.Next, row.At.Time)
}

// Changes returns the jobs of a tenant (zero: of all) that have changed since the
// position, at most limit of them, and the position after. Every job that changed
// is there in its present state; states in between may be left out, and a job that
// has not changed may be there.
//
// more says that there were others: what Changes returns is then not all up to the
// new position.
//
// tx has to be READ COMMITTED, for each call needs a snapshot of its own.
func Changes(ctx context.Context, tx pgx.Tx, tenant outbox.ID, since Position, limit int) (changes []Change, after Position, more bool, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := sqlgen.New(tx).ListChanges(ctx, sqlgen.ListChangesParams{
		Horizon: strconv.FormatUint(since.horizon, 10), Since: timeOrAny(since.since.Add(-slowStart)),
		Tenant: tenantOrAny(tenant), MaxRows: int32(limit) + 1,
	})
	if err != nil {
		return nil, Position{}, false, fmt.Errorf("list changes: %w", err)
	}
	after, err = since.advance(rows[0].Horizon, rows[0].Next, rows[0].At.Time)
	if err != nil {
		return nil, Position{}, false, err
	}
	if len(rows) > limit {
		rows, more = rows[:limit], true
	}
	for _, row := range rows {
		if !row.ID.Valid {
			continue
		}
		changes = append(changes, Change{
			ID: row.ID.Bytes, Tenant: row.TenantID.Bytes, Queue: row.Queue, Kind: row.Kind, Status: outbox.Status(row.Status),
			Epoch: row.Epoch, Attempt: int(row.Attempt), FinishedAt: row.FinishedAt.Time, ErrorCode: row.ErrorCode,
		})
	}
	return changes, after, more, nil
}

// advance is the position after a look at at, whose snapshot has horizon and next.
//
// A row in question was written by a transaction that is not below the horizon. When
// it got its id is not known; that ids from next on were given after a look is. So
// since follows the looks, one at a time: it becomes the time of a look when the
// horizon has come to that look's next.
func (p Position) advance(horizonText, nextText string, at time.Time) (Position, error) {
	horizon, err := strconv.ParseUint(horizonText, 10, 64)
	if err != nil {
		return Position{}, fmt.Errorf("read the horizon: %w", err)
	}
	next, err := strconv.ParseUint(nextText, 10, 64)
	if err != nil {
		return Position{}, fmt.Errorf("read the next transaction: %w", err)
	}
	if p.IsZero() {
		return Position{horizon: horizon, since: at.Add(-firstReach), next: next, at: at}, nil
	}
	if p.horizon > next || next-p.horizon > maxTransactions || at.Sub(p.since) > MaxPositionAge {
		return Position{}, ErrPositionLost
	}
	after := Position{horizon: max(horizon, p.horizon), since: p.since, next: p.next, at: p.at}
	if after.next == 0 {
		after.next, after.at = next, at
	} else if after.horizon >= after.next {
		after.since, after.next, after.at = after.at, next, at
	}
	return after, nil
}
