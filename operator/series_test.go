package operator_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

var (
	seriesBegin  = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	seriesTenant = outbox.ID{0: 0xa, 15: 1}
)

// storeMeasures stores ten minutes of two queues, of a tenant and the root: in the nth minute n jobs wait in each, 10
// n are enqueued, and 100 n closed, which waited from 2 to 4 ms. Nobody measured in the fourth; the seventh and the
// eighth were counted together; and in the tenth the queue bill was not measured by itself.
func storeMeasures(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	exec(t, db, `
		INSERT INTO outbox.measured SELECT $1::timestamptz + n * interval '1 min', $1::timestamptz + (n - CASE n WHEN 8 THEN 2 ELSE 1 END) * interval '1 min', n < 10
		FROM generate_series(1, 10) AS n WHERE n NOT IN (4, 7)`, seriesBegin)
	exec(t, db, `
		INSERT INTO outbox.measures SELECT measured.at, p.tenant, p.queue, 'k', n, 2, 3, 10 * n, 100 * n - 1, 1, 5, ARRAY[NULL, NULL, 100 * n]
		FROM outbox.measured, LATERAL (SELECT extract(epoch FROM at - $1) / 60 AS n) AS minute, (VALUES ('mail', $2::uuid), ('bill', $3::uuid)) AS p(queue, tenant)
		WHERE complete OR queue = 'mail'`, seriesBegin, outbox.RootTenant, seriesTenant)
	exec(t, db, `INSERT INTO outbox.measures SELECT at, NULL, '', '', 1, 1, 1, 1, 1, 1, 1, '{1}' FROM outbox.measured WHERE NOT complete`)
}

// line returns a point in short: the minute, how many seconds of it, what waits, what came and went.
func line(p operator.Point) string {
	return fmt.Sprintf("%s %.0f s: %d+%d+%d, %d in, %d out, %d failed", p.At.Format("4"), p.Measured.Seconds(), p.Waiting, p.Running, p.DeadLetters, p.Enqueued, p.Closed(), p.Failed)
}

