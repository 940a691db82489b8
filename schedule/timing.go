package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // makes zones available everywhere; the host's own rules, if it has them, take precedence

	"github.com/adhocore/gronx"

	"github.com/posthaste-dev/posthaste/internal/invalid"
)

// A timing determines when a schedule ticks: by a cron expression in a zone, or at a fixed interval. It is a pure
// function of time: all processes with the same time zone rules agree on the ticks, and a restart, a pause or a
// declaration that is removed and restored does not move them.
type timing struct {
	expression string // "" for an interval
	zone       string // an IANA name
	every      time.Duration

	fields   string // the five fields of the expression
	location *time.Location
	steady   bool // follows real time; see nextSteady
}

const minInterval = time.Second

// newInterval returns a timing that ticks at the multiples of d since 1970-01-01 UTC.
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

// newCron returns the timing of a cron expression. Its error names every mistake in expression and zone.
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

// loadZone loads a zone. It refuses Local, which is another zone on another host.
func loadZone(zone string) (*time.Location, error) {
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "" || strings.EqualFold(zone, "Local") {
		return nil, invalid.Field("zone", `is %q, want the name of an IANA time zone like "Europe/Berlin" or "UTC"`,
			zone)
	}
	return location, nil
}

// next returns the first tick after an instant.
func (t timing) next(after time.Time) (time.Time, error) {
	if t.every != 0 {
		return t.multiple(after).Add(t.every), nil
	}
	if t.steady {
		return t.nextSteady(after)
	}
	return t.nextNamed(after)
}

// latest returns the last up to n ticks between two instants, both included, in order. It searches backwards from the
// end in growing steps, so its cost depends on n and not on the length of the time between.
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

// stands returns at itself as the only tick, or none. It decides on a stored tick that other rules of the zone produced
// and ours do not have. If our rules had it earlier, no process has fired it; if they have it later, next is it. The
// nearer of our ticks counts as its counterpart.
func (t timing) stands(at, next time.Time) ([]time.Time, error) {
	before, err := t.latest(at.Add(-maxLookBack), at, 1)
	if err != nil || len(before) == 0 || next.Sub(at) < at.Sub(before[0]) {
		return nil, err
	}
	return []time.Time{at}, nil
}

const maxLookBack = 50 * 365 * 24 * time.Hour

// multiple returns the last tick of an interval that is not after an instant. Years beyond the range of int64
// nanoseconds do not occur, because the instant comes from Postgres.
func (t timing) multiple(at time.Time) time.Time {
	ns := at.UnixNano()
	behind := ns % int64(t.every)
	if behind < 0 {
		behind += int64(t.every)
	}
	return time.Unix(0, ns-behind).UTC()
}

// nextSteady returns the first instant after another at which the clocks of the zone show a time of the expression. It
// advances from one change of the clocks to the next: in between, wall time is real time plus an offset.
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

// nextNamed returns the first instant after another at which the clocks of the zone have reached a time of the
// expression that they had not reached before. If the clocks leap over several times at once, these share one tick.
func (t timing) nextNamed(after time.Time) (time.Time, error) {
	for wall := wallOf(after.In(t.location)); ; {
		next, err := t.nextWall(wall)
		if err != nil {
			return time.Time{}, err
		}
		if tick := t.firstReached(next); tick.After(after) {
			return tick.UTC(), nil
		}
		wall = next // it was already reached before the clocks went back
	}
}

// firstReached returns the first instant at which the clocks of the zone show wall or later. No clock is ahead of UTC
// by more than a day and two hours.
func (t timing) firstReached(wall time.Time) time.Time {
	for at := wall.Add(-26 * time.Hour).In(t.location); ; {
		tick := sameOffset(at, wall)
		if tick.Before(at) {
			return at // the clocks leapt over wall
		}
		_, end := at.ZoneBounds()
		if end.IsZero() || tick.Before(end) {
			return tick
		}
		at = end.In(t.location)
	}
}

// nextWall returns the first time of the expression after another. Both are wall times expressed in UTC, where clocks
// never change.
func (t timing) nextWall(after time.Time) (time.Time, error) {
	next, err := gronx.NextTickAfter(t.fields, after, false)
	if err != nil {
		return time.Time{}, fmt.Errorf("cron expression %q after %s: %w", t.expression, after.Format(time.DateTime),
			err)
	}
	return next, nil
}

// wallOf returns the wall time in at's zone, expressed in UTC.
func wallOf(at time.Time) time.Time {
	_, offset := at.Zone()
	return at.UTC().Add(time.Duration(offset) * time.Second)
}

// sameOffset returns the instant at which the clocks of at's zone would show wall if they were never changed.
func sameOffset(at, wall time.Time) time.Time { return at.Add(wall.Sub(wallOf(at))) }

func (t timing) equal(u timing) bool {
	return t.expression == u.expression && t.zone == u.zone && t.every == u.every
}

// String returns the timing in readable form: "0 7 * * 1-5 Europe/Berlin", "every 5m0s".
func (t timing) String() string {
	if t.every != 0 {
		return "every " + t.every.String()
	}
	return t.expression + " " + t.zone
}
