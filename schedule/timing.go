package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // zones are known wherever the program runs; the host's own rules come first, if it has some

	"github.com/adhocore/gronx"

	"github.com/posthaste-dev/posthaste/internal/invalid"
)

// timing says when a schedule ticks: by a cron expression in a zone, or every so
// long. It is a pure function of time: all processes with the same time zone rules
// agree on the ticks, and a restart, a pause or a declaration that comes and goes does not move them.
type timing struct {
	expression string // "" for an interval
	zone       string // an IANA name
	every      time.Duration

	fields   string // the five fields of the expression
	location *time.Location
	steady   bool // goes by real time; see nextCron
}

const minInterval = time.Second

// newInterval is a timing that ticks at the multiples of d since 1970-01-01 UTC.
func newInterval(d time.Duration) (timing, error) {
	switch {
	case d < minInterval || d > maxInterval:
		return timing{}, invalid.Field("interval", "is %s, want %s to 10 years", d, minInterval)
	case d%time.Millisecond != 0:
		return timing{}, invalid.Field("interval", "is %s, want whole milliseconds", d)
	}
	return timing{every: d}, nil
}

const maxInterval = 10 * 365 * 24 * time.Hour

// newCron reports every mistake in expression and zone.
func newCron(expression, zone string) (timing, error) {
	location, errZone := loadZone(zone)
	fields, err := parseFields(expression)
	if err = errors.Join(errZone, err); err != nil {
		return timing{}, err
	}
	t := timing{expression: expression, zone: zone, fields: fields, location: location, steady: isSteady(fields)}
	if _, err := t.nextWall(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)); err != nil {
		return timing{}, invalid.Field("expression", "is %q, which never comes", expression)
	}
	return t, nil
}

// loadZone refuses Local: it is another zone on another host.
func loadZone(zone string) (*time.Location, error) {
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "" || strings.EqualFold(zone, "Local") {
		return nil, invalid.Field("zone", `is %q, want the name of an IANA time zone like "Europe/Berlin" or "UTC"`, zone)
	}
	return location, nil
}

// next is the first tick after an instant.
func (t timing) next(after time.Time) (time.Time, error) {
	if t.every != 0 {
		return t.multiple(after).Add(t.every), nil
	}
	if t.steady {
		return t.nextSteady(after)
	}
	return t.nextNamed(after)
}

// latest is the last up to n ticks from one instant to another, both included, in
// order. It looks back from the end, further and further, so that its cost is that
// of n ticks however long the time is.
func (t timing) latest(from, to time.Time, n int) ([]time.Time, error) {
	var ticks []time.Time
	for back := time.Minute; ; back *= 2 {
		start := to.Add(-back)
		last := !start.After(from) || back > maxLookBack
		if last {
			start = from
		}
		ticks = ticks[:0]
		for tick := start.Add(-time.Nanosecond); ; {
			next, err := t.next(tick)
			if err != nil {
				return nil, err
			}
			if tick = next; tick.After(to) {
				break
			}
			if len(ticks) == n {
				ticks = append(ticks[:0], ticks[1:]...)
			}
			ticks = append(ticks, tick)
		}
		if last || len(ticks) == n {
			return ticks, nil
		}
	}
}

// stands returns the one tick at, which other rules of the zone have stored and ours do not have, or none. Where ours
// had it earlier, nobody has fired it; where they have it later, next is it. The nearer one of ours is taken for it.
func (t timing) stands(at, next time.Time) ([]time.Time, error) {
	before, err := t.latest(at.Add(-maxLookBack), at, 1)
	if err != nil || len(before) == 0 || next.Sub(at) < at.Sub(before[0]) {
		return nil, err
	}
	return []time.Time{at}, nil
}

const maxLookBack = 50 * 365 * 24 * time.Hour

// multiple is the last tick of an interval that is not after an instant. Years
// beyond those of int64 nanoseconds do not come up: Postgres gave us the instant.
func (t timing) multiple(at time.Time) time.Time {
	ns := at.UnixNano()
	behind := ns % int64(t.every)
	if behind < 0 {
		behind += int64(t.every)
	}
	return time.Unix(0, ns-behind).UTC()
}

// nextSteady is the first instant after another at which the clocks of the zone
// show a time of the expression. It goes from one change of the clocks to the
// next: in between, wall time is real time plus an offset.
func (t timing) nextSteady(after time.Time) (time.Time, error) {
	at := after.In(t.location)
	for from := wallOf(at); ; from = wallOf(at).Add(-time.Second) { // the change itself may be a tick
		wall, err := t.nextWall(from)
		if err != nil {
			return time.Time{}, err
		}
		_, end := at.ZoneBounds()
		if tick := sameOffset(at, wall); end.IsZero() || tick.Before(end) {
			return tick.UTC(), nil
		}
		at = end.In(t.location)
	}
}

// nextNamed is the first instant after another at which the clocks of the zone
// have reached a time of the expression that they had not reached before. Several
// times that the clocks leap over are reached together: one tick.
func (t timing) nextNamed(after time.Time) (time.Time, error) {
	for wall := wallOf(after.In(t.location)); ; {
		next, err := t.nextWall(wall)
		if err != nil {
			return time.Time{}, err
		}
		if tick := t.firstReached(next); tick.After(after) {
			return tick.UTC(), nil
		}
		wall = next // it was reached before the clocks went back
	}
}

// firstReached is the first instant at which the clocks of the zone show wall or
// later. No clock is ahead of UTC by more than a day and two hours.
func (t timing) firstReached(wall time.Time) time.Time {
	for at := wall.Add(-26 * time.Hour).In(t.location); ; {
		tick := sameOffset(at, wall)
		if tick.Before(at) {
			return at // the clocks leapt over it
		}
		_, end := at.ZoneBounds()
		if end.IsZero() || tick.Before(end) {
			return tick
		}
		at = end.In(t.location)
	}
}

// nextWall is the first time of the expression after another. Both are wall times
// written as if they were UTC, where no clock ever changes.
func (t timing) nextWall(after time.Time) (time.Time, error) {
	next, err := gronx.NextTickAfter(t.fields, after, false)
	if err != nil {
		return time.Time{}, fmt.Errorf("cron expression %q after %s: %w", t.expression, after.Format(time.DateTime), err)
	}
	return next, nil
}

// wallOf is what the clocks of at's zone show, as if it were UTC.
func wallOf(at time.Time) time.Time {
	_, offset := at.Zone()
	return at.UTC().Add(time.Duration(offset) * time.Second)
}

// sameOffset is the instant at which the clocks of at's zone would show wall if
// they were never changed.
func sameOffset(at, wall time.Time) time.Time { return at.Add(wall.Sub(wallOf(at))) }

func (t timing) equal(u timing) bool {
	return t.expression == u.expression && t.zone == u.zone && t.every == u.every
}

// String is for people: "0 7 * * 1-5 Europe/Berlin", "every 5m0s".
func (t timing) String() string {
	if t.every != 0 {
		return "every " + t.every.String()
	}
	return t.expression + " " + t.zone
}
