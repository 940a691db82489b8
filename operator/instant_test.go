package operator

import (
	"encoding/json"
	"testing"
	"time"
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
