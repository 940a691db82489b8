package report

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/health"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// slow is a database that does not answer a statement with the reports of more attempts than most, and skips the row of
// the job that is locked.
type slow struct {
	Statements
	most   atomic.Int64
	locked outbox.ID
}

func (s *slow) RecordReports(ctx context.Context, p sqlgen.RecordReportsParams) (rows []sqlgen.RecordReportsRow, err error) {
	if len(p.Ids) > int(s.most.Load()) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for i, id := range p.Ids {
		if id.Bytes == s.locked {
			continue
		}
		rows = append(rows, sqlgen.RecordReportsRow{ID: id, Epoch: p.Epochs[i], Recorded: true})
	}
	return rows, nil
}

const most = 500 // attempts in a statement

type unwatched struct{}

func (unwatched) LeaseLost() bool                                { return false }
func (unwatched) LoseLease()                                     {}
func (unwatched) Attrs(_ string, attrs ...slog.Attr) []slog.Attr { return attrs }

// inBubble runs a recorder in a bubble, which hands the attempts that are over to onDone.
func inBubble(t *testing.T, db *slow, onDone func(Owner), drive func(t *testing.T, r *Recorder)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := NewRecorder(Config{
			Most: most, Bytes: 4 << 20,
			DB: db, Health: health.New(slog.New(slog.DiscardHandler)), Log: slog.New(slog.DiscardHandler), Settling: t.Context(),
			Bound:  func() (context.Context, context.CancelFunc) { return context.WithTimeout(t.Context(), 5*time.Second) },
			OnDone: onDone,
		})
		var running sync.WaitGroup
		running.Go(r.Run)
		drive(t, r)
		r.Stop()
		running.Wait()
	})
}

func begin(r *Recorder, id outbox.ID) *Reports {
	a := new(Reports)
	a.Begin(unwatched{}, &outbox.Claimed{ID: id, Epoch: 1}, r)
	return a
}

// recording runs a recorder in a bubble. end ends n attempts with a report each, and settled counts those that the
// recorder has handed on.
func recording(t *testing.T, db *slow, drive func(end func(n int), settled *atomic.Int64)) {
	t.Helper()
	var settled atomic.Int64
	inBubble(t, db, func(Owner) { settled.Add(1) }, func(t *testing.T, r *Recorder) {
		drive(func(n int) {
			for range n {
				a := begin(r, outbox.NewID())
				if err := a.Progress(1, 2, ""); err != nil {
					t.Error(err)
				}
				a.End()
			}
		}, &settled)
	})
}

// The reports of many attempts are too much for the time of a statement. Each further statement has half as many, so
// that outcomes do not wait behind them for ever.
func TestAStatementWithoutAnAnswerBecomesSmaller(t *testing.T) {
	db := new(slow)
	db.most.Store(60)
	recording(t, db, func(end func(int), settled *atomic.Int64) {
		end(400)
		time.Sleep(5 * time.Minute)
		if n := settled.Load(); n != 400 {
			t.Errorf("%d attempts were handed on, want 400", n)
		}
		db.most.Store(most)
	})
}

// The database does not answer while attempts end. Their number is bounded: workers wait until it answers.
func TestAttemptsThatEndInAnOutageAreBounded(t *testing.T) {
	db := new(slow)
	recording(t, db, func(end func(int), settled *atomic.Int64) {
		const bound = 4*most + 1 // with Run, and one whose worker waits
		var ended atomic.Int64
		var workers sync.WaitGroup
		workers.Go(func() {
			for range 12 * most {
				end(1)
				ended.Add(1)
			}
		})
		time.Sleep(5 * time.Minute)
		if n := ended.Load(); n > bound {
			t.Errorf("%d attempts wait for the recorder, want at most %d", n, bound)
		}
		db.most.Store(most)
		workers.Wait()
		time.Sleep(5 * time.Minute)
		if n := settled.Load(); n != 12*most {
			t.Errorf("%d attempts were handed on, want %d", n, 12*most)
		}
	})
}

// The row of a job whose attempt is over stays locked:
//
//	A           reports, returns             handed on without its report, half a minute later
//	B                         saves one checkpoint after the other
//	recorder         skips A's row … again … again
//
// No checkpoint of B waits for A's row: the database answers at once.
func TestALockedRowOfAnEndedAttemptDelaysNoOther(t *testing.T) {
	db := &slow{locked: outbox.NewID()}
	db.most.Store(most)
	var handedOn atomic.Int64
	inBubble(t, db, func(Owner) { handedOn.Store(time.Now().UnixNano()) }, func(t *testing.T, r *Recorder) {
		a, b := begin(r, db.locked), begin(r, outbox.NewID())
		if err := a.Progress(1, 2, ""); err != nil || !a.End() {
			t.Fatalf("reported with %v; want that the report is left", err)
		}
		began := time.Now()
		for range 100 {
			time.Sleep(time.Millisecond)
			if err := b.SaveCheckpoint(t.Context(), []byte("1")); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("100 checkpoints with a millisecond between them took %s", took)
		}
		time.Sleep(20 * recordPatience)
		if waited := time.Duration(handedOn.Load() - began.UnixNano()); waited < 10*recordPatience || waited > 10*recordPatience+2*recordInterval {
			t.Errorf("the attempt waited %s for its row, want %s", waited, 10*recordPatience)
		}
	})
}
