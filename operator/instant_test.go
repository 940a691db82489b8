package operator

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

func TestPresentableIsATimeThatJSONHas(t *testing.T) {
	for _, tt := range []struct{ given, want time.Time }{
		{time.Time{}, time.Time{}},
		{time.Date(2026, 11, 26, 1, 2, 3, 4000, time.FixedZone("", 3600)), time.Date(2026, 11, 26, 0, 2, 3, 4000, time.UTC)},
		{time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC), lastInstant},
		{time.Date(9999, 12, 31, 23, 30, 0, 0, time.FixedZone("", -3600)), lastInstant},
		{time.Date(-3999, 1, 1, 0, 0, 0, 0, time.UTC), firstInstant},
	} {
		got := Presentable(tt.given)
		if !got.Equal(tt.want) || got.Location() != time.UTC || got.IsZero() != tt.given.IsZero() {
			t.Errorf("%s is shown as %s, want %s", tt.given, got, tt.want)
		}
		if _, err := json.Marshal(got); err != nil {
			t.Errorf("%s: %v", tt.given, err)
		}
	}
}

func TestIntervalsBeyondDurationsAreTheLongest(t *testing.T) {
	for given, want := range map[pgtype.Interval]time.Duration{
		{}:                                 0,
		{Microseconds: 1_500_000, Days: 1}: 24*time.Hour + 1500*time.Millisecond,
		{Months: 1_200_000}:                math.MaxInt64,
		{Months: -1_200_000}:               math.MinInt64,
		// 'infinity', from PostgreSQL 17 on.
		{Microseconds: math.MaxInt64, Days: math.MaxInt32, Months: math.MaxInt32}: math.MaxInt64,
		{Microseconds: math.MaxInt64}: math.MaxInt64,
	} {
		if got := duration(given); got != want {
			t.Errorf("%+v is %s, want %s", given, got, want)
		}
	}
}
