package schedule

import (
	"archive/zip"
	"fmt"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func cron(t testing.TB, expression, zone string) timing {
	t.Helper()
	timing, err := newCron(expression, zone)
	if err != nil {
		t.Fatal(err)
	}
	return timing
}

func TestTicksAroundChangesOfTheClocks(t *testing.T) {
	t.Parallel()
	// Berlin 2026: at 02:00 on 29 March it is 03:00, at 03:00 on 25 October 02:00.
	tests := map[string]struct {
		expression, zone, from string
		want                   []string
	}{
		"an ordinary day": {"0 7 * * 1-5", "Europe/Berlin", "2026-03-27T06:00:00+01:00", []string{"2026-03-27T07:00:00+01:00", "2026-03-30T07:00:00+02:00"}},
		"a time that is leapt over comes when the clocks leap": {
			"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00+01:00",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"},
		},
		"several times that are leapt over are one tick": {
			"0,15,30,45 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00:00+01:00",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-29T03:15:00+02:00"},
		},
		"a time that comes twice ticks when it comes first": {
			"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00+02:00",
			[]string{"2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"},
		},
		"every other hour does not come twice either": {
			"0 */2 * * *", "Europe/Berlin", "2026-10-25T00:30:00+02:00",
			[]string{"2026-10-25T02:00:00+02:00", "2026-10-25T04:00:00+01:00"},
		},
		"every hour goes on when the clocks go back": {
			"0 * * * *", "Europe/Berlin", "2026-10-25T01:30:00+02:00",
			[]string{"2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"},
		},
		"every hour goes on when the clocks go forward": {
			"30 * * * *", "Europe/Berlin", "2026-03-29T00:45:00+01:00",
			[]string{"2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00"},
		},
		"every half hour of one hour goes by real time": {
			"*/30 2 * * *", "Europe/Berlin", "2026-10-25T01:30:00+02:00",
			[]string{"2026-10-25T02:00:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T02:30:00+01:00", "2026-10-26T02:00:00+01:00"},
		},
		"midnight that does not exist": { // Beirut begins its summer at midnight
			"0 0 * * *", "Asia/Beirut", "2026-03-28T12:00:00+02:00",
			[]string{"2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00"},
		},
		"half an hour on Lord Howe": {
			"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00+10:30",
			[]string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"},
		},
		"a day that Samoa left out": {
			"0 12 * * *", "Pacific/Apia", "2011-12-29T11:00:00-10:00",
			[]string{"2011-12-29T12:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"},
		},
		"29 February across a century": {
			"0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timing := cron(t, tt.expression, tt.zone)
			at := instant(t, tt.from)
			for _, text := range tt.want {
				next, err := timing.next(at)
				if want := instant(t, text); err != nil || !next.Equal(want) {
					t.Fatalf("after %s: got %s, %v; want %s", at.In(want.Location()), next.In(want.Location()), err, want)
				}
				at = next
			}
		})
	}
}

func TestIntervalsTickAtTheirMultiples(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		every       time.Duration
		after, want string
	}{
		{5 * time.Minute, "2026-01-01T00:04:59.999Z", "2026-01-01T00:05:00Z"},
		{5 * time.Minute, "2026-01-01T00:05:00Z", "2026-01-01T00:10:00Z"},
		{1500 * time.Millisecond, "1970-01-01T00:00:00Z", "1970-01-01T00:00:01.5Z"},
		{24 * time.Hour, "1969-12-31T12:00:00Z", "1970-01-01T00:00:00Z"},
	} {
		timing, err := newInterval(tt.every)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := timing.next(instant(t, tt.after)); !got.Equal(instant(t, tt.want)) {
			t.Errorf("every %s after %s: got %s, want %s", tt.every, tt.after, got, tt.want)
		}
	}
}

// The tick after an instant is the first multiple of the interval that is after it.
func FuzzInterval(f *testing.F) {
	for _, seed := range [][2]int64{{1, 0}, {1e9, 0}, {15e8, -1}, {int64(maxInterval), 1}, {-1e9, 1e18}, {1e9 + 1, 0}, {3600e9, -4e18}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, every, after int64) {
		interval, err := newInterval(time.Duration(every))
		if err != nil {
			refusedBy(t, err, "interval")
			return
		}
		at := time.Unix(0, after%(4<<60))
		tick, err := interval.next(at)
		if wait := tick.Sub(at); err != nil || wait <= 0 || wait > interval.every || tick.UnixNano()%every != 0 {
			t.Errorf("every %s after %s: got %s, %v", interval.every, at, tick, err)
		}
	})
}

