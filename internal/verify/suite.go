package verify

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
)

// suites are the combinations of server and connection with which a soak runs every row of tier P.
var suites = []struct {
	major  string
	pooler bool
}{{"15", false}, {"15", true}, {"18", false}, {"18", true}}

// everyRow runs every other row of tier P, one after the other, on the oldest and the newest Postgres, with and without
// the pooler. Each row starts its own server, and its record goes to a folder of the combination.
func (r *Run) everyRow(ctx context.Context) error {
	for _, suite := range suites {
		o := r.Options
		o.Tier, o.Major, o.Pooler, o.Progress = TierP, suite.major, suite.pooler, nil
		where, folder := "PostgreSQL "+o.Major, fmt.Sprintf("%s-%d-pg%s", r.Row.Name, r.Seed, o.Major)
		if o.Pooler {
			where, folder = where+" behind the pooler", folder+"-pooler"
		}
		o.Out = filepath.Join(r.Out, folder)
		rows := slices.DeleteFunc(Scorecard(), func(row Row) bool {
			return row.Name == r.Row.Name || !row.Runs(TierP) || o.Pooler && row.direct
		})
		var failed []string
		passed := 0
		for i, row := range rows {
			r.Progress(where, i, len(rows))
			record, err := Do(ctx, row, o)
			switch {
			case err != nil:
				return err
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case record.Passed:
				passed++
			case record.Skipped == "":
				failed = append(failed, fmt.Sprintf("%s: %v %s", row.Name, record.Violated(), record.Error))
			}
		}
		r.Count("rows passed on "+where, passed)
		r.Count("rows skipped on "+where, len(rows)-passed-len(failed))
		r.None("rows that failed on "+where, failed)
		r.Expect("rows passed on "+where, float64(passed), ">=", float64(len(rows)*3/4))
	}
	return nil
}
