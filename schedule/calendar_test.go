package schedule

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestDaysAgreeWithACalendar compares random expressions, with everything that
// days know, with somebody who reads a calendar from the first day of a few years
// to the last.
func TestDaysAgreeWithACalendar(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	compared, never := 0, 0
	const expressions = 40
	for range expressions {
		expression := "30 12 " + randomDays(random)
		timing, err := newCron(expression, "UTC")
		if err != nil {
			if never++; !strings.Contains(err.Error(), "never comes") {
				t.Errorf("%s: %v", expression, err)
			}
			continue
		}
		start := time.Date(1996+random.IntN(120), 1, 1, 0, 0, 0, 0, time.UTC)
		at, end := start, start.AddDate(5, 0, 0)
		for day := start; day.Before(end); day = day.AddDate(0, 0, 1) {
			if !onCalendar(expression, day) {
				continue
			}
			next, err := timing.next(at)
			if want := day.Add(12*time.Hour + 30*time.Minute); err != nil || !next.Equal(want) {
				t.Errorf("%s after %s: got %s, %v; want %s", expression, at, next, err, want)
				break
			}
			at = next
			compared++
		}
		if next, err := timing.next(at); err != nil || next.Before(end) {
			t.Errorf("%s after %s: got %s, %v; want none before %s", expression, at, next, err, end)
		}
	}
	if compared < 1000 || never > expressions/2 {
		t.Errorf("%d days compared, %d of %d expressions never come: that proves little", compared, never, expressions)
	}
}

func randomDays(random *rand.Rand) string {
	pick := func(list ...func() string) string { return list[random.IntN(len(list))]() }
	number := func(low, high int) func() string {
		return func() string { return strconv.Itoa(low + random.IntN(high-low+1)) }
	}
	span := func(low, high int) func() string {
		return func() string {
			first := low + random.IntN(high-low+1)
			return fmt.Sprintf("%d-%d", first, first+random.IntN(high-first+1))
		}
	}
	step := func(f func() string, most int) func() string {
		return func() string { return fmt.Sprintf("%s/%d", f(), 1+random.IntN(most)) }
	}
	fixed := func(text string) func() string { return func() string { return text } }
	list := func(f ...func() string) func() string {
		return func() string { return pick(f...) + "," + pick(f...) }
	}
	day := []func() string{
		number(1, 31), span(1, 31), step(span(1, 31), 10), step(number(1, 31), 10), step(fixed("*"), 20), fixed("L"),
		func() string { return number(1, 31)() + "W" },
	}
	weekday := []func() string{
		number(0, 7), span(0, 7), step(span(0, 7), 3), step(number(0, 6), 3), step(fixed("*"), 3), fixed("MON-FRI"),
		func() string { return number(0, 7)() + "L" }, func() string { return number(0, 7)() + "#" + number(1, 5)() },
	}
	return strings.Join([]string{
		pick(append(day, fixed("*"), fixed("*"), list(day...))...),
		pick(number(1, 12), span(1, 12), step(fixed("*"), 5), fixed("FEB"), fixed("*"), fixed("*")),
		pick(append(weekday, fixed("*"), fixed("*"), list(weekday...))...),
	}, " ")
}

// onCalendar reads the day fields of an expression itself.
func onCalendar(expression string, day time.Time) bool {
	texts := strings.Fields(strings.NewReplacer("MON-FRI", "1-5", "FEB", "2").Replace(expression))
	last := time.Date(day.Year(), day.Month()+1, 0, 0, 0, 0, 0, time.UTC)
	inMonth := inField(texts[2], 1, 31, day.Day(), func(part string) bool {
		if part == "L" {
			return day.Day() == last.Day()
		}
		n, _ := strconv.Atoi(strings.TrimSuffix(part, "W"))
		if n > last.Day() {
			return false
		}
		nearest := day.AddDate(0, 0, n-day.Day())
		switch weekday := nearest.Weekday(); {
		case weekday == time.Saturday && n == 1:
			nearest = nearest.AddDate(0, 0, 2)
		case weekday == time.Saturday:
			nearest = nearest.AddDate(0, 0, -1)
		case weekday == time.Sunday && n == last.Day():
			nearest = nearest.AddDate(0, 0, -2)
		case weekday == time.Sunday:
			nearest = nearest.AddDate(0, 0, 1)
		}
		return nearest.Equal(day)
	})
	weekday := int(day.Weekday())
	inWeek := inField(texts[4], 0, 6, weekday, func(part string) bool {
		name, nth, isNth := strings.Cut(part, "#")
		n, _ := strconv.Atoi(strings.TrimSuffix(name, "L"))
		if n%7 != weekday {
			return false
		}
		if isNth {
			return strconv.Itoa((day.Day()+6)/7) == nth
		}
		return day.Day()+7 > last.Day()
	})
	if weekday == 0 { // which is 7, too
		inWeek = inWeek || inField(texts[4], 0, 6, 7, func(string) bool { return false })
	}
	allowed := inMonth || inWeek
	if strings.HasPrefix(texts[2], "*") || strings.HasPrefix(texts[4], "*") {
		allowed = inMonth && inWeek
	}
	return allowed && inField(texts[3], 1, 12, int(day.Month()), nil)
}

func inField(text string, low, high, value int, special func(string) bool) bool {
	for part := range strings.SplitSeq(text, ",") {
		if strings.ContainsAny(part, "LW#") {
			if special(part) {
				return true
			}
			continue
		}
		values, stepText, stepped := strings.Cut(part, "/")
		first, last, step := low, high, 1
		if stepped {
			step, _ = strconv.Atoi(stepText)
		}
		if values != "*" {
			from, to, isRange := strings.Cut(values, "-")
			first, _ = strconv.Atoi(from)
			switch {
			case isRange:
				last, _ = strconv.Atoi(to)
			case !stepped:
				last = first
			}
		}
		if value >= first && value <= last && (value-first)%step == 0 {
			return true
		}
	}
	return false
}
