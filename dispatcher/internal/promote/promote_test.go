package promote

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/health"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

func newPromoter(t *testing.T, db Statements) *Promoter {
	t.Helper()
	return New(Config{
		DB: db, Health: health.New(slog.New(slog.DiscardHandler)), Offer: func([]sqlgen.PromoteKeysRow) bool { return false }, Notify: func() {},
		Bound: func() (context.Context, context.CancelFunc) { return context.WithCancel(t.Context()) },
		Rest:  func(wait time.Duration, _ error) { time.Sleep(wait) }, Most: 100, Context: t.Context(), CutOff: func() bool { return false },
		Pause: func(int) time.Duration { return time.Millisecond },
	})
}

// refusing runs statements, and refuses those that concern one key.
type refusing struct {
	key   string
	moved map[string]int32
}

func (r *refusing) FindMovableKeys(_ context.Context, look sqlgen.FindMovableKeysParams) ([]int32, error) {
	return look.Ats, nil
}

func (r *refusing) PromoteKeys(_ context.Context, move sqlgen.PromoteKeysParams) ([]sqlgen.PromoteKeysRow, error) {
	if slices.Contains(move.Keys, r.key) {
		return nil, &pgconn.PgError{Code: "P0001"}
	}
	for i, key := range move.Keys {
		r.moved[key] += move.Counts[i]
	}
	return nil, nil
}

// A key that the database refuses to move on is tried again after a while, whatever leaves it meanwhile, and then all
// slots freed since are given away.
func TestAKeyThatIsRefusedIsLeftAloneForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &refusing{key: "bad", moved: map[string]int32{}}
		p := newPromoter(t, db)
		promote := func(bad, good int32) {
			t.Helper()
			for name, slots := range map[string]int32{"bad": bad, "good": good} {
				if slots > 0 {
					p.Free(Key{Name: name}, slots)
				}
			}
			if keys := p.take(); len(keys) > 0 {
				if err := p.promote(keys); err != nil {
					t.Fatal(err)
				}
			}
		}
		promote(2, 1)
		db.key = ""
		promote(3, 1)
		if db.moved["bad"] != 0 || db.moved["good"] != 2 {
			t.Errorf("moved %v; want two of the good key, and none of the bad one before its time", db.moved)
		}
		<-p.again()
		promote(0, 0)
		if db.moved["bad"] != 5 || len(p.keys) > 0 {
			t.Errorf("moved %v; want five of the bad key, and that nothing is due any more", db.moved)
		}

		db.key = "bad"
		promote(1, 0)
		if first, second := p.refusal(), p.refusal(); first == nil || second != nil {
			t.Errorf("the refusal is %v, and then %v; want it once", first, second)
		}
	})
}

// away is a database that does not answer. It counts how often it was asked.
type away struct{ asked int }

func (a *away) FindMovableKeys(context.Context, sqlgen.FindMovableKeysParams) ([]int32, error) {
	if a.asked++; a.asked > 100 {
		return nil, nil // so that a promoter that never gives up ends
	}
	return nil, errors.New("connection refused")
}

func (a *away) PromoteKeys(context.Context, sqlgen.PromoteKeysParams) ([]sqlgen.PromoteKeysRow, error) {
	return nil, errors.New("connection refused")
}

// A stop during an outage leaves keys to the reaper after one try, instead of waiting for the database.
func TestAStopDuringAnOutageLeavesKeysToTheReaper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := &away{}
		p := newPromoter(t, db)
		p.CutOff = func() bool { return true }
		p.Free(Key{Name: "acme"}, 1)
		p.Free(Key{Tenant: outbox.NewID(), Name: "acme"}, 1)
		p.Stop()
		p.Run()
		if db.asked != 1 {
			t.Errorf("the database was asked %d times, want once", db.asked)
		}
	})
}