func TestLatestTicks(t *testing.T) {
	t.Parallel()
	from, to := instant(t, "2020-01-01T00:00:00Z"), instant(t, "2026-06-01T12:00:00Z")
	daily, minutely := cron(t, "0 12 * * *", "UTC"), cron(t, "* * * * *", "UTC")
	tests := map[string]struct {
		timing   timing
		from, to time.Time
		n        int
		want     []string
	}{
		"the end is included":    {daily, from, to, 1, []string{"2026-06-01T12:00:00Z"}},
		"the latest, in order":   {daily, from, to.Add(-time.Second), 2, []string{"2026-05-30T12:00:00Z", "2026-05-31T12:00:00Z"}},
		"the start is included":  {daily, to, to, 5, []string{"2026-06-01T12:00:00Z"}},
		"none":                   {daily, to.Add(time.Second), to.Add(time.Hour), 5, nil},
		"six years of minutes":   {minutely, from, to, 2, []string{"2026-06-01T11:59:00Z", "2026-06-01T12:00:00Z"}},
		"fewer than are allowed": {daily, to.Add(-25 * time.Hour), to, 100, []string{"2026-05-31T12:00:00Z", "2026-06-01T12:00:00Z"}},
	}
	for name, tt := range tests {
		got, err := tt.timing.latest(tt.from, tt.to, tt.n)
		var want []time.Time
		for _, text := range tt.want {
			want = append(want, instant(t, text))
		}
		if err != nil || !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Errorf("%s: got %s, %v; want %s", name, got, err, want)
		}
	}
}

