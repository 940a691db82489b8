package schedule

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// What SQL makes is what an edit makes, and a scheduler that sees it works out its first tick.
func TestSQLMakesWhatAnEditMakes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	create(t, db, "edit", full())
	exec(t, db, `SELECT outbox.create_schedule('sql', 'report', cron => '0 7 * * 1-5', time_zone => 'Europe/Berlin', payload => '{"of":"a"}', queue => 'q',
		priority => 3, max_attempts => 7, timeout => '1 minute', backoff => '{1 s, 1 h}', headers => '{"a": "b"}', hold => true, streamed => true,
		deadline => '1 hour', key => 'k', ordered => true, on_death => 'park', park_after => '1 minute', on_lapse => 'block', missed => 'all', missed_limit => 5,
		actor => 'ada')`)
	made := func() []string {
		return askAll[string](t, db, `SELECT (to_jsonb(schedules) - '{name,since,next_at,updated_at,created_at,payload,generation}'::text[])::text
			|| convert_from(payload, 'UTF8')::jsonb FROM outbox.schedules ORDER BY name`)
	}
	if got := made(); got[0] != got[1] {
		t.Errorf("made (-by an edit +by SQL):\n%s", cmp.Diff(got[0], got[1]))
	}
	if n := fire(t, newScheduler(t, db)); n != 1 || ask[int](t, db, `SELECT count(*) FROM outbox.jobs`) != 0 {
		t.Errorf("%d schedules were moved to their first tick, want the one of SQL, and no job", n)
	}
	if got := askAll[time.Time](t, db, `SELECT next_at FROM outbox.schedules`); !got[0].Equal(got[1]) {
		t.Errorf("the next ticks are %v, want one for both", got)
	}

	// A change to the defaults, by both.
	if err := edit(t, db, "edit", Edit{Every: new(time.Hour), Queue: new(""), Backoff: outbox.Backoff{}, Headers: map[string]string{}, OnDeath: new(outbox.DeathPolicy("")), ParkAfter: new(time.Duration(0)), Deadline: new(time.Duration(0)), Hold: new(false)}); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `SELECT outbox.change_schedule('sql', every => '1 hour', queue => '', backoff => '{}', headers => '{}', on_death => '', park_after => '0', deadline => '0', hold => false, actor => 'ada')`)
	if got := made(); got[0] != got[1] || !strings.Contains(got[0], `"01:00:00"`) {
		t.Errorf("changed (-by an edit +by SQL):\n%s", cmp.Diff(got[0], got[1]))
	}
	if got := ask[string](t, db, `SELECT string_agg(act || ' ' || target || ' ' || actor, ', ' ORDER BY id) FROM outbox.audit`); got != "schedule.create sql ada, schedule.change sql ada" {
		t.Errorf("the audit has %s", got)
	}
	if got := askAll[bool](t, db, `SELECT outbox.delete_schedule('sql') UNION ALL SELECT outbox.delete_schedule('none') UNION ALL SELECT outbox.change_schedule('none')`); !cmp.Equal(got, []bool{true, false, false}) {
		t.Errorf("deleted, deleted none, changed none: %v", got)
	}
}

