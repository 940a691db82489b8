package outbox

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// A transaction of somebody else's does as it likes with a COPY; those of pgx, and ours,
// are read from directly.
func TestOnlyTransactionsOfPgxAreStreamedTo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	ofConn, err := conn.Conn().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ofConn.Rollback(context.WithoutCancel(t.Context())) }()
	ofPool := begin(t, db, pgx.ReadCommitted)
	nested, err := ofPool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ofProducer, err := NewProducer(db, NotifyOff).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ofProducer.Rollback(context.WithoutCancel(t.Context())) }()
	inProducer, err := ofProducer.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		tx   copier
		want bool
	}{
		"of a connection":          {ofConn, true},
		"of a pool":                {ofPool, true},
		"a savepoint":              {nested, true},
		"a savepoint of ours":      {inProducer, true},
		"somebody's own":           {copySpy{ofPool, new(int)}, false},
		"somebody's own by itself": {onlyCopies{db, db}, false},
	} {
		if got := pgxConn(c.tx); (got != nil) != c.want {
			t.Errorf("%s: connection %v, want one: %t", name, got, c.want)
		}
	}
}

// Whatever is read at a time, it is what pgx would send: rows of every size are stored,
// those larger than a message too.
func TestAStreamStoresRowsOfEverySize(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	random := rand.New(rand.NewPCG(1, 2))
	requests := make([]Request, copyFrom+7)
	for i := range requests {
		size := random.IntN(200)
		switch {
		case i%97 == 0:
			size = copyMessage - 40 + random.IntN(80)
		case i == copyFrom/2:
			size = 3*copyMessage + 1
		}
		requests[i].Args = Raw{KindName: "raw", Payload: bytes.Repeat([]byte{byte(97 + i%26)}, size), ContentType: "application/octet-stream"}
	}
	ids, err := EnqueueMany(t.Context(), db, requests)
	if err != nil {
		t.Fatal(err)
	}
	for i, payload := range payloads(t, db, ids) {
		if want := string(requests[i].Args.(Raw).Payload); payload != want {
			t.Fatalf("payload %d has %d bytes, want the %d that were given", i, len(payload), len(want))
		}
	}
}

// The times that a stream sends are those that pgx sends.
func TestAStreamsTimesAreThoseOfPgx(t *testing.T) {
	t.Parallel()
	types := pgtype.NewMap()
	for _, value := range []pgtype.Timestamptz{
		{},
		{Time: time.Unix(0, 0), Valid: true},
		{Time: time.Unix(-1, 999_999_999), Valid: true},
		{Time: time.Date(1999, 12, 31, 23, 59, 59, 999_999_999, time.UTC), Valid: true},
		{Time: time.Date(2000, 1, 1, 0, 0, 0, 1999, time.FixedZone("", -3600)), Valid: true},
		{Time: time.Date(9999, 12, 31, 23, 59, 59, 1, time.UTC), Valid: true},
	} {
		want, err := appendAny(nil, types, pgtype.TimestamptzOID, value)
		if err != nil {
			t.Fatal(err)
		}
		if got := appendTime(nil, value); !bytes.Equal(got, want) {
			t.Errorf("%v is sent as %s, want %s", value.Time, fmt.Sprintf("%x", got), fmt.Sprintf("%x", want))
		}
	}
}

// calling is arguments that call a function when they are encoded.
type calling func()

func (calling) Kind() string { return "calling" }
func (c calling) MarshalJSON() ([]byte, error) {
	c()
	return []byte("{}"), nil
}

// The connection breaks while the sender waits for rows: pgconn returns at once, and
// leaves the reader of the stream alone.
func TestNobodyReadsAStreamWhoseConnectionIsBroken(t *testing.T) {
	db := pgtest.New(t) // not parallel: it looks at all goroutines
	tx := begin(t, db, pgx.ReadCommitted)
	conn := tx.Conn().PgConn()
	pid := conn.PID()
	requests := numbered(9*copyStep + 1)
	requests[3*copyStep].Args = calling(func() { // the rows before it are on their way
		if _, err := db.Exec(t.Context(), `SELECT pg_terminate_backend($1, 5000)`, pid); err != nil {
			t.Error(err)
		}
		for deadline := time.Now().Add(10 * time.Second); !conn.IsClosed() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond) // pgconn says so to nobody
		}
	})
	if _, err := EnqueueMany(t.Context(), tx, requests); err == nil {
		t.Fatal("a batch whose connection was terminated is stored")
	}
	stacks := make([]byte, 1<<20)
	if stacks := string(stacks[:runtime.Stack(stacks, true)]); strings.Contains(stacks, "(*copyStream).encode") {
		t.Errorf("somebody still reads:\n%s", stacks)
	}
}
