package console

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
)

// chartRange is the time span of a chart, and its steps.
type chartRange struct {
	name    string
	of      time.Duration
	step    time.Duration
	inWords string
}

var chartRanges = []chartRange{
	{"1h", time.Hour, time.Minute, "hour"},
	{"6h", 6 * time.Hour, 5 * time.Minute, "6 hours"},
	{"24h", 24 * time.Hour, 10 * time.Minute, "24 hours"},
	{"14d", 14 * 24 * time.Hour, 2 * time.Hour, "14 days"},
}

// notYet is how long after its end a minute may still be uncounted.
const notYet = 3 * time.Minute

// charted is a history, for charts and for the table that they are drawn from.
type charted struct {
	span   chartRange
	points []operator.Point
	marks  []operator.Mark
}

// measured reports whether anything is known.
func (c charted) measured() bool {
	return slices.ContainsFunc(c.points, func(p operator.Point) bool { return p.Measured > 0 })
}

// plots lists the charts, each with the columns of the table that it shows.
var plots = []struct {
	title   string
	columns []string
}{
	{"Open jobs", []string{"waiting", "running"}},
	{"Jobs a second", []string{"enqueued", "closed"}},
	{"Wait until start", []string{"p99", "median"}},
	{"Failures", []string{"failed", "dead"}},
}

// column is a column of the table: its cell is empty where nothing is known, and its value is the chart's.
type column struct {
	name, title string
	value       func(operator.Point) float64
	cell        func(operator.Point) string
}

var columns = []column{
	counted("waiting", "Waiting", func(p operator.Point) int64 { return p.Waiting }),
	counted("running", "Running", func(p operator.Point) int64 { return p.Running }),
	rated("enqueued", "Enqueued", func(p operator.Point) int64 { return p.Enqueued }),
	rated("closed", "Closed", operator.Point.Closed),
	waited("median", "Half waited", func(p operator.Point) time.Duration { return p.WaitP50 }),
	waited("p99", "99 of 100 waited", func(p operator.Point) time.Duration { return p.WaitP99 }),
	perMinute("failed", "Failed attempts", func(p operator.Point) int64 { return p.Failed }),
	counted("dead", "Dead letters", func(p operator.Point) int64 { return p.DeadLetters }),
}

func counted(name, title string, of func(operator.Point) int64) column {
	return column{
		name, title,
		func(p operator.Point) float64 { return float64(of(p)) },
		func(p operator.Point) string { return number(of(p)) },
	}
}

func rated(name, title string, of func(operator.Point) int64) column {
	rate := func(p operator.Point) float64 { return float64(of(p)) / p.Measured.Seconds() }
	return column{name, title, rate, func(p operator.Point) string { return rateText(rate(p)) + "/s" }}
}

func perMinute(name, title string, of func(operator.Point) int64) column {
	rate := func(p operator.Point) float64 { return float64(of(p)) / p.Measured.Minutes() }
	return column{name, title, rate, func(p operator.Point) string { return rateText(rate(p)) + "/min" }}
}

// waited returns a column of how long jobs waited: unknown where none closed.
func waited(name, title string, of func(operator.Point) time.Duration) column {
	return column{
		name, title,
		func(p operator.Point) float64 { return of(p).Seconds() },
		func(p operator.Point) string {
			if p.Closed() == 0 {
				return ""
			}
			return took(of(p))
		},
	}
}

// rateText returns a rate with its significant digits.
func rateText(r float64) string {
	switch {
	case r == 0:
		return "0"
	case r < 0.095:
		return strconv.FormatFloat(r, 'f', 2, 64)
	case r < 99.5:
		return strconv.FormatFloat(r, 'f', 1, 64)
	}
	return number(int64(r + 0.5))
}

// at returns the text of a column at a point, and its value for the chart; both are "" if unknown.
func (c column) at(p operator.Point) (text, value string) {
	if p.Measured == 0 {
		return "", ""
	}
	if text = c.cell(p); text == "" {
		return "", ""
	}
	return text, strconv.FormatFloat(c.value(p), 'g', 6, 64)
}

func columnNamed(name string) column {
	return columns[slices.IndexFunc(columns, func(c column) bool { return c.name == name })]
}

// latest returns the text of a column at the last point at which it is known.
func (c charted) latest(of column) string {
	for _, p := range slices.Backward(c.points) {
		if text, _ := of.at(p); text != "" {
			return text
		}
	}
	return "–"
}