func lines(t *testing.T, o *operator.Operator, f operator.SeriesFilter) string {
	t.Helper()
	points, err := o.Series(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range points {
		all = append(all, line(p))
	}
	return strings.Join(all, "\n")
}

func TestSeries(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeMeasures(t, db)
	all := operator.SeriesFilter{Since: seriesBegin, Until: seriesBegin.Add(10 * time.Minute)}
	with := func(change func(*operator.SeriesFilter)) operator.SeriesFilter {
		f := all
		change(&f)
		return f
	}
	for name, test := range map[string]struct {
		filter operator.SeriesFilter
		want   string
	}{
		"by the minute": {with(func(f *operator.SeriesFilter) { f.Queue, f.Until = "mail", seriesBegin.Add(4*time.Minute) }), `
0 60 s: 1+2+3, 10 in, 100 out, 5 failed
1 60 s: 2+2+3, 20 in, 200 out, 5 failed
2 60 s: 3+2+3, 30 in, 300 out, 5 failed
3 0 s: 0+0+0, 0 in, 0 out, 0 failed`},
		"everything, in steps": {with(func(f *operator.SeriesFilter) { f.Step = 5 * time.Minute }), `
0 240 s: 10+4+6, 220 in, 2200 out, 40 failed
5 300 s: 18+4+6, 561 in, 5602 out, 36 failed`},
		"a part that was not measured by itself at the end": {with(func(f *operator.SeriesFilter) { f.Queue, f.Step = "bill", 5*time.Minute }), `
0 240 s: 5+2+3, 110 in, 1100 out, 20 failed
5 240 s: 9+2+3, 230 in, 2300 out, 15 failed`},
		"a tenant":               {with(func(f *operator.SeriesFilter) { f.Tenant, f.Step = seriesTenant, 10*time.Minute }), "\n0 480 s: 9+2+3, 340 in, 3400 out, 35 failed"},
		"a kind":                 {with(func(f *operator.SeriesFilter) { f.Kind, f.Step = "k", 10*time.Minute }), "\n0 540 s: 18+4+6, 780 in, 7800 out, 75 failed"},
		"a kind that is unknown": {with(func(f *operator.SeriesFilter) { f.Kind, f.Step = "x", 10*time.Minute }), "\n0 480 s: 0+0+0, 0 in, 0 out, 0 failed"},
	} {
		if diff := cmp.Diff(strings.TrimSpace(test.want), lines(t, o, test.filter)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	points, err := o.Series(t.Context(), with(func(f *operator.SeriesFilter) { f.Step = 10 * time.Minute }))
	if err != nil {
		t.Fatal(err)
	}
	if p := points[0]; p.WaitP50 < 2*time.Millisecond || p.WaitP50 > p.WaitP99 || p.WaitP99 > 4*time.Millisecond {
		t.Errorf("waits are %s and %s, want 2 to 4 ms", p.WaitP50, p.WaitP99)
	}
	sparks, measured, err := o.Sparks(t.Context(), with(func(f *operator.SeriesFilter) { f.Step = 5 * time.Minute }), false)
	if err != nil {
		t.Fatal(err)
	}
	at := func(n int, open int64) operator.Spark {
		return operator.Spark{At: seriesBegin.Add(time.Duration(n) * time.Minute), Open: open}
	}
	want := map[string][]operator.Spark{"mail": {at(0, 7), at(5, 12)}, "bill": {at(0, 7), at(5, 11)}}
	if diff := cmp.Diff(want, sparks); diff != "" {
		t.Errorf("sparks (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]time.Time{at(0, 0).At, at(5, 0).At}, measured); diff != "" {
		t.Errorf("measured (-want +got):\n%s", diff)
	}
}

func TestSeriesOfATenantAreItsOwn(t *testing.T) {
	t.Parallel()
	_, db := newRig(t)
	storeMeasures(t, db)
	exec(t, db, `INSERT INTO outbox.builds VALUES ('v1', $1, $1)`, seriesBegin.Add(time.Minute))
	for name, tenant := range map[string]outbox.ID{"its own": seriesTenant, "another's": {0: 0xb, 15: 1}} {
		o := operator.New(pgtest.Login(t, db, "outbox_api"))
		f := operator.SeriesFilter{Since: seriesBegin, Until: seriesBegin.Add(10 * time.Minute), Step: 10 * time.Minute}
		// It does not ask for one tenant: the database keeps it to it.
		points, err := o.Series(operator.WithTenant(t.Context(), tenant), f)
		if err != nil {
			t.Fatal(err)
		}
		want := "0 480 s: 0+0+0, 0 in, 0 out, 0 failed"
		if tenant == seriesTenant {
			want = "0 480 s: 9+2+3, 340 in, 3400 out, 35 failed"
		}
		if got := line(points[0]); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
		sparks, _, err := o.Sparks(operator.WithTenant(t.Context(), tenant), f, false)
		if err != nil || len(sparks["mail"]) != 0 {
			t.Errorf("%s: got %v, %v", name, sparks, err)
		}
		if marks, err := o.Marks(operator.WithTenant(t.Context(), tenant), f); err != nil || len(marks) != 0 {
			t.Errorf("%s: got marks %v, %v", name, marks, err)
		}
	}
}

// Two weeks are read from sums of hours, which say what the minutes say.
func TestHoursSayWhatTheirMinutesSay(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	until := seriesBegin.Add(4*time.Hour + 20*time.Minute)
	exec(t, db, `INSERT INTO outbox.measured SELECT m, m - interval '1 min', extract(minute FROM m) <> 7 FROM generate_series($1::timestamptz + interval '90 min', $2, '1 min') AS m
		WHERE m NOT BETWEEN $1::timestamptz + interval '150 min' AND $1::timestamptz + interval '170 min'`, seriesBegin, until)
	exec(t, db, `INSERT INTO outbox.measures SELECT at, $1, queue, 'k', 7, 2, 1, n % 5, n % 7, n % 3, 1, ARRAY[n % 2, NULL, n % 11]
		FROM (SELECT at, row_number() OVER (ORDER BY at) AS n FROM outbox.measured) AS m, (VALUES ('mail'), ('bill')) AS q(queue)`, seriesTenant)
	summed := 0
	for range 9 {
		n, err := sqlgen.New(db).SumHour(t.Context(), pgtype.Timestamptz{Time: until, Valid: true})
		if err != nil {
			t.Fatal(err)
		}
		summed += int(n)
	}
	if summed != 3 { // the second, the third and the fourth: nobody measured in the first, and the fifth is not over
		t.Errorf("%d hours were summed, want 3", summed)
	}
	for _, queue := range []string{"", "mail"} {
		f := operator.SeriesFilter{Since: seriesBegin, Until: until, Queue: queue, Step: 20 * time.Minute}
		minutes, err := o.Series(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		f.Step = time.Hour
		hours, err := o.Series(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		// Hours are not read from minutes.
		exec(t, db, `UPDATE outbox.measures SET succeeded = succeeded + 1000000 WHERE at <= $1`, seriesBegin.Add(4*time.Hour))
		if again, err := o.Series(t.Context(), f); err != nil || !cmp.Equal(again, hours) {
			t.Errorf("of hours: %v, got %v, want %v", err, again, hours)
		}
		exec(t, db, `UPDATE outbox.measures SET succeeded = succeeded - 1000000 WHERE at <= $1`, seriesBegin.Add(4*time.Hour))
		var want []operator.Point
		for i, p := range minutes {
			if i%3 == 0 {
				want = append(want, operator.Point{At: p.At})
			}
			w := &want[len(want)-1]
			w.Measured += p.Measured
			w.Enqueued, w.Succeeded, w.Unsuccessful, w.Failed = w.Enqueued+p.Enqueued, w.Succeeded+p.Succeeded, w.Unsuccessful+p.Unsuccessful, w.Failed+p.Failed
			w.Waiting, w.Running, w.DeadLetters = max(w.Waiting, p.Waiting), max(w.Running, p.Running), max(w.DeadLetters, p.DeadLetters)
		}
		for i := range hours {
			hours[i].WaitP50, hours[i].WaitP99 = 0, 0
		}
		if diff := cmp.Diff(want, hours); diff != "" {
			t.Errorf("queue %q (-minutes +hours):\n%s", queue, diff)
		}
	}
}

func TestSeriesThatCannotBe(t *testing.T) {
	t.Parallel()
	o, _ := newRig(t)
	hour := operator.SeriesFilter{Since: seriesBegin, Until: seriesBegin.Add(time.Hour)}
	for want, change := range map[string]func(*operator.SeriesFilter){
		"SeriesFilter.Since is missing":                                           func(f *operator.SeriesFilter) { f.Since = time.Time{} },
		"SeriesFilter.Until is not after since":                                   func(f *operator.SeriesFilter) { f.Until = f.Since },
		"SeriesFilter.Step is 1s, want at least 1m0s":                             func(f *operator.SeriesFilter) { f.Step = time.Second },
		"SeriesFilter.Step is 1m0s, want at least 1m26.4s for at most 1000 steps": func(f *operator.SeriesFilter) { f.Until = f.Since.Add(24 * time.Hour) },
	} {
		f := hour
		change(&f)
		if _, err := o.Series(t.Context(), f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestMarksAreBuildsAndActs(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	at := func(n int) time.Time { return seriesBegin.Add(time.Duration(n) * time.Minute) }
	exec(t, db, `INSERT INTO outbox.builds VALUES ('v1', $1, $1), ('v2', $2, $2), ('v0', $3, $3)`, at(1), at(4), at(-1))
	exec(t, db, `INSERT INTO outbox.audit (at, actor, act, queue, request_id, reason, job_id) VALUES
		($1, 'ada', 'queue.pause', 'mail', 'r1', 'relay is down', NULL),
		($2, 'zoe', 'job.replay', 'bill', 'r2', NULL, gen_random_uuid()),
		($2, 'zoe', 'job.replay', 'bill', 'r2', NULL, gen_random_uuid()),
		($3, 'ada', 'queue.resume', 'mail', 'r3', NULL, NULL)`, at(2), at(3), at(11))
	shown := func(f operator.SeriesFilter) (all []string) {
		f.Since, f.Until = seriesBegin, at(10)
		marks, err := o.Marks(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range marks {
			if m.Act == nil {
				all = append(all, m.At.Format("4 ")+m.Build)
			} else {
				all = append(all, fmt.Sprintf("%s %s %s ×%d %s %q", m.At.Format("4"), m.Act.Actor, m.Act.Act, m.Act.Number, m.Act.Queue, m.Act.Reason))
			}
		}
		return all
	}
	if got, want := shown(operator.SeriesFilter{}), []string{"1 v1", `2 ada queue.pause ×1 mail "relay is down"`, `3 zoe job.replay ×2 bill ""`, "4 v2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := shown(operator.SeriesFilter{Queue: "bill"}), []string{"1 v1", `3 zoe job.replay ×2 bill ""`, "4 v2"}; !slices.Equal(got, want) {
		t.Errorf("of a queue: got %q, want %q", got, want)
	}
}
