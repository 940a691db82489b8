package watch

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/changefeed"
	"github.com/posthaste-dev/posthaste/outbox"
)

// feed is the state that the readers of one tenant share; the zero tenant stands for all tenants.
type feed struct {
	tenant  outbox.ID
	readers map[*Reader]bool
	joining []*Reader
	at      Position // where the readers are; zero before it has begun

	// These belong to the hub's goroutine.
	failed   error                  // of the latest look
	heard    time.Time              // when the latest look without an error ended
	deaf     bool                   // looks have failed for longer than deafAfter
	position Position               // zero before it has begun
	sent     [2]map[outbox.ID]state // the states that were sent last, of the newest jobs
	full     bool                   // the latest look found more than a quarter of its limit

	// These describe the latest look: whether it found more than readers are sent, when it began, and how long it took.
	burst  bool
	looked time.Time
	took   time.Duration

	// These describe the latest look, or the latest time that changes were passed over: the snapshot before it, and
	// when it began.
	snapshot changefeed.Snapshot
	moved    time.Time
}

// state is a state of a job that was sent.
type state struct {
	status outbox.Status
	epoch  int64
}

// look looks once for a feed, from its position on.
//
// While an older transaction of the cluster that has written something is open, the position does not advance, and each
// look finds again all that has committed since:
//
//	W        writes something, and stays open: the horizon is W
//	settle   20 001 jobs, and commits
//	look     more than fit: a resync. The next position is W, as W is running
//	look     the same 20 001: a resync, and so on until W ends
//
// and a stream that was sent each of 20 001 jobs as it came would end up there, too. So after a look that found much,
// the feed finds out which transactions have committed, and later looks leave out what they wrote. If it asks before it
// looks, the look returns everything that they wrote. If a look could not return everything, the feed asks before it
// sends the resync: a client that gets the resync queries the jobs, and sees what had committed by then.
func (h *Changes) look(ctx context.Context, f *feed, limit int) (*Batch, error) {
	if f.position.IsZero() {
		return nil, h.begin(ctx, f)
	}
	var changes []changefeed.Change
	var after Position
	var more bool
	err := h.inTx(ctx, f.tenant, func(tx pgx.Tx) (err error) {
		var committed changefeed.Committed
		if f.full {
			if committed, err = changefeed.FindCommitted(ctx, tx, f.position); err != nil {
				return err
			}
		}
		if changes, after, more, err = changefeed.List(ctx, tx, f.tenant, f.position, limit); err != nil {
			return err
		}
		if more {
			committed, err = changefeed.FindCommitted(ctx, tx, after)
		}
		after = after.Without(committed)
		return err
	})
	lost := errors.Is(err, changefeed.ErrPositionLost)
	if lost {
		err = h.begin(ctx, f)
		after = f.position
	}
	if err != nil {
		return nil, err
	}
	f.position, f.full = after, len(changes) > limit/4 && !more
	if lost || more {
		f.sent = [2]map[outbox.ID]state{}
		b := resync(after)
		b.changes = encoded(f.tenant, changes[max(0, len(changes)-sampled):])
		if more {
			b.AtLeast = len(changes)
		}
		return b, nil
	}
	return newBatch(f.tenant, f.news(changes, h.maxChanges), after), nil
}

// pass moves the feed to a position without a look: a client that receives the resync reads the jobs again, and sees
// what had committed by then. The statistics cover the jobs of all tenants, so the feed of one tenant gets no number.
func (f *feed) pass(after Position, atLeast int) *Batch {
	f.position, f.sent = after, [2]map[outbox.ID]state{}
	b := resync(after)
	if f.tenant.IsZero() {
		b.AtLeast = atLeast
	}
	return b
}

// begin sets the position to now: earlier commits are not sent, even if the position is before them.
func (h *Changes) begin(ctx context.Context, f *feed) error {
	return h.inTx(ctx, f.tenant, func(tx pgx.Tx) error {
		now, err := changefeed.Now(ctx, tx)
		if err != nil {
			return err
		}
		committed, err := changefeed.FindCommitted(ctx, tx, now)
		if err != nil {
			return err
		}
		f.position = now.Without(committed)
		return nil
	})
}

// missed contains the changes since a position, for readers at that position and at later ones.
type missed struct {
	batch    *Batch
	since    Position
	snapshot changefeed.Snapshot // taken before the changes were read
}

// has reports whether the batch contains every change since the position that a reader brought.
func (m *missed) has(from Position) bool {
	return !m.lost(from) && !(m.batch.Resync && m.since.Before(from))
}

func (m *missed) lost(from Position) bool {
	_, err := from.At(m.snapshot)
	return err != nil
}

// readMissed reads the changes since the positions that clients brought, once for all of them. It ignores lost
// positions: they belong to another database, and would leave out what the others have missed.
func (h *Changes) readMissed(f *feed, readers []*Reader) (m *missed, err error) {
	defer recovered(&err)
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	m = &missed{batch: resync(f.position)}
	err = h.inTx(ctx, f.tenant, func(tx pgx.Tx) (err error) {
		if m.snapshot, err = changefeed.TakeSnapshot(ctx, tx); err != nil {
			return err
		}
		for _, r := range readers {
			switch {
			case r.from.IsZero() || m.lost(r.from):
			case m.since.IsZero():
				m.since = r.from
			default:
				m.since = m.since.Earlier(r.from)
			}
		}
		if m.since.IsZero() {
			return nil
		}
		changes, _, more, err := changefeed.List(ctx, tx, f.tenant, m.since, h.maxChanges)
		if err == nil && !more {
			// The feed is not ahead of what was just read, so its next batch begins in time.
			m.batch = newBatch(f.tenant, changes, f.position)
		}
		if errors.Is(err, changefeed.ErrPositionLost) {
			err = nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// inTx runs fn under the row-level security of the tenant.
func (h *Changes) inTx(ctx context.Context, tenant outbox.ID, fn func(pgx.Tx) error) error {
	return access.InTx(ctx, h.pool, access.Principal{Tenant: tenant, AllTenants: tenant.IsZero()}, fn)
}

// news removes states that were already sent: looks overlap, and find a job again whose lease was extended. A state
// that is no longer remembered is sent twice.
func (f *feed) news(changes []changefeed.Change, remembered int) []changefeed.Change {
	if f.sent[0] == nil || len(f.sent[0]) > remembered {
		f.sent = [2]map[outbox.ID]state{{}, f.sent[0]}
	}
	news := changes[:0]
	for _, c := range changes {
		now := state{c.Status, c.Epoch}
		before, known := f.sent[0][c.ID]
		if !known {
			before, known = f.sent[1][c.ID]
		}
		f.sent[0][c.ID] = now
		if !known || before != now {
			news = append(news, c)
		}
	}
	return news
}
