package outbox

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
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
