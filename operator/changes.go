package operator

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
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

	// What is below and not in open was told already; see Past. Not a part of the text.
	told Settled
}

// Settled is which transactions had committed when somebody looked: those below a
// certain one, but for some.
type Settled struct {
	below uint64
	open  []int64
}

// Glance is what can be told of the database without reading any of its rows.
type Glance struct {
	snapshot      string
	horizon, next string
	at            time.Time
	written       int64
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
	// maxUnsettled bounds the transactions that Settled has to remember, maxAsked those
	// that it asks for: some four seconds' work.
	maxUnsettled = 10_000
	maxAsked     = 4_000_000
)

// IsZero reports whether it is none.
func (p Position) IsZero() bool { return p.horizon == 0 }

// Before reports whether who is there has to be told all that one at the other position
// has, and perhaps more.
func (p Position) Before(other Position) bool { return p.horizon < other.horizon }

// Earlier is a position from which on a reader is told all that one at either of the
// two is. Neither may be [ErrPositionLost] by [Position.At]: the transactions of
// another database say nothing of the times of this one.
func (p Position) Earlier(other Position) Position {
	earlier := Position{horizon: min(p.horizon, other.horizon), since: p.since}
	if other.since.Before(p.since) {
		earlier.since = other.since
	}
	return earlier
}

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
	if p.IsZero() || micros < 0 || p.since.Year() > 9999 || p.String() != text { // base64 passes over ends of lines
		return Position{}, &outbox.InvalidError{Field: "Position", Reason: "is not one that was given"}
	}
	return p, nil
}

// Now returns the position from which on a reader learns of every change that was
// not visible when Now was called. A transaction that had been writing for more
// than five minutes then is the exception. tx may be any transaction.
func Now(ctx context.Context, tx pgx.Tx) (Position, error) {
	now, err := TakeGlance(ctx, tx)
	if err != nil {
		return Position{}, err
	}
	return Position{}.At(now)
}

// TakeGlance costs the same whatever there is in the database: it reads no table. tx
// has to be READ COMMITTED, and any tenant's or none's.
func TakeGlance(ctx context.Context, tx pgx.Tx) (Glance, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	row, err := sqlgen.New(tx).FindPosition(ctx)
	if err != nil {
		return Glance{}, fmt.Errorf("find the position: %w", err)
	}
	return Glance{snapshot: row.Snapshot, horizon: row.Horizon, next: row.Next, at: row.At.Time, written: row.Written}, nil
}

// SameAs reports that nothing at all has committed between the two.
func (g Glance) SameAs(earlier Glance) bool {
	return g.snapshot == earlier.snapshot && g.snapshot != ""
}

// LikelySameAs reports that no change of a job is known to have been committed between
// the two. The server may learn of one seconds later, rarely a minute.
func (g Glance) LikelySameAs(earlier Glance) bool {
	return g.written == earlier.written && g.snapshot != ""
}

// At is the position of a reader who knows everything that was visible at a glance:
// who has looked since another one that is the same.
func (p Position) At(g Glance) (Position, error) { return p.advance(g.horizon, g.next, g.at) }

// FindSettled finds out which transactions have committed of those whose rows Changes
// would return from the position on, or return again. What they wrote is visible to
// every statement after it. tx may be any transaction.
func FindSettled(ctx context.Context, tx pgx.Tx, p Position) (Settled, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	db := sqlgen.New(tx)
	now, err := db.FindPosition(ctx)
	if err != nil {
		return Settled{}, fmt.Errorf("find the position: %w", err)
	}
	next, err := strconv.ParseUint(now.Next, 10, 64)
	if err != nil {
		return Settled{}, fmt.Errorf("read the next transaction: %w", err)
	}
	first := max(p.horizon, p.told.below)
	open := slices.DeleteFunc(slices.Clone(p.told.open), func(id int64) bool { return uint64(id) < p.horizon })
	s := Settled{below: max(first, min(next, first+maxAsked))}
	s.open, err = db.ListUnsettled(ctx, sqlgen.ListUnsettledParams{
		Open: orNone(open), First: int64(first), Last: int64(s.below) - 1, MaxRows: maxUnsettled + 1,
	})
	if err != nil {
		return Settled{}, fmt.Errorf("list unsettled transactions: %w", err)
	}
	if len(s.open) > maxUnsettled { // of those from the last one on nothing is known
		s.below = max(first, uint64(s.open[maxUnsettled]))
		s.open = s.open[:maxUnsettled]
	}
	return s, nil
}

// Past is the position from which on Changes leaves out what these transactions
// wrote: of a reader who was told of it, or that he was not.
//
// Without it all that committed after the beginning of the oldest running transaction
// is returned again and again, as long as that one runs.
func (p Position) Past(s Settled) Position {
	if s.below >= p.told.below {
		p.told = s
	}
	return p
}

func orNone(ids []int64) []int64 {
	if ids == nil {
		return []int64{} // NULL would be one
	}
	return ids
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
		Known: strconv.FormatUint(max(since.horizon, since.told.below), 10), Unsettled: orNone(since.told.open),
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
	if p.horizon > next || next-p.horizon > maxTransactions || p.since.After(at) || at.Sub(p.since) > MaxPositionAge {
		return Position{}, ErrPositionLost
	}
	after := Position{horizon: max(horizon, p.horizon), since: p.since, next: p.next, at: p.at, told: p.told}
	if after.next == 0 {
		after.next, after.at = next, at
	} else if after.horizon >= after.next {
		after.since, after.next, after.at = after.at, next, at
	}
	return after, nil
}
