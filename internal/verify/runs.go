package verify

import (
	"cmp"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// RunLine is the line of docs/proof.csv about a run. It remains when the run's record is gone, so that anybody can
// count the seeds with which a row has passed.
type RunLine struct {
	Started    time.Time
	Row        string
	Tier       Tier
	PostgreSQL string
	Seed       uint64
	Result     string // passed, failed or skipped
	Commit     string
	Texts      string // hash of the row's description: a run under another one proved something else
}

var runColumns = []string{"started", "row", "tier", "postgresql", "seed", "result", "commit", "texts"}

func lineOf(r *Record) RunLine {
	l := RunLine{
		Started: r.Started.UTC().Truncate(time.Second), Row: r.Row, Tier: r.Tier, Seed: r.Seed,
		Result: "failed", Commit: short(r.Commit), Texts: hashOf(r),
	}
	l.PostgreSQL, _, _ = strings.Cut(r.Server.Version, " ")
	switch {
	case r.Passed:
		l.Result = "passed"
	case r.Skipped != "":
		l.Result = "skipped"
	}
	return l
}

func hashOf(r *Record) string {
	sum := sha256.Sum256([]byte(r.texts()))
	return hex.EncodeToString(sum[:4])
}

// AddRuns returns lines, with lines added for the records that have none yet, in the order in which the runs began.
func AddRuns(lines []RunLine, records []*Record) []RunLine {
	type one struct {
		started    int64
		row        string
		tier       Tier
		postgreSQL string // runs of one seed on two versions may begin in one second
		seed       uint64
	}
	all := map[one]RunLine{}
	add := func(l RunLine) { all[one{l.Started.Unix(), l.Row, l.Tier, l.PostgreSQL, l.Seed}] = l }
	for _, l := range lines {
		add(l)
	}
	for _, r := range records {
		add(lineOf(r))
	}
	return slices.SortedFunc(maps.Values(all), func(a, b RunLine) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Row, b.Row), cmp.Compare(a.Tier, b.Tier),
			cmp.Compare(a.PostgreSQL, b.PostgreSQL), cmp.Compare(a.Seed, b.Seed))
	})
}

// ReadRuns reads what WriteRuns wrote.
func ReadRuns(in io.Reader) (lines []RunLine, err error) {
	rows, err := csv.NewReader(in).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 || !slices.Equal(rows[0], runColumns) {
		return nil, fmt.Errorf("the first line is not %s", strings.Join(runColumns, ","))
	}
	for i, f := range rows[1:] {
		l := RunLine{Row: f[1], Tier: Tier(f[2]), PostgreSQL: f[3], Result: f[5], Commit: f[6], Texts: f[7]}
		if l.Started, err = time.Parse(time.RFC3339, f[0]); err == nil {
			l.Seed, err = strconv.ParseUint(f[4], 10, 64)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+2, err)
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// WriteRuns writes a header with the names of the columns, and a line for each run.
func WriteRuns(w io.Writer, lines []RunLine) error {
	rows := [][]string{runColumns}
	for _, l := range lines {
		rows = append(rows, []string{
			l.Started.Format(time.RFC3339), l.Row, string(l.Tier), l.PostgreSQL,
			strconv.FormatUint(l.Seed, 10), l.Result, l.Commit, l.Texts,
		})
	}
	return csv.NewWriter(w).WriteAll(rows)
}

// inARow returns how often the row of a record has passed since it last failed, on each major version of the server,
// counting every seed once.
func inARow(lines []RunLine, like *Record) string {
	seeds := map[string]map[uint64]bool{} // by major version
	for _, l := range lines {
		if l.Row != like.Row || l.Tier != like.Tier || l.Result == "skipped" || l.Texts != hashOf(like) {
			continue
		}
		major, _, _ := strings.Cut(l.PostgreSQL, ".")
		if seeds[major] == nil || l.Result != "passed" {
			seeds[major] = map[uint64]bool{}
		}
		if l.Result == "passed" {
			seeds[major][l.Seed] = true
		}
	}
	var list []string
	for _, major := range slices.Sorted(maps.Keys(seeds)) {
		list = append(list, fmt.Sprintf("%d on %s", len(seeds[major]), major))
	}
	return strings.Join(list, ", ")
}
