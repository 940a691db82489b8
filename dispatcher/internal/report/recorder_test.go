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

// slow is a database that does not answer a statement with the reports of more attempts than most.
type slow struct {
	Statements
	most atomic.Int64
}

func (s *slow) RecordReports(ctx context.Context, p sqlgen.RecordReportsParams) (rows []sqlgen.RecordReportsRow, err error) {
	if len(p.Ids) > int(s.most.Load()) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for i, id := range p.Ids {
		rows = append(rows, sqlgen.RecordReportsRow{ID: id, Epoch: p.Epochs[i], Recorded: true})
	}
	return rows, nil
}

type unwatched struct{}

func (unwatched) LeaseLost() bool                                { return false }
func (unwatched) LoseLease()                                     {}
func (unwatched) Attrs(_ string, attrs ...slog.Attr) []slog.Attr { return attrs }

// recording runs a recorder in a bubble. end ends n attempts with a report each, and settled counts those that the
// recorder has handed on.
func recording(t *testing.T, db *slow, drive func(end func(n int), settled *atomic.Int64)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var settled atomic.Int64
		r := NewRecorder(Config{
			Bytes: 4 << 20,
			DB:    db, Health: health.New(slog.New(slog.DiscardHandler)), Log: slog.New(slog.DiscardHandler), Settling: t.Context(),
			Bound:  func() (context.Context, context.CancelFunc) { return context.WithTimeout(t.Context(), 5*time.Second) },
			OnDone: func(Owner) { settled.Add(1) },
		})
		var running sync.WaitGroup
		running.Go(r.Run)
		drive(func(n int) {
			for range n {
				var a Reports
				a.Begin(unwatched{}, &outbox.Claimed{ID: outbox.NewID(), Epoch: 1}, r)
				if err := a.Progress(1, 2, ""); err != nil {
					t.Error(err)
				}
				a.End()
			}
		}, &settled)
		r.Stop()
		running.Wait()
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
		db.most.Store(recordBatch)
	})
}

// The database does not answer while attempts end. Their number is bounded: workers wait until it answers.
func TestAttemptsThatEndInAnOutageAreBounded(t *testing.T) {
	db := new(slow)
	recording(t, db, func(end func(int), settled *atomic.Int64) {
		const most = maxEnded + 1 // with Run, and one whose worker waits
		var ended atomic.Int64
		var workers sync.WaitGroup
		workers.Go(func() {
			for range 3 * maxEnded {
				end(1)
				ended.Add(1)
			}
		})
		time.Sleep(5 * time.Minute)
		if n := ended.Load(); n > most {
			t.Errorf("%d attempts wait for the recorder, want at most %d", n, most)
		}
		db.most.Store(recordBatch)
		workers.Wait()
		time.Sleep(5 * time.Minute)
		if n := settled.Load(); n != 3*maxEnded {
			t.Errorf("%d attempts were handed on, want %d", n, 3*maxEnded)
		}
	})
}
