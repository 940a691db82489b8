package schedule

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// What is accepted has ticks, each after the one before, at whole minutes, and by
// the rules that the documentation of Cron states: a minute of UTC is a tick exactly
// if its fields say so. What is refused names its field.
func FuzzCron(f *testing.F) {
	for _, seed := range []struct {
		expression, zone string
		after            int64
	}{
		{"0 7 * * 1-5", "Europe/Berlin", 1774771200},
		{"30 2 * * *", "Europe/Berlin", 1774742399},
		{"*/30 2 * * *", "Australia/Lord_Howe", 1791036000},
		{"0,15,30,45 2,3 * * *", "Asia/Beirut", 1774731600},
		{"0 12 * * *", "Pacific/Apia", 1325116800},
		{"0 0 29 2 *", "UTC", 3981312000},
		{"*/7 */5 */9 */2 */3", "UTC", 0},
		{"5/20 0/6 1-7 * mon", "UTC", 1700000000},
		{"0 0 31 * 1", "UTC", 1700000000},
		{"0 0 30 2 *", "UTC", 0},
		{"0 0 31 2,4,6 *", "UTC", 0},
		{"0 0 L * *", "UTC", 1700000000},
		{"0 9 15W JAN-MAR FRI#2", "UTC", 1700000000},
		{"0 0 30W 2 *", "UTC", 1700000000},
		{"0 0 * FEB 5L", "America/New_York", -1},
		{"@daily", "utc", 1 << 33},
		{"@reboot", "Local", 0},
		{"", "", 0},
		{"60 24 0 13 8", "../etc/passwd", 0},
		{"1-0 ,, */0 1/-1 +1", "Europe/Berlin\x00", 0},
		{strings.Repeat("0,", 3000) + "0 0 1 1 *", "UTC", 0}, // took seconds
		{strings.Repeat("0,", 240) + "0 0 1 1 *", "UTC", 0},
	} {
		f.Add(seed.expression, seed.zone, seed.after)
	}
	f.Fuzz(func(t *testing.T, expression, zone string, after int64) {
		cron, err := newCron(expression, zone)
		if err != nil {
			refusedBy(t, err, "expression", "zone")
			return
		}
		again, err := newCron(strings.ToLower(cron.fields), zone)
		if err != nil {
			t.Fatalf("%q is accepted, and as %q not: %v", expression, cron.fields, err)
		}
		at := time.Unix(after%(1<<33), 0) // 1697 to 2242
		for range 3 {
			tick, err := cron.next(at)
			if err != nil {
				t.Fatalf("%s after %s: %v", cron, at.UTC(), err)
			}
			if same, err := again.next(at); err != nil || !same.Equal(tick) {
				t.Errorf("%s after %s: got %s, and as %q %s, %v", cron, at.UTC(), tick, cron.fields, same, err)
			}
			if !tick.After(at) || tick.Location() != time.UTC {
				t.Fatalf("%s after %s: got %s", cron, at.UTC(), tick)
			}
			if cron.location == time.UTC {
				wantTick(t, cron.fields, at, tick)
			}
			at = tick
		}
	})
}

// refusedBy fails the test unless every mistake that err tells is of one of the fields.
func refusedBy(t *testing.T, err error, fields ...string) {
	t.Helper()
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, inner := range joined.Unwrap() {
			refusedBy(t, inner, fields...)
		}
		return
	}
	found, ok := errors.AsType[*outbox.InvalidError](err)
	if !ok || found.Reason == "" || !slices.ContainsFunc(fields, func(f string) bool { return found.Field == f || strings.HasPrefix(found.Field, f+".") }) {
		t.Errorf("refused with %v, want the name of a field, one of %v", err, fields)
	}
}

// wantTick compares a tick with what the fields say of each minute, unless they have
// something special or the tick is far away.
func wantTick(t *testing.T, fields string, after, tick time.Time) {
	t.Helper()
	texts := strings.Fields(fields)
	if strings.ContainsAny(texts[dayOfMonthField]+texts[dayOfWeekField], "LW#") {
		return
	}
	minute := after.Truncate(time.Minute)
	for range 3 * 24 * 60 {
		minute = minute.Add(time.Minute)
		if saysTick(texts, minute.UTC()) {
			break
		}
		if tick.Equal(minute) {
			t.Errorf("%q ticks at %s, which it does not say", fields, tick)
		}
	}
	if tick.After(minute) && saysTick(texts, minute.UTC()) || tick.Second() != 0 || !saysTick(texts, tick) {
		t.Errorf("%q after %s: got %s, want %s", fields, after.UTC(), tick, minute.UTC())
	}
}

func saysTick(texts []string, at time.Time) bool {
	says := func(index, value int) bool { return saysValue(cronFields[index], texts[index], value) }
	byDate, byDay := says(dayOfMonthField, at.Day()), says(dayOfWeekField, int(at.Weekday())) || says(dayOfWeekField, int(at.Weekday())+7)
	days := byDate || byDay
	if strings.HasPrefix(texts[dayOfMonthField], "*") || strings.HasPrefix(texts[dayOfWeekField], "*") {
		days = byDate && byDay
	}
	return says(minuteField, at.Minute()) && says(hourField, at.Hour()) && says(3, int(at.Month())) && days
}

// saysValue reads a field anew, by another program than the one that is tested.
func saysValue(f field, text string, value int) bool {
	for i, name := range f.names {
		text = strings.ReplaceAll(text, name, strconv.Itoa(f.min+i))
	}
	for part := range strings.SplitSeq(text, ",") {
		values, stepText, stepped := strings.Cut(part, "/")
		step := 1
		if stepped {
			step, _ = strconv.Atoi(stepText)
		}
		first, last, isRange := strings.Cut(values, "-")
		low, _ := strconv.Atoi(first)
		high, _ := strconv.Atoi(last)
		switch {
		case values == "*":
			low, high = f.min, f.max
		case !isRange && stepped:
			high = f.max
		case !isRange:
			high = low
		}
		if value >= low && value <= high && (value-low)%step == 0 {
			return true
		}
	}
	return false
}