// Expressions are refused in SQL as in code, with the same words.
func TestSQLRefusesTheExpressionsThatCodeRefuses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	expressions := []string{
		"@daily", "@fortnightly", "", "0 0 * *", "0 0 0 * * *", "0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 31 2,4-6 *", "0 0 30,31 feb *", "0 0 29 2 *", "0 0 L 2 *", "0 0 30 2 MON",
		"60 24 0 13 8", "*/0 0 * * *", "* */24 * * *", "0 0 15W * *", "0 0 32W * *", "0 0 * * FRI#2", "0 0 * * FRI#6", "0 0 * * 5L", "0 0 * * 8L", "0 0 W * *", "0 0 l * *",
		"0\t0  1 JAN-mar,12 *", "*/5,3 * * * *", "*,3 * * * *", "0 0 29 2 1-7/2", "0 007 * * *", "0 0 1/40 * *", "0 -1 * * *", `0 "1 * * *`, strings.Repeat("1,", 250) + "1 * * * *",
	}
	pieces := []string{"0", "5", "30", "31", "59", "60", "*", "-", "/", ",", "L", "W", "#", "JAN", "FEB", "MON", "SUN", "7", "+", "1-5", "*/2", "x"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		fields := make([]string, 5)
		for i := range fields {
			fields[i] = "*"
			if random.IntN(2) == 0 {
				for range 1 + random.IntN(3) {
					fields[i] = strings.TrimPrefix(fields[i], "*") + pieces[random.IntN(len(pieces))]
				}
			}
		}
		expressions = append(expressions, strings.Join(fields, " "))
	}
	inSQL := askAll[string](t, db, `SELECT coalesce(outbox.cron_faults(e), '') FROM unnest($1::text[]) WITH ORDINALITY AS u(e, n) ORDER BY n`, expressions)
	refused := 0
	for i, e := range expressions {
		var inCode string
		if _, err := newCron(e, "UTC"); err != nil {
			inCode = strings.ReplaceAll(err.Error(), "\n", "; ")
			refused++
		}
		// Days that come never although the months have them are for schedulers to find.
		if inCode != inSQL[i] && !(inSQL[i] == "" && strings.HasSuffix(inCode, "never comes") && !strings.HasSuffix(e, " *")) {
			t.Errorf("%q: in SQL %q, in code %q", e, inSQL[i], inCode)
		}
	}
	if refused < 500 || refused > 2900 {
		t.Errorf("%d of %d expressions are refused: the others say nothing", refused, len(expressions))
	}
}

func TestMistakesInSQLAreNamed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `SELECT outbox.create_schedule('made', 'report', every => '1 hour')`)
	before := stored(t, db)
	for sql, want := range map[string]string{
		`outbox.create_schedule('x', 'report', cron => '61 0 * * *', time_zone => 'Mars')`:                                `zone is "Mars", want the name of an IANA time zone like "Europe/Berlin" or "UTC"; expression.minute is "61": "61" is not a number from 0 to 59`,
		`outbox.create_schedule('x', 'report')`:                                                                           "cron and every: a schedule has one of them",
		`outbox.create_schedule('x', 'report', cron => '@daily', every => '1 day')`:                                       "cron and every: a schedule has one of them",
		`outbox.create_schedule('x', 'report', every => '1 ms')`:                                                          "interval is 00:00:00.001, want 1s to 10 years",
		`outbox.create_schedule('x', 'report', every => '1001001 us')`:                                                    "interval is 00:00:01.001001, want whole milliseconds",
		`outbox.create_schedule('x', 'report', every => '1 month')`:                                                       "interval is 1 mon, want days and times",
		`outbox.change_schedule('made', every => '1 year')`:                                                               "interval is 1 year, want days and times",
		`outbox.create_schedule('x', '', every => '1 day', queue => 'a b')`:                                               "kind '' must be",
		`outbox.create_schedule('x', 'report', every => '1 day', ordered => true)`:                                        "are rules of jobs with a key",
		`outbox.create_schedule('x', 'report', every => '1 day', missed => 'x', priority => 99999)`:                       "priority is 99999, want -32768 to 32767; missed is 'x', want once, skip or all",
		`outbox.create_schedule('x', 'report', every => '1 day', headers => '{"schedule": "x"}')`:                         "which every job of a schedule carries already",
		`outbox.create_schedule('x', 'report', every => '1 day', headers => jsonb_build_object('a', repeat('x', 64600)))`: "headers are 64609 bytes as JSON, want at most 64512: each tick adds its own",
		`outbox.create_schedule('x', 'report', every => '1 day', headers => jsonb_build_object('a', repeat('<', 11000)))`: "headers are 66009 bytes as JSON, want at most 64512: each tick adds its own",
		`outbox.change_schedule('made', headers => jsonb_build_object('a', repeat('x', 64600)))`:                          "want at most 64512: each tick adds its own",
		`outbox.create_schedule('a b', 'report', every => '1 day')`:                                                       "name 'a b' must be",
		`outbox.create_schedule('made', 'report', every => '1 day')`:                                                      "there is a schedule made already",
		`outbox.change_schedule('made', time_zone => 'UTC')`:                                                              "zone is set, and a schedule of an interval has none",
		`outbox.change_schedule('made', cron => '0 0 30 2 *')`:                                                            `expression is "0 0 30 2 *", which never comes`,
		`outbox.change_schedule('made', max_active => 2)`:                                                                 "are rules of jobs with a key",
	} {
		if _, err := db.Exec(t.Context(), `SELECT `+sql); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", sql, err, want)
		}
	}
	if diff := cmp.Diff(before, stored(t, db)); diff != "" || ask[int](t, db, `SELECT count(*) FROM outbox.jobs`) != 0 {
		t.Errorf("what was refused has left something (-before +after):\n%s", diff)
	}
}

