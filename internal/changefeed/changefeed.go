// Package changefeed reads the changes of jobs from the database: which jobs have a row version that a reader has not
// seen, and how far the reader has come. Package watch makes streams from it.
package changefeed

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
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Change is the present state of a job whose status may have changed.
type Change struct {
	ID         outbox.ID
	Tenant     outbox.ID
	Queue      string
	Kind       string
	Status     outbox.Status
	Epoch      int64 // rises with every attempt, and when one is ended
	Attempt    int
	FinishedAt time.Time // zero while the job is open
	ErrorCode  string    // of the latest failed attempt; "" if there is none
}

// Position is how far a reader of changes has come. Every process can continue from it, if it uses the same database
// server. The zero Position means no position.
type Position struct {
	horizon uint64    // every transaction below it had ended
	since   time.Time // no transaction from the horizon on had begun to write before

	// next and at become the next since, once the horizon has passed next: the transactions from next on began to write
	// later than at. They are not part of the text.
	next uint64
	at   time.Time

	// The reader has what these transactions wrote; see Without. known is not part of the text.
	known Committed
}

// Committed is a set of transactions that had committed at some moment.
type Committed struct {
	below uint64  // all of them are below this one
	open  []int64 // transactions below it that had not committed
}

// Snapshot is the state of the server's transactions at one moment. Taking one reads no table.
type Snapshot struct {
	snapshot      string
	horizon, next string
	at            time.Time
	written       int64
}

// ErrPositionLost means that the changes since a position can no longer be found: the position is too old, or belongs
// to another server.
var ErrPositionLost = errors.New("the position is too old, or another database's")

// MaxPositionAge is how long after a position was taken a reader can continue from it.
const MaxPositionAge = time.Hour

const (
	// slowStart is how long a statement may have begun before its transaction got an id, because it waited for a lock.
	// Rows are stored with the time of the statement's start.
	slowStart = 30 * time.Second
	// firstReach is how long before a reader began a transaction may have begun to write and still commit afterwards.
	// For later transactions that time is known.
	firstReach       = 5 * time.Minute
	statementTimeout = 10 * time.Second
	// maxTransactions is half the distance up to which 32 bits of two ids show which is first.
	maxTransactions = 1 << 30
	// maxUncommitted bounds the transactions that a Committed lists, and maxAsked the transactions about which
	// FindCommitted asks the server: some four seconds' work.
	maxUncommitted = 10_000
	maxAsked       = 4_000_000
)

// IsZero reports whether there is no position.
func (p Position) IsZero() bool { return p.horizon == 0 }

// Before reports whether a reader at p needs every change that a reader at other needs, and perhaps more.
func (p Position) Before(other Position) bool { return p.horizon < other.horizon }

// Earlier returns a position from which a reader finds every change that readers at either of the two positions need.
// [Position.At] must accept both: the transaction ids of another database reveal nothing about the times of this one.
func (p Position) Earlier(other Position) Position {
	earlier := Position{horizon: min(p.horizon, other.horizon), since: p.since}
	if other.since.Before(p.since) {
		earlier.since = other.since
	}
	return earlier
}

