package watch_test

import (
	"encoding/base64"
	"encoding/binary"
	"strings"
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
