package console

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// instantText is a time as it was written: a time ago, or an instant with its offset.
type instantText struct {
	text string
	at   time.Time
}

// absolute returns the instant in a form that means the same later; "" if it is not set.
func (i instantText) absolute() string {
	if i.at.IsZero() {
		return ""
	}
	return i.at.UTC().Format(time.RFC3339Nano)
}

// counts reports whether it is a time ago, which goes on counting.
func (i instantText) counts() bool {
	_, ok := parseLength(strings.TrimSuffix(i.text, " ago"))
	return ok
}

// timeForms describes the forms of a time, for people who wrote another one.
const timeForms = "a time of today like 14:02, a time like 2026-11-25 14:02, both in your time zone, " +
	"or an instant like 2027-01-31T09:00:00Z"

// parsePast parses the time of something that has happened: 2h (ago), 14:02 (the latest), or another of [layouts]. It
// keeps a length of time as it was written, because it goes on counting, and writes others with their offset.
func parsePast(text string, now time.Time) (instantText, error) {
	if length, ok := parseLength(strings.TrimSuffix(text, " ago")); ok {
		return instantText{text, now.Add(-length)}, nil
	}
	if at, ok := parseInstant(text, now, -1); ok {
		return instantText{at.Format(time.RFC3339Nano), at}, nil
	}
	return instantText{}, fmt.Errorf("%s is no time: write how long ago, like 30m, 2h or 7d, %s", quoted(text), timeForms)
}

// parseFuture parses when something is to happen: 2h or in 2h (from now), 14:02 (the next), or another of [layouts].
func parseFuture(text string, now time.Time) (time.Time, error) {
	if length, ok := parseLength(strings.TrimPrefix(text, "in ")); ok {
		return now.Add(length).Truncate(time.Second), nil
	}
	if at, ok := parseInstant(text, now, 1); ok {
		return at, nil
	}
	return time.Time{}, fmt.Errorf("%s is no time: write in how long, like 30m, 2h or 7d, %s", quoted(text), timeForms)
}

var (
	units = map[string]time.Duration{
		"s": time.Second, "m": time.Minute, "min": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
		"w": 7 * 24 * time.Hour,
	}
	lengthPart = regexp.MustCompile(`^ *([0-9]{1,6}) *(s|min|m|h|d|w)`)
)

// parseLength parses a length of time: 90s, 2h, or as pages show it, 2 h 5 min.
func parseLength(text string) (length time.Duration, ok bool) {
	const longest = 100 * 365 * 24 * time.Hour
	for text != "" {
		part := lengthPart.FindStringSubmatch(text)
		if part == nil {
			return 0, false
		}
		n, _ := strconv.Atoi(part[1]) // digits
		unit := units[part[2]]
		if n > 100_000 || time.Duration(n) > (longest-length)/unit {
			return 0, false
		}
		length, text, ok = length+time.Duration(n)*unit, text[len(part[0]):], true
	}
	return length, ok
}

// layouts are the forms of an instant: as programs write it, as people type it, and as pages show it. The first ones
// say everything, those with a day lack the year, and the last ones lack the day, too.
var layouts = []struct {
	layout      string
	years, days int // to the next such time
}{
	{time.RFC3339, 0, 0},
	{"2006-01-02T15:04:05", 0, 0},
	{"2006-01-02T15:04", 0, 0},
	{"2006-01-02 15:04:05", 0, 0},
	{"2006-01-02 15:04", 0, 0},
	{"2006-01-02", 0, 0},
	{"2 Jan 2006 15:04:05", 0, 0},
	{"2 Jan 2006 15:04", 0, 0},
	{"2 Jan 15:04:05", 1, 0},
	{"2 Jan 15:04", 1, 0},
	{"15:04:05", 0, 1},
	{"15:04", 0, 1},
}

// parseInstant parses an instant in one of [layouts]. What it lacks is that of now, or of the year or the day before or
// after, so that the instant is not on the other side of now: in the past for a negative direction.
func parseInstant(text string, now time.Time, direction int) (at time.Time, ok bool) {
	for _, l := range layouts {
		at, err := time.ParseInLocation(l.layout, text, now.Location())
		if err != nil || at.IsZero() { // as a bound it would mean none
			continue
		}
		if l.layout == time.RFC3339 { // with its offset, it is a single instant in the repeated hour, too
			return at, true
		}
		if l.years+l.days == 0 {
			if near, ok := nearest(at, now, direction); ok {
				at = near
			}
			return at, true
		}
		year, month, day := now.Date()
		if l.days == 0 {
			_, month, day = at.Date()
		}
		for n := range 9 { // a leap day may be eight years away
			n *= direction
			of := time.Date(year+n*l.years, month, day+n*l.days, at.Hour(), at.Minute(), at.Second(), at.Nanosecond(),
				at.Location())
			if near, ok := nearest(of, now, direction); ok && (l.days > 0 || of.Day() == day) {
				return near, true
			}
		}
	}
	return at, false
}

// nearest returns the instant that is nearest to now among those at which a clock shows the time of at: in the hour
// that is repeated at the end of summer time there are two. It returns false if none is on the wanted side of now.
func nearest(at, now time.Time, direction int) (near time.Time, ok bool) {
	for _, shift := range []time.Duration{-time.Hour, 0, time.Hour} {
		other := at.Add(shift)
		if other.Format(time.DateTime) != at.Format(time.DateTime) || other.Compare(now)*direction < 0 {
			continue
		}
		if !ok || other.Sub(now).Abs() < near.Sub(now).Abs() {
			near, ok = other, true
		}
	}
	return near, ok
}
