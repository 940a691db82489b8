package api

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// feed is what the readers of one tenant share; the zero tenant is all of them.
type feed struct {
	tenant  outbox.ID
	readers map[*reader]bool
	joining []*reader
	at      operator.Position // where the readers are; zero: it has not begun

	// Of the hub's goroutine alone.
	failed   error             // what became of the latest look
	heard    time.Time         // when one did not fail
	deaf     bool              // for too long
	position operator.Position // zero: it has not begun
	told     [2]map[outbox.ID]state
	full     bool // the latest look found a quarter of what one may

	// The latest look: the glance before it, when it began, and how long it took.
	glance operator.Glance
	looked time.Time
	took   time.Duration
}

// state is what was told of a job.
type state struct {
	status outbox.Status
	epoch  int64
}

// look is one look of a feed, from where it is.
//
// While some transaction of the cluster goes on that wrote before, the position stays
// there, and each look finds all that has committed since, again:
//
//	W        writes something, and stays open: the horizon is W
//	settle   20 001 jobs, and commits
//	look     more than fit: a mark. The next position is W, as W is running
//	look     the same 20 001: a mark, and so on until W ends
//
// and a stream that told each of 20 001 jobs as it came would end up there, too. So a
// look that finds much is the occasion to find out which transactions have committed;
// what they wrote is then left out. Who asks before he looks is told of all of it by
// the look. After a look that could not tell everything he asks before he marks:
// whoever has the mark asks for the jobs, and sees what had committed by then.
func (h *hub) look(ctx context.Context, f *feed) (*batch, error) {
	if f.position.IsZero() {
		return nil, h.begin(ctx, f)
	}
	var changes []operator.Change
	var after operator.Position
	var more bool
	err := h.inTx(ctx, f.tenant, func(tx pgx.Tx) (err error) {
		var settled operator.Settled
		if f.full {
			if settled, err = operator.FindSettled(ctx, tx, f.position); err != nil {
				return err
			}
		}
		if changes, after, more, err = operator.Changes(ctx, tx, f.tenant, f.position, h.maxChanges); err != nil {
			return err
		}
		if more {
			settled, err = operator.FindSettled(ctx, tx, after)
		}
		after = after.Past(settled)
		return err
	})
	lost := errors.Is(err, operator.ErrPositionLost)
	if lost {
		err = h.begin(ctx, f)
		after = f.position
	}
	if err != nil {
		return nil, err
	}
	f.position, f.full = after, len(changes) > h.maxChanges/4 && !more
	if lost || more {
		f.told = [2]map[outbox.ID]state{}
		return resync(after), nil
	}
	return newBatch(f.tenant, f.news(changes, h.maxChanges), after), nil
}

// begin is from now on: what had committed is not told, even if the position is before it.
func (h *hub) begin(ctx context.Context, f *feed) error {
	return h.inTx(ctx, f.tenant, func(tx pgx.Tx) error {
		now, err := operator.Now(ctx, tx)
		if err != nil {
			return err
		}
		settled, err := operator.FindSettled(ctx, tx, now)
		if err != nil {
			return err
		}
		f.position = now.Past(settled)
		return nil
	})
}

// missed is what has changed since a position, for readers at that one and at later ones.
type missed struct {
	batch  *batch
	since  operator.Position
	glance operator.Glance // at the database, before it was read
}

// has reports whether the batch tells a reader everything that has changed since the
// position that it brought.
func (m *missed) has(from operator.Position) bool {
	return !m.lost(from) && !(m.batch.mark && m.since.Before(from))
}

func (m *missed) lost(from operator.Position) bool {
	_, err := from.At(m.glance)
	return err != nil
}

// catchUp reads what has changed since the positions that clients brought, once for
// all of them. Positions that are lost have no part in it: they are another
// database's, and would leave out what the others have missed.
func (h *hub) catchUp(f *feed, readers []*reader) (*missed, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	m := &missed{batch: resync(f.position)}
	err := h.inTx(ctx, f.tenant, func(tx pgx.Tx) (err error) {
		if m.glance, err = operator.TakeGlance(ctx, tx); err != nil {
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
		changes, _, more, err := operator.Changes(ctx, tx, f.tenant, m.since, h.maxChanges)
		if err == nil && !more {
			// The feed is behind what was just read, not ahead: its next batch begins there.
			m.batch = newBatch(f.tenant, changes, f.position)
		}
		if errors.Is(err, operator.ErrPositionLost) {
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
func (h *hub) inTx(ctx context.Context, tenant outbox.ID, fn func(pgx.Tx) error) error {
	return access.InTx(ctx, h.pool, access.Principal{Tenant: tenant, AllTenants: tenant.IsZero()}, fn)
}

// news leaves out what was told already: looks overlap, and an extended lease is
// found again. What is forgotten is told twice.
func (f *feed) news(changes []operator.Change, remembered int) []operator.Change {
	if f.told[0] == nil || len(f.told[0]) > remembered {
		f.told = [2]map[outbox.ID]state{{}, f.told[0]}
	}
	news := changes[:0]
	for _, c := range changes {
		now := state{c.Status, c.Epoch}
		before, known := f.told[0][c.ID]
		if !known {
			before, known = f.told[1][c.ID]
		}
		f.told[0][c.ID] = now
		if !known || before != now {
			news = append(news, c)
		}
	}
	return news
}
