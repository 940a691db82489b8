package watch_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/changefeed"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Readers that come back in the same moment share one reading of what they have missed.
// A position of another database has no part in it: its reader gets a resync, and the
// others miss nothing, although its time is later than theirs.
func TestAnotherDatabasesPositionBesideAGoodOneIsAMark(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var good changefeed.Position
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
		good, err = changefeed.Now(t.Context(), tx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	id, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: "mail", Payload: []byte("{}")}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	missed := id.String()
	if _, err := operator.New(db).Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	// It was committed two minutes ago, by a statement that began then and waited.
	if _, err := db.Exec(t.Context(), `UPDATE outbox.history SET finished_at = finished_at - interval '2 minutes' WHERE id = $1`, missed); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	text, err := base64.RawURLEncoding.DecodeString(good.String())
	if err != nil {
		t.Fatal(err)
	}
	same := binary.BigEndian.Uint64(text)
	for name, other := range map[string]struct {
		horizon uint64
		since   time.Time
		marked  bool
	}{
		"a transaction of the future":        {1 << 40, now.Add(-time.Minute), true},
		"a time of the future":               {1, now.Add(time.Hour), true},
		"too long ago":                       {1, now.Add(-3 * time.Hour), true},
		"too long ago, the same horizon":     {same, now.Add(-3 * time.Hour), true},
		"an earlier one that nobody detects": {1, now, false},
	} {
		t.Run(name, func(t *testing.T) {
			var b [16]byte
			binary.BigEndian.PutUint64(b[:8], other.horizon)
			binary.BigEndian.PutUint64(b[8:], uint64(other.since.UnixMicro()))
			strange, err := changefeed.ParsePosition(base64.RawURLEncoding.EncodeToString(b[:]))
			if err != nil {
				t.Fatal(err)
			}
			for _, order := range [][]changefeed.Position{{good, strange}, {strange, good}} {
				got, err := watch.CatchUp(t.Context(), db, outbox.ID{}, order...)
				if err != nil {
					t.Fatal(err)
				}
				for i, from := range order {
					marked := strings.HasPrefix(got[i], "event: resync")
					if from.String() == good.String() && (marked || !strings.Contains(got[i], missed)) {
						t.Errorf("the good one is told %q, want the job %s", got[i], missed)
					}
					if from.String() == strange.String() && marked != other.marked {
						t.Errorf("the other one is told %q, want a mark: %t", got[i], other.marked)
					}
				}
			}
		})
	}
}

// stalled is a database that does not answer for a second, once.
type stalled struct {
	outbox.Beginner
	at    int64
	begun atomic.Int64
}

func (s *stalled) Begin(ctx context.Context) (pgx.Tx, error) {
	if s.begun.Add(1) == s.at {
		time.Sleep(time.Second)
		return nil, errors.New("no answer")
	}
	return s.Beginner.Begin(ctx)
}

// Looks rest for as long as they took, several times; not after one that found a database that did not answer. It
// answers again, and changes are seen again.
func TestALookThatFailsIsFollowedSoon(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := &stalled{Beginner: db, at: 6} // a look takes two transactions at most
	changes := watch.NewChanges(pool, watch.ChangesConfig{LookEvery: 20 * time.Millisecond, Rest: func(time.Duration) time.Duration { return 0 }})
	r, err := changes.Open(t.Context(), outbox.ID{}, watch.Filter{}, watch.Position{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for end := time.Now().Add(20 * time.Second); pool.begun.Load() <= pool.at; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %d transactions of looks none has followed within 20 s", pool.begun.Load())
		}
		if pool.begun.Load() == pool.at {
			failed := time.Now()
			for pool.begun.Load() == pool.at && time.Since(failed) < 8*time.Second {
				time.Sleep(5 * time.Millisecond)
			}
			if took := time.Since(failed); took > 5*time.Second {
				t.Errorf("the next look is %s after the one that failed began, want little more than the second that it took", took)
			}
		}
	}
}
