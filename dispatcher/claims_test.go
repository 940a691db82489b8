package dispatcher

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/report"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/wake"
	"github.com/posthaste-dev/posthaste/outbox"
)

func ignore(context.Context, *outbox.Claimed) error { return nil }

// blobs returns the rows of a claim whose jobs have payloads of the given sizes.
type blobs struct {
	pgx.Rows
	sizes []int
	bytes []byte // each payload is a part of it
	at    int    // the row, counted from 1
}

func (b *blobs) Next() bool { b.at++; return b.at <= len(b.sizes) }
func (b *blobs) Err() error { return nil }
func (b *blobs) Close()     {}

func (b *blobs) Scan(columns ...any) error {
	*columns[2].(*pgtype.DriverBytes) = []byte(tiny{}.Kind())
	*columns[9].(*[]byte) = b.bytes[:b.sizes[b.at-1]]
	return nil
}

// Of an answer that is too large the reader keeps the jobs up to the bound, and gives back the others. Go and the SQL
// function store at most 4 MiB; psql stores any size. A job that is too large for any bound runs all the same, if it is
// the first.
func TestOfTooLargeAnAnswerTheFirstJobsAreKept(t *testing.T) {
	const bound = 2 * maxClaimBytes
	mux := new(Mux)
	mux.HandleRaw(tiny{}.Kind(), ignore)
	d, err := New(nil, mux, Config{})
	if err != nil {
		t.Fatal(err)
	}
	reader := &claims{common: d.common, capacity: &capacity{Waker: wake.New()}, recorder: report.NewRecorder(report.Config{})}
	payload := make([]byte, bound+1)
	for name, c := range map[string]struct {
		sizes []int
		kept  int
	}{
		"all fit":          {slices.Repeat([]int{bound / 4}, 4), 4},
		"some fit":         {slices.Repeat([]int{bound / 4}, 9), 4},
		"a huge one":       {[]int{bound + 1}, 1},
		"a huge one first": {[]int{bound + 1, 1, 1}, 1},
		"a huge one last":  {[]int{1, 1, bound + 1}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := reader.read(&blobs{sizes: c.sizes, bytes: payload}, claimRequest{room: 10}, time.Now())
			if b.err != nil || len(b.claimed) != len(c.sizes) {
				t.Fatalf("claimed %d, %v; want %d", len(b.claimed), b.err, len(c.sizes))
			}
			for i, a := range b.claimed {
				if want := i >= c.kept; a.returned != want || (a.job.Payload == nil) != want {
					t.Errorf("job %d goes back: %t, with %d bytes kept; want %t", i, a.returned, len(a.job.Payload), want)
				}
			}
		})
	}
}
