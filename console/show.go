package console

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// instant returns a time for <time datetime>.
func instant(t time.Time) string {
	return operator.Presentable(t).Format("2006-01-02T15:04:05.000Z07:00")
}

// clock returns a time in the viewer's zone, without the date if it is today.
func (v *visit) clock(t time.Time) string {
	t = operator.Presentable(t).In(v.zone)
	now := v.now.In(v.zone)
	switch {
	case t.YearDay() == now.YearDay() && t.Year() == now.Year():
		return t.Format("15:04:05")
	case t.Year() == now.Year():
		return t.Format("2 Jan 15:04:05")
	}
	return t.Format("2 Jan 2006 15:04:05")
}

// instantOf returns a time for prose; "" for no time.
func instantOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return instant(t)
}

// full returns a time in full.
func (v *visit) full(t time.Time) string {
	return operator.Presentable(t).In(v.zone).Format("Mon 2 Jan 2006 15:04:05.000 MST")
}

// zoneName returns the name of the viewer's zone in the header: UTC, or like Europe/Berlin (UTC+1).
func (v *visit) zoneName() string {
	name := v.zone.String()
	if name == "UTC" {
		return name
	}
	_, offset := v.now.In(v.zone).Zone()
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		name = strings.ReplaceAll(name[i+1:], "_", " ")
	}
	if sign := "+"; offset != 0 {
		if offset < 0 {
			sign, offset = "−", -offset
		}
		text := fmt.Sprintf("UTC%s%d", sign, offset/3600)
		if m := offset / 60 % 60; m != 0 {
			text += fmt.Sprintf(":%02d", m)
		}
		return name + " " + text
	}
	return name + " UTC"
}

// age returns how long ago something was, in at most two units. assets/app.js writes ages alike.
func age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return strconv.Itoa(int(d/time.Second)) + " s"
	case d < time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + " min"
	case d < 24*time.Hour:
		return two(int(d/time.Hour), "h", int(d/time.Minute%60), "min")
	case d < 100*24*time.Hour:
		return two(int(d/(24*time.Hour)), "d", int(d/time.Hour%24), "h")
	}
	return strconv.Itoa(int(d/(24*time.Hour))) + " d"
}

func two(a int, unit string, b int, smaller string) string {
	if b == 0 {
		return fmt.Sprintf("%d %s", a, unit)
	}
	return fmt.Sprintf("%d %s %d %s", a, unit, b, smaller)
}

// took returns how long something took.
func took(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Millisecond:
		return strconv.Itoa(int(d/time.Microsecond)) + " µs"
	case d < time.Second:
		return strconv.Itoa(int(d/time.Millisecond)) + " ms"
	case d < time.Minute:
		return strconv.FormatFloat(d.Truncate(100*time.Millisecond).Seconds(), 'f', 1, 64) + " s"
	case d < time.Hour:
		return two(int(d/time.Minute), "min", int(d/time.Second%60), "s")
	}
	return age(d)
}

// size returns a number of bytes.
func size(n int) string {
	switch {
	case n < 1000:
		return strconv.Itoa(n) + " B"
	case n < 1<<20:
		return strconv.FormatFloat(float64(n)/(1<<10), 'f', 1, 64) + " KiB"
	case n < 1<<30:
		return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB"
	}
	return strconv.FormatFloat(float64(n)/(1<<30), 'f', 1, 64) + " GiB"
}

// number returns n with thin spaces between thousands.
func number(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// shortID returns an id in a form that is easy to compare: it begins with the time of creation and ends with random
// digits.
func shortID(id outbox.ID) string {
	s := id.String()
	return s[:8] + "…" + s[len(s)-4:]
}

// madeAt returns when an id was made, by its producer's clock.
func madeAt(id outbox.ID) time.Time {
	ms := int64(id[0])<<40 | int64(id[1])<<32 | int64(id[2])<<24 | int64(id[3])<<16 | int64(id[4])<<8 | int64(id[5])
	return time.UnixMilli(ms)
}

// plural returns a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return number(int64(n)) + " " + noun + "s"
}
