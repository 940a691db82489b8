package schedule

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/adhocore/gronx"

	"github.com/posthaste-dev/posthaste/internal/invalid"
)

// field is one of the five fields of a cron expression.
type field struct {
	name     string // as it appears in InvalidError.Field
	min, max int
	names    []string // of the values, from min on
}

var cronFields = [...]field{
	{name: "expression.minute", max: 59},
	{name: "expression.hour", max: 23},
	{name: "expression.day-of-month", min: 1, max: 31},
	{
		name: "expression.month", min: 1, max: 12,
		names: strings.Fields("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"),
	},
	{name: "expression.day-of-week", max: 7, names: strings.Fields("SUN MON TUE WED THU FRI SAT")},
}

const (
	minuteField = iota
	hourField
	dayOfMonthField
	_
	dayOfWeekField
)

var shorthands = map[string]string{
	"@yearly":  "0 0 1 1 *",
	"@monthly": "0 0 1 * *",
	"@weekly":  "0 0 * * 0",
	"@daily":   "0 0 * * *",
	"@hourly":  "0 * * * *",
}

// maxExpressionBytes is more than listing every value of every field takes. The search for the next tick reads each
// part of an expression many times.
const maxExpressionBytes = 500

// parseFields returns the five fields of an expression in the form that gronx reads. It is stricter than gronx, which
// examines a part of an expression only when the time before it has come, and so may refuse tomorrow what it accepts
// today.
func parseFields(expression string) (string, error) {
	if full, ok := shorthands[expression]; ok {
		return full, nil
	}
	if len(expression) > maxExpressionBytes {
		return "", invalid.Field("expression", "is %d bytes long, want at most %d", len(expression), maxExpressionBytes)
	}
	texts := strings.Fields(strings.ToUpper(expression))
	if len(texts) != len(cronFields) {
		return "", invalid.Field("expression",
			"is %q, want five fields: minute, hour, day of month, month, day of week; or one of @hourly, @daily, @weekly, @monthly, @yearly", expression)
	}
	var errs []error
	for i, f := range cronFields {
		if err := f.check(texts[i], i); err != nil {
			errs = append(errs, err)
		}
	}
	return strings.Join(texts, " "), errors.Join(errs...)
}

// check returns what is wrong with a field.
func (f field) check(text string, index int) error {
	for part := range strings.SplitSeq(text, ",") {
		if special(part, index) {
			continue
		}
		values, step, stepped := strings.Cut(part, "/")
		if n, err := strconv.Atoi(step); stepped && (err != nil || n < 1 || n > f.max || step[0] == '+') {
			return invalid.Field(f.name, "is %q: the step %q is not a number from 1 to %d", text, step, f.max)
		}
		if values == "*" {
			if !stepped && text != "*" {
				return invalid.Field(f.name, "is %q: * and others exclude each other", text)
			}
			continue
		}
		first, last, isRange := strings.Cut(values, "-")
		low, err := f.value(first)
		high := low
		if err == nil && isRange {
			high, err = f.value(last)
		}
		if err != nil {
			return invalid.Field(f.name, "is %q: %v", text, err)
		}
		if low > high {
			return invalid.Field(f.name, "is %q: the range %s begins after its end", text, values)
		}
	}
	return nil
}

func (f field) value(text string) (int, error) {
	for i, name := range f.names {
		if text == name {
			return f.min + i, nil
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < f.min || n > f.max || text[0] < '0' || text[0] > '9' {
		return 0, fmt.Errorf("%q is not a number from %d to %d%s", text, f.min, f.max, f.orName())
	}
	return n, nil
}

func (f field) orName() string {
	if f.names == nil {
		return ""
	}
	return " nor one of " + strings.Join(f.names, " ")
}

// special reports whether part is one of the forms that days allow besides numbers: L, the last day of the month; 15W,
// the weekday nearest to the 15th; 5L, the last Friday; 5#2, the second one.
func special(part string, index int) bool {
	day := func(text string, f field) bool { _, err := f.value(text); return err == nil }
	if index == dayOfMonthField {
		number, isWeekday := strings.CutSuffix(part, "W")
		return part == "L" || isWeekday && day(number, cronFields[index])
	}
	if index != dayOfWeekField {
		return false
	}
	if name, isLast := strings.CutSuffix(part, "L"); isLast {
		return day(name, cronFields[index])
	}
	name, nth, isNth := strings.Cut(part, "#")
	return isNth && len(nth) == 1 && nth >= "1" && nth <= "5" && day(name, cronFields[index])
}

// isSteady reports whether an expression follows real time: it ticks in every hour of the day, or its minutes begin
// with *. An expression that ticks so often neither catches up when the clocks go forward nor pauses when they go back.
func isSteady(fields string) bool {
	texts := strings.Fields(fields)
	return strings.HasPrefix(texts[minuteField], "*") || everyHour(texts[hourField])
}

func everyHour(text string) bool {
	hours := gronx.SegmentChecker{}
	for hour := range 24 {
		hours.SetRef(time.Date(2000, 1, 1, hour, 0, 0, 0, time.UTC))
		if due, err := hours.CheckDue(text, hourField+1); err != nil || !due { // gronx puts seconds first
			return false
		}
	}
	return true
}