// String returns the position as text, for [ParsePosition].
func (p Position) String() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], p.horizon)
	binary.BigEndian.PutUint64(b[8:], uint64(p.since.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// ParsePosition parses the result of [Position.String]. Its error is an [outbox.InvalidError].
func ParsePosition(text string) (Position, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != 16 {
		return Position{}, &outbox.InvalidError{Field: "Position", Reason: "is not one that was given"}
	}
	micros := int64(binary.BigEndian.Uint64(b[8:]))
	p := Position{horizon: binary.BigEndian.Uint64(b[:8]), since: time.UnixMicro(micros)}
	if p.IsZero() || micros < 0 || p.since.Year() > 9999 || p.String() != text { // base64 ignores line breaks
		return Position{}, &outbox.InvalidError{Field: "Position", Reason: "is not one that was given"}
	}
	return p, nil
}

// Now returns the position from which a reader finds every change that was not visible when Now was called, except the
// changes of transactions that had been writing for more than five minutes. tx may be any transaction.
func Now(ctx context.Context, tx pgx.Tx) (Position, error) {
	now, err := TakeSnapshot(ctx, tx)
	if err != nil {
		return Position{}, err
	}
	return Position{}.At(now)
}

// TakeSnapshot returns the present state of the server's transactions. It reads no table, so it costs the same however
// many jobs there are. tx must be READ COMMITTED; its tenant does not matter.
func TakeSnapshot(ctx context.Context, tx pgx.Tx) (Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	row, err := sqlgen.New(tx).FindPosition(ctx)
	if err != nil {
		return Snapshot{}, fmt.Errorf("find the position: %w", err)
	}
	return Snapshot{
		snapshot: row.Snapshot, horizon: row.Horizon, next: row.Next, at: row.At.Time,
		written: row.Written,
	}, nil
}

// SameAs reports that nothing at all has committed between the two snapshots.
func (s Snapshot) SameAs(earlier Snapshot) bool {
	return s.snapshot == earlier.snapshot && s.snapshot != ""
}

// LikelySameAs reports that the server's statistics show no change of a job between the two snapshots. They count a
// commit seconds later, rarely a minute.
func (s Snapshot) LikelySameAs(earlier Snapshot) bool {
	return s.written == earlier.written && s.snapshot != ""
}

// WrittenSince returns how many writes to rows of open jobs the server's statistics have counted between the two
// snapshots, including those that were rolled back.
func (s Snapshot) WrittenSince(earlier Snapshot) int64 { return s.written - earlier.written }

// At returns the position of a reader at p that has every change that was visible in the snapshot.
func (p Position) At(s Snapshot) (Position, error) { return p.advance(s.horizon, s.next, s.at) }

// FindCommitted returns which transactions have committed, among those whose rows [List] would return, perhaps again,
// from the position on. Every later statement sees what they wrote. tx may be any transaction.
func FindCommitted(ctx context.Context, tx pgx.Tx, p Position) (Committed, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	db := sqlgen.New(tx)
	now, err := db.FindPosition(ctx)
	if err != nil {
		return Committed{}, fmt.Errorf("find the position: %w", err)
	}
	next, err := strconv.ParseUint(now.Next, 10, 64)
	if err != nil {
		return Committed{}, fmt.Errorf("read the next transaction: %w", err)
	}
	first := max(p.horizon, p.known.below)
	open := slices.DeleteFunc(slices.Clone(p.known.open), func(id int64) bool { return uint64(id) < p.horizon })
	s := Committed{below: max(first, min(next, first+maxAsked))}
	s.open, err = db.ListUnsettled(ctx, sqlgen.ListUnsettledParams{
		Open: orNone(open), First: int64(first), Last: int64(s.below) - 1, MaxRows: maxUncommitted + 1,
	})
	if err != nil {
		return Committed{}, fmt.Errorf("list uncommitted transactions: %w", err)
	}
	if len(s.open) > maxUncommitted { // the last one and all after it stay unknown
		s.below = max(first, uint64(s.open[maxUncommitted]))
		s.open = s.open[:maxUncommitted]
	}
	return s, nil
}

// Without returns the position of a reader that needs nothing more of what these transactions wrote: [List] leaves it
// out.
//
// While the oldest running transaction goes on, a position stays where that transaction began. Without this, each List
// would return everything again that has committed since.
func (p Position) Without(s Committed) Position {
	if s.below >= p.known.below {
		p.known = s
	}
	return p
}

func orNone(ids []int64) []int64 {
	if ids == nil {
		return []int64{} // NULL would be one unknown id
	}
	return ids
}

// List returns the jobs of a tenant (zero: of all tenants) that have changed since the position, at most limit of them,
// and the position after them. It returns every job that changed, in its present state. It may omit states in between,
// and return a job that has not changed.
//
// more reports that there were other changes: the returned ones are then not all up to the new position.
//
// tx must be READ COMMITTED, because each call needs a snapshot of its own.
func List(ctx context.Context, tx pgx.Tx, tenant outbox.ID, since Position,
	limit int,
) (changes []Change, after Position, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := sqlgen.New(tx).ListChanges(ctx, sqlgen.ListChangesParams{
		Horizon: strconv.FormatUint(since.horizon, 10), Since: pgtype.Timestamptz{
			Time:  since.since.Add(-slowStart),
			Valid: true,
		},
		Known: strconv.FormatUint(max(since.horizon, since.known.below), 10), Unsettled: orNone(since.known.open),
		Tenant: pgvalue.UUIDOrNull(tenant), MaxRows: int32(limit) + 1,
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
			ID: row.ID.Bytes, Tenant: row.TenantID.Bytes, Queue: row.Queue, Kind: row.Kind,
			Status: outbox.Status(row.Status),
			Epoch:  row.Epoch, Attempt: int(row.Attempt), FinishedAt: row.FinishedAt.Time, ErrorCode: row.ErrorCode,
		})
	}
	return changes, after, more, nil
}

// advance returns the position after a look at time at, whose snapshot has horizon and next.
//
// A row that must be found was written by a transaction that is not below the horizon. When that transaction got its id
// is unknown, except that ids from next on were given after the look. So since follows the looks, one at a time: it
// becomes the time of a look when the horizon has reached that look's next.
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
	after := Position{horizon: max(horizon, p.horizon), since: p.since, next: p.next, at: p.at, known: p.known}
	if after.next == 0 {
		after.next, after.at = next, at
	} else if after.horizon >= after.next {
		after.since, after.next, after.at = after.at, next, at
	}
	return after, nil
}