// A tick that is due is not lost by a change in SQL, which cannot fire it: another timing is refused until it is fired,
// or the schedule is paused. A timing that no scheduler has read yet may be replaced.
func TestATickIsNotLostByAChangeInSQL(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `BEGIN; SELECT outbox.create_schedule('s', 'report', every => '1 day'); SELECT outbox.change_schedule('s', every => '2 hours'); COMMIT`)
	exec(t, db, `SELECT outbox.change_schedule('s', every => '1 hour')`)
	s := newScheduler(t, db)
	fire(t, s)
	age(t, db, "s", time.Hour)
	toDaily := func() string {
		_, err := db.Exec(t.Context(), `SELECT outbox.change_schedule('s', cron => '@daily')`)
		return pgsession.State(err)
	}
	if got := toDaily(); got != "55006" {
		t.Errorf("another timing while a tick is due: SQLSTATE %q, want 55006", got)
	}
	exec(t, db, `SELECT outbox.change_schedule('s', kind => 'other')`)
	if fire(t, s); len(firedFor(t, db, "s")) != 1 {
		t.Errorf("fired for %v, want the tick that was due", firedFor(t, db, "s"))
	}
	if got := toDaily(); got != "" {
		t.Errorf("another timing afterwards: SQLSTATE %q", got)
	}
	exec(t, db, `UPDATE outbox.schedules SET next_at = now() - interval '1 hour', since = now() - interval '2 hours', paused_at = now()`)
	exec(t, db, `SELECT outbox.change_schedule('s', every => '2 hours')`)
	exec(t, db, `UPDATE outbox.schedules SET set_by = NULL`)
	if got := toDaily(); got != "55000" {
		t.Errorf("a change of a program's schedule: SQLSTATE %q, want 55000", got)
	}
}

// Operators' roles make schedules, those of the API for the tenant that they are tied to; producers do not.
func TestWhoMayMakeSchedulesInSQL(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tenant, other := outbox.NewID(), outbox.NewID()
	as := func(role string, tenants ...outbox.ID) string {
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			exec(t, tx, `SET LOCAL ROLE `+role)
			exec(t, tx, `SET LOCAL app.tenant_id = '`+tenant.String()+`'`)
			for _, of := range tenants {
				if _, err := tx.Exec(t.Context(), `SELECT outbox.create_schedule($1, 'report', every => '1 hour', tenant_id => $2)`, role, of.String()); err != nil {
					return err
				}
			}
			_, err := tx.Exec(t.Context(), `SELECT outbox.change_schedule($1, cron => '@daily', tenant_id => $2)`, role, tenant.String())
			return err
		})
		return pgsession.State(err)
	}
	for role, want := range map[string]string{"outbox_api": "", "outbox_worker": "", "outbox_producer": "42501", "outbox_reader": "42501"} {
		if got := as(role, tenant); got != want {
			t.Errorf("%s: SQLSTATE %q, want %q", role, got, want)
		}
	}
	if got := as("outbox_api", other); got != "42501" {
		t.Errorf("another tenant's: SQLSTATE %q, want 42501", got)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.schedules WHERE tenant_id = $1 AND expression = '@daily'`, tenant); n != 2 {
		t.Errorf("there are %d schedules, want those of two roles", n)
	}
}