func instant(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// allZones has the property test look at every change of the clocks of every zone
// from 1990 to 2037 instead of a sample.
const allZones = "POSTHASTE_SCHEDULE_ZONES"

// TestTicksAgreeWithAClockThatIsWatched compares with somebody who looks at the
// clocks of a zone every minute: around changes of the clocks, with expressions
// whose times are near to the change.
func TestTicksAgreeWithAClockThatIsWatched(t *testing.T) {
	t.Parallel()
	changesOfAZone, oneZoneIn := 1, 6
	if os.Getenv(allZones) != "" {
		changesOfAZone, oneZoneIn = 1000, 1
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var checked, ticks atomic.Int64
	var zones sync.WaitGroup
	turns := make(chan struct{}, 4)
	for i, zone := range zoneNames(t) {
		if (uint64(i)+seed)%uint64(oneZoneIn) != 0 {
			continue
		}
		turns <- struct{}{}
		zones.Go(func() {
			defer func() { <-turns }()
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			location, err := time.LoadLocation(zone)
			if err != nil {
				t.Error(err)
				return
			}
			changes := changesOf(location)
			random.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
			for _, change := range changes[:min(len(changes), changesOfAZone)] {
				clocks := watch(location, change)
				for _, expression := range expressionsNear(random, change.In(location)) {
					n, mismatch := compare(expression, zone, clocks)
					if mismatch != "" {
						t.Errorf("%s %s: %s", expression, zone, mismatch)
					}
					checked.Add(1)
					ticks.Add(int64(n))
				}
			}
		})
	}
	zones.Wait()
	t.Logf("%d schedules, %d ticks", checked.Load(), ticks.Load())
	if checked.Load() < 500 || ticks.Load() < 5000 {
		t.Error("that is too little to have proved anything")
	}
}

// compare counts ticks around a change of the clocks, both ways.
func compare(expression, zone string, w watched) (n int, mismatch string) {
	timing, err := newCron(expression, zone)
	if err != nil {
		return 0, err.Error()
	}
	want := w.ticks(expression)
	for at := w.from.Add(-time.Second); ; n++ {
		next, err := timing.next(at)
		if err != nil {
			return n, err.Error()
		}
		if next.After(w.to) {
			break
		}
		if n >= len(want) || !next.Equal(want[n]) {
			return n, fmt.Sprintf("tick %d after %s is at %s, want one of %s", n, w.from.In(timing.location), next.In(timing.location), want)
		}
		at = next
	}
	if n != len(want) {
		return n, fmt.Sprintf("%d ticks after %s, want %s", n, w.from, want)
	}
	return n, ""
}

// watched is the slow oracle: somebody who looked at the clocks of a zone every
// minute, and knows no more of the calendar than what they showed.
type watched struct {
	from, to time.Time
	walls    []int64 // what they showed in the minutes until to, in minutes
}

// before is how long the clocks were watched before from, to know what they have
// shown already: the longest that they were ever put back, and an hour.
const before = 27 * time.Hour

// watch looks from some hours before a change of the clocks to a day after it.
func watch(location *time.Location, change time.Time) watched {
	w := watched{from: change.Add(-6 * time.Hour), to: change.Add(30 * time.Hour)}
	for at := w.from.Add(-before); !at.After(w.to); at = at.Add(time.Minute) {
		_, offset := at.In(location).Zone()
		w.walls = append(w.walls, (at.Unix()+int64(offset))/60)
	}
	return w
}

func (w watched) ticks(expression string) (ticks []time.Time) {
	e := readExpression(expression)
	steady := strings.HasPrefix(e.text[0], "*") || len(e.allowed[1]) == 24
	furthest := w.walls[0] - 1 // what the clocks have reached so far
	for i, wall := range w.walls {
		ticked := steady && e.allows(wall)
		for reached := furthest + 1; reached <= wall && !steady; reached++ {
			ticked = ticked || e.allows(reached)
		}
		furthest = max(furthest, wall)
		if at := w.from.Add(time.Duration(i)*time.Minute - before); ticked && !at.Before(w.from) {
			ticks = append(ticks, at)
		}
	}
	return ticks
}

// oracle is an expression as the sets that it allows.
type oracle struct {
	text    []string
	allowed [5]map[int]bool
}

func readExpression(expression string) oracle {
	o := oracle{text: strings.Fields(expression)}
	least, most := [5]int{0, 0, 1, 1, 0}, [5]int{59, 23, 31, 12, 6}
	for i, text := range o.text {
		o.allowed[i] = map[int]bool{}
		for _, part := range strings.Split(text, ",") {
			values, stepText, stepped := strings.Cut(part, "/")
			step, low, high := 1, least[i], most[i]
			if stepped {
				step, _ = strconv.Atoi(stepText)
			}
			if values != "*" {
				first, last, isRange := strings.Cut(values, "-")
				low, _ = strconv.Atoi(first)
				switch {
				case isRange:
					high, _ = strconv.Atoi(last)
				case !stepped:
					high = low
				}
			}
			for v := low; v <= high; v += step {
				if i == 4 {
					o.allowed[i][v%7] = true
				} else {
					o.allowed[i][v] = true
				}
			}
		}
	}
	return o
}

func (o oracle) allows(minutes int64) bool {
	if !o.allowed[0][int(minutes%60)] || !o.allowed[1][int(minutes/60%24)] {
		return false
	}
	wall := time.Unix(minutes*60, 0).UTC()
	day, weekday := o.allowed[2][wall.Day()], o.allowed[4][int(wall.Weekday())]
	both := strings.HasPrefix(o.text[2], "*") || strings.HasPrefix(o.text[4], "*")
	dayAllowed := day || weekday
	if both {
		dayAllowed = day && weekday
	}
	return o.allowed[3][int(wall.Month())] && dayAllowed
}

// expressionsNear has times that a change of the clocks is likely to concern.
func expressionsNear(random *rand.Rand, change time.Time) (expressions []string) {
	near := change.Add(time.Duration(random.IntN(300)-150) * time.Minute)
	_, before := change.Add(-time.Second).Zone()
	// As a wall time.
	skipped := change.UTC().Add(time.Duration(before)*time.Second + time.Duration(random.IntN(60))*time.Minute)
	for _, at := range []time.Time{near, skipped} {
		m, h, day, month, weekday := at.Minute(), at.Hour(), at.Day(), int(at.Month()), int(at.Weekday())
		expressions = append(expressions,
			fmt.Sprintf("%d %d * * *", m, h),
			fmt.Sprintf("%d %d %d %d *", m, h, day, month),
			fmt.Sprintf("%d,%d %d-%d * * *", m, (m+30)%60, h/2, h),
			fmt.Sprintf("%d %d * * %d", m, h, weekday),
		)
	}
	return append(expressions,
		fmt.Sprintf("*/%d %d * * *", 1+random.IntN(30), near.Hour()),
		fmt.Sprintf("%d * * * *", random.IntN(60)),
		fmt.Sprintf("%d-59/%d */%d * * *", random.IntN(30), 1+random.IntN(20), 1+random.IntN(5)),
		fmt.Sprintf("%d %d,%d %d * %d", near.Minute(), near.Hour(), (near.Hour()+1)%24, near.Day(), random.IntN(8)),
	)
}

// changesOf returns the instants from 1990 to 2037 at which the offset of a zone changes.
func changesOf(location *time.Location) (changes []time.Time) {
	at := time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC)
	for {
		local := at.In(location)
		_, end := local.ZoneBounds()
		if end.IsZero() || end.Year() > 2037 {
			return changes
		}
		_, before := local.Zone()
		if _, after := end.In(location).Zone(); before != after {
			changes = append(changes, end)
		}
		at = end
	}
}

// zoneNames returns every zone of the database that comes with Go.
func zoneNames(t *testing.T) (names []string) {
	t.Helper()
	root, err := osexec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	archive, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	for _, file := range archive.File {
		if !strings.HasSuffix(file.Name, "/") {
			names = append(names, file.Name)
		}
	}
	if len(names) < 400 {
		t.Fatalf("got %d zones, want more: this test looks at the wrong place", len(names))
	}
	return names
}