// chart returns the history of a queue or a kind, or of everything, in the time that the URL gives.
func (v *visit) chart(queue, kind string) (c charted, err error) {
	i := 0
	if name := v.param("range"); name != "" {
		if i = slices.IndexFunc(chartRanges, func(s chartRange) bool { return s.name == name }); i < 0 {
			return c, unreadable("range", "is none of 1h, 6h, 24h and 14d")
		}
	}
	c.span = chartRanges[i]
	f := operator.SeriesFilter{
		Queue: queue, Kind: kind, Tenant: v.tenant(), Step: c.span.step, Until: v.now,
		Since: v.now.Add(-c.span.of).Truncate(c.span.step),
	}
	if c.points, err = v.operator.Series(v.ctx(), f); err != nil {
		return c, err
	}
	for n := len(c.points); n > 0 && c.points[n-1].Measured == 0 && v.now.Sub(c.points[n-1].At) < notYet; n-- {
		c.points = c.points[:n-1]
	}
	if v.who.AllTenants {
		c.marks, err = v.site.watch.Marks.Look(v.ctx(), f)
	} else {
		c.marks, err = v.operator.Marks(v.ctx(), f)
	}
	if kind != "" { // acts are on queues, schedules and tokens, which may have nothing to do with the kind
		of := func(m operator.Mark) bool { return m.Act != nil }
		c.marks = slices.DeleteFunc(slices.Clone(c.marks), of)
	}
	return c, err
}

// shownMarks is how many marks, the newest, are listed.
const shownMarks = 20

// newest returns the listed marks, the newest first.
func (c charted) newest() (marks []operator.Mark) {
	for _, m := range slices.Backward(c.marks) {
		if len(marks) == shownMarks {
			break
		}
		marks = append(marks, m)
	}
	return marks
}

// markClass returns whether a mark is of a deploy or of an act.
func markClass(m operator.Mark) string {
	if m.Act == nil {
		return "is-deploy"
	}
	return "is-act"
}

// markText describes a mark.
func markText(m operator.Mark) string {
	if m.Act == nil {
		return "build " + m.Build
	}
	a := m.Act
	text := a.Actor + ": " + a.Act
	if a.Number > 1 {
		text += fmt.Sprintf(" ×%d", a.Number)
	}
	if of := strings.TrimSpace(a.Queue + " " + a.Target); of != "" {
		text += " " + firstOf(of, 60)
	}
	if a.Reason != "" {
		text += " (" + firstOf(a.Reason, 80) + ")"
	}
	return text
}

// Sparklines show how many jobs were open in the last hour, in steps of two minutes.
const (
	sparkOf   = time.Hour
	sparkStep = 2 * time.Minute
	sparkHigh = 16 // units
	sparkWide = 60
)

// spark is a line in a list.
type spark struct {
	path string // in a box of sparkWide by sparkHigh
	most int64
}

// sparks returns the lines of queues, or of kinds, by name.
func (v *visit) sparks(byKind bool) (map[string]spark, error) {
	drawn, err := v.site.watch.Lines.Look(v.ctx(), v.tenant(), byKind, sparkOf, sparkStep)
	if err != nil {
		return nil, err
	}
	lines := map[string]spark{}
	for name, open := range drawn.Open {
		lines[name] = sparkOver(open, drawn.Measured, drawn.Since, drawn.Until)
	}
	return lines, nil
}

// sparkOver draws a line that includes the steps in which nothing was open, with a gap where nothing was measured.
func sparkOver(open []operator.Spark, measured []time.Time, since, now time.Time) (s spark) {
	for _, o := range open {
		s.most = max(s.most, o.Open)
	}
	var path strings.Builder
	i, pen := 0, "M"
	for at := since; at.Before(now.Add(-notYet)); at = at.Add(sparkStep) {
		if !slices.ContainsFunc(measured, at.Equal) {
			pen = "M"
			continue
		}
		var n int64
		if i < len(open) && !open[i].At.After(at) {
			n, i = open[i].Open, i+1
		}
		x := at.Sub(since).Seconds() / sparkOf.Seconds() * sparkWide
		y := sparkHigh - 1 - float64(n)/float64(max(s.most, 1))*(sparkHigh-2)
		fmt.Fprintf(&path, "%s%.1f %.1f", pen, x, y)
		pen = "L"
	}
	s.path = path.String()
	return s
}
