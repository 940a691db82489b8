package console

import (
	"strings"
	"testing"
	"time"
)

// A person types a time as they read it, in the zone in which they read it.
func TestTimesAreReadInTheViewersZone(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 25, 14, 2, 30, 0, berlin)
	for text, want := range map[string]string{
		"14:02":                     "2026-11-25T14:02:00+01:00",
		"14:02:31":                  "2026-11-24T14:02:31+01:00", // today's has yet to come
		"23:50":                     "2026-11-24T23:50:00+01:00",
		"2026-11-25 14:02":          "2026-11-25T14:02:00+01:00",
		"2026-11-25T14:02":          "2026-11-25T14:02:00+01:00",
		"2026-07-01 14:02:03":       "2026-07-01T14:02:03+02:00",
		"2026-11-25":                "2026-11-25T00:00:00+01:00",
		"24 Nov 14:02:03":           "2026-11-24T14:02:03+01:00",
		"24 Dec 14:02":              "2025-12-24T14:02:00+01:00",
		"2 Jan 2025 15:04:05":       "2025-01-02T15:04:05+01:00",
		"2027-01-31T09:00:00Z":      "2027-01-31T09:00:00Z",
		"2027-01-31T09:00:00-05:00": "2027-01-31T09:00:00-05:00",
	} {
		got, err := parsePast(text, now)
		if err != nil || got.text != want || got.at.Format(time.RFC3339) != want {
			t.Errorf("%s is %q at %v, %v; want %s", text, got.text, got.at, err, want)
		}
	}
	for text, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "2h": 2 * time.Hour, "7d": 7 * 24 * time.Hour, "8 min": 8 * time.Minute,
		"8 min ago": 8 * time.Minute, "2 h 5 min": 2*time.Hour + 5*time.Minute, "38 s ago": 38 * time.Second, "0s": 0,
	} {
		got, err := parsePast(text, now)
		if err != nil || got.text != text || now.Sub(got.at) != want {
			t.Errorf("%s is %q, %v ago, %v; want %v", text, got.text, now.Sub(got.at), err, want)
		}
		future, err := parseFuture("in "+strings.TrimSuffix(text, " ago"), now)
		if err != nil || future.Sub(now) != want {
			t.Errorf("in %s is %v, %v", text, future, err)
		}
	}
	for text, want := range map[string]string{
		"14:02": "2026-11-26T14:02:00+01:00", "23:50": "2026-11-25T23:50:00+01:00",
		"1 Jan 06:00": "2027-01-01T06:00:00+01:00", "2026-11-25 14:02": "2026-11-25T14:02:00+01:00",
	} {
		if got, err := parseFuture(text, now); err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%s is %v, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"soon", "", "5", "-2h", "2h3", "25:00", "99999999d", "90000d 90000d", "2026-13-01", "0001-01-01T00:00:00Z", "0001-01-01T01:00:00+01:00"} {
		if got, err := parsePast(text, now); err == nil || !strings.Contains(err.Error(), "14:02") {
			t.Errorf("%q is %v, %v; want an error that names the forms", text, got, err)
		}
	}
	for typed, want := range map[string]search{
		"since:2026-11-24 14:02 mail": {kind: "mail"}, "since:24 Nov 14:02 until:2 h dead": {},
		"since:24 Nov 14:02 until:2 h 5 min ago mail": {kind: "mail"},
	} {
		got, err := parseSearch(typed, now)
		if err != nil || !strings.HasPrefix(got.since.text, "2026-11-24T14:02") || got.kind != want.kind {
			t.Errorf("%s is %+v, %v", typed, got, err)
		}
	}
}

// In the hour that is repeated at the end of summer time a clock shows each time twice. A day that a year does not have
// is one of another year.
func TestTimesInTheRepeatedHourAreTheNearest(t *testing.T) {
	t.Parallel()
	for zone, c := range map[string]struct{ now, past, future []string }{
		"Europe/Berlin": {
			[]string{"2026-10-25T00:40:00Z", "2026-10-25T01:40:00Z"}, // 02:40, for the first and the second time
			[]string{"2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"}, // 02:30
			[]string{"2026-10-25T00:50:00Z", "2026-10-25T01:50:00Z"}, // 02:50
		},
		"America/New_York": {
			[]string{"2026-11-01T05:40:00Z", "2026-11-01T06:40:00Z"}, // 01:40
			[]string{"2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z"},
			[]string{"2026-11-01T05:50:00Z", "2026-11-01T06:50:00Z"},
		},
	} {
		location, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range c.now {
			now, _ := time.Parse(time.RFC3339, text)
			now = now.In(location)
			past, err := parsePast(now.Add(-10*time.Minute).Format("15:04"), now)
			if err != nil || past.at.UTC().Format(time.RFC3339) != c.past[i] {
				t.Errorf("%s at %s: ten minutes ago is %s, %v; want %s", zone, text, past.at.UTC(), err, c.past[i])
			}
			future, err := parseFuture(now.Add(10*time.Minute).Format("15:04"), now)
			if err != nil || future.UTC().Format(time.RFC3339) != c.future[i] {
				t.Errorf("%s at %s: in ten minutes is %s, %v; want %s", zone, text, future.UTC(), err, c.future[i])
			}
		}
	}
	now := time.Date(2027, 3, 1, 0, 0, 0, 0, time.UTC)
	if got, err := parsePast("29 Feb 10:00", now); err != nil || got.text != "2024-02-29T10:00:00Z" {
		t.Errorf("the latest leap day is %q, %v", got.text, err)
	}
	if got, err := parseFuture("29 Feb 10:00", now); err != nil || got.Format(time.RFC3339) != "2028-02-29T10:00:00Z" {
		t.Errorf("the next leap day is %v, %v", got, err)
	}
}

// An instant with an offset is that instant, also in the repeated hour, whichever of the two is nearer.
func TestAnInstantWithItsOffsetIsNotMoved(t *testing.T) {
	t.Parallel()
	location, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, hour := range []int{0, 1, 2} {
		now := time.Date(2026, 10, 25, hour, 40, 0, 0, time.UTC).In(location)
		for _, text := range []string{"2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"} {
			want, _ := time.Parse(time.RFC3339, text)
			past, err := parsePast(text, now)
			if err != nil || !past.at.Equal(want) || past.text != text {
				t.Errorf("at %s: %s is read as past %s, written %s, %v", now, text, past.at, past.text, err)
			}
			if future, err := parseFuture(text, now); err != nil || !future.Equal(want) {
				t.Errorf("at %s: %s is read as future %s, %v", now, text, future, err)
			}
		}
	}
}

// What a page shows as a time can be typed as one.
func TestTimesAreReadAsPagesShowThem(t *testing.T) {
	t.Parallel()
	v := &visit{zone: time.FixedZone("", 19800), now: time.Date(2026, 11, 25, 14, 2, 30, 0, time.UTC)}
	for _, ago := range []time.Duration{time.Minute, 20 * time.Hour, 100 * 24 * time.Hour, 900 * 24 * time.Hour} {
		at := v.now.Add(-ago)
		got, err := parsePast(v.clock(at), v.now.In(v.zone))
		if err != nil || !got.at.Equal(at) {
			t.Errorf("%s is %v, %v; want %v", v.clock(at), got.at, err, at)
		}
		if length, ok := parseLength(age(ago)); !ok || length > ago {
			t.Errorf("%s is %v, %t", age(ago), length, ok)
		}
	}
}
