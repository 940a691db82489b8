package verify

import (
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
)

// tracing makes workers write to the ledger how long their claims take.
const tracing = "VERIFY_TRACE=on"

// claims holds the durations of claims, by the second in which they ended.
type claims struct {
	feed  *ledger.Feed
	ended map[int64][]time.Duration
}

// newClaims returns claims that have read nothing yet.
func (r *Run) newClaims() *claims {
	return &claims{ledger.NewFeed(r.ledgers()), map[int64][]time.Duration{}}
}

// read reads what the ledgers of traced workers have got since the last call.
func (c *claims) read() error {
	for e, err := range c.feed.Fresh() {
		if err != nil {
			return err
		}
		if e.Event == ledger.Called && e.Do == "ClaimJobs" {
			c.ended[e.At.Unix()] = append(c.ended[e.At.Unix()], time.Duration(e.N)*time.Microsecond)
		}
	}
	return nil
}

// p99s returns the 99th percentile of each whole second between from and until that has claims, and the number of those
// claims.
func (c *claims) p99s(from, until time.Time) (all []time.Duration, n int) {
	for second := from.Unix() + 1; second < until.Unix(); second++ {
		if took := slices.Sorted(slices.Values(c.ended[second])); len(took) > 0 {
			all = append(all, took[len(took)*99/100])
			n += len(took)
		}
	}
	return all, n
}

// p99 returns the median of the seconds' 99th percentiles, and the number of claims: other load on the machine slows
// down some seconds, a fault of the claims slows down all. If there were no claims, it returns an hour.
func (c *claims) p99(from, until time.Time) (median time.Duration, n int) {
	all, n := c.p99s(from, until)
	if len(all) == 0 {
		return time.Hour, 0
	}
	slices.Sort(all)
	return all[len(all)/2], n
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
