package schedule

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// stored returns the whole table as text: whatever changes in it, shows.
func stored(t *testing.T, db outbox.DB) []string {
	t.Helper()
	return askAll[string](t, db, `SELECT schedules::text FROM outbox.schedules ORDER BY tenant_id, name`)
}

func TestDeclaringWhatIsStoredChangesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	schedules := []Schedule{
		Cron("cron", "0 7 * * 1-5", "Europe/Berlin", reportArgs{Of: "a"}, Options{Headers: map[string]string{"b": "1", "a": "2"}, Key: outbox.KeyRules{Name: "k"}, Timeout: time.Hour, Backoff: outbox.Backoff{time.Second, 36 * time.Hour}, Missed: All}),
		Every("keyed", time.Hour, reportArgs{}, Options{
			Key: outbox.KeyRules{Name: "k", Ordered: true, OnDeath: outbox.ParkKey, ParkAfter: time.Hour, OnLapse: outbox.BlockLapsed}, Hold: true, Streamed: true, Deadline: 36 * time.Hour,
		}),
		Every("interval", 36*time.Hour, outbox.Raw{KindName: "raw", Payload: []byte("\x00"), ContentType: "application/x"}, Options{Tenant: outbox.NewID()}),
	}
	declare(t, newScheduler(t, db, schedules...))
	first := stored(t, db)
	exec(t, db, `UPDATE outbox.schedules SET paused_at = now() WHERE name = 'cron'`)
	paused := stored(t, db)
	declare(t, newScheduler(t, db, schedules...))
	if diff := cmp.Diff(paused, stored(t, db)); diff != "" || len(first) != 3 {
		t.Errorf("declared again (-before +after):\n%s", diff)
	}
}

func TestADeclarationThatChanged(t *testing.T) {
	t.Parallel()
	base := Options{}
	tests := map[string]struct {
		to         Schedule
		movesTicks bool
	}{
		"another interval":   {Every("s", 2*time.Hour, reportArgs{}, base), true},
		"cron instead":       {Cron("s", "30 0 1 1 *", "UTC", reportArgs{}, base), true},
		"other arguments":    {Every("s", time.Hour, reportArgs{Of: "b"}, base), false},
		"another queue":      {Every("s", time.Hour, reportArgs{}, Options{Queue: "q"}), false},
		"another priority":   {Every("s", time.Hour, reportArgs{}, Options{Priority: 1}), false},
		"more attempts":      {Every("s", time.Hour, reportArgs{}, Options{MaxAttempts: 26}), false},
		"a timeout":          {Every("s", time.Hour, reportArgs{}, Options{Timeout: time.Second}), false},
		"a backoff":          {Every("s", time.Hour, reportArgs{}, Options{Backoff: outbox.Backoff{time.Second}}), false},
		"a key":              {Every("s", time.Hour, reportArgs{}, Options{Key: outbox.KeyRules{Name: "k"}}), false},
		"a limit of the key": {Every("s", time.Hour, reportArgs{}, Options{Key: outbox.KeyRules{Name: "k", MaxActive: 2}}), false},
		"a line":             {Every("s", time.Hour, reportArgs{}, Options{Key: outbox.KeyRules{Name: "k", Ordered: true}}), false},
		"who is passed over": {Every("s", time.Hour, reportArgs{}, Options{Key: outbox.KeyRules{Name: "k", Ordered: true, OnDeath: outbox.SkipDead}}), false},
		"who is not retried": {Every("s", time.Hour, reportArgs{}, Options{Key: outbox.KeyRules{Name: "k", OnLapse: outbox.FailStale}}), false},
		"a deadline":         {Every("s", time.Hour, reportArgs{}, Options{Deadline: time.Hour}), false},
		"held":               {Every("s", time.Hour, reportArgs{}, Options{Hold: true}), false},
		"streamed":           {Every("s", time.Hour, reportArgs{}, Options{Streamed: true}), false},
		"headers":            {Every("s", time.Hour, reportArgs{}, Options{Headers: map[string]string{"a": "b"}}), false},
		"another policy":     {Every("s", time.Hour, reportArgs{}, Options{Missed: Skip}), false},
		"another limit":      {Every("s", time.Hour, reportArgs{}, Options{MissedLimit: 11}), false},
		"another kind":       {Every("s", time.Hour, outbox.Raw{KindName: "k", Payload: []byte(`{"of":""}`)}, base), false},
		"other content type": {Every("s", time.Hour, outbox.Raw{KindName: "report", Payload: []byte(`{"of":""}`), ContentType: "text/plain"}, base), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			declare(t, newScheduler(t, db, Every("s", time.Hour, reportArgs{}, base)))
			// Far in the past and not due: nothing of this is a tick.
			exec(t, db, `UPDATE outbox.schedules SET next_at = now() + interval '17 minutes', since = now() - interval '17 minutes', paused_at = now()`)
			before := ask[time.Time](t, db, `SELECT next_at FROM outbox.schedules`)
			declare(t, newScheduler(t, db, tt.to))
			if n := ask[int](t, db, `SELECT generation FROM outbox.schedules`); n != 2 {
				t.Errorf("generation = %d, want 2", n)
			}
			after := ask[time.Time](t, db, `SELECT next_at FROM outbox.schedules`)
			if moved := !after.Equal(before); moved != tt.movesTicks {
				t.Errorf("next tick was %s and is %s, want moved = %t", before, after, tt.movesTicks)
			}
			if want, err := tt.to.Next(ask[time.Time](t, db, `SELECT since FROM outbox.schedules`)); err != nil || tt.movesTicks && !after.Equal(want) {
				t.Errorf("next tick is %s, want %s (%v)", after, want, err)
			}
			if ask[bool](t, db, `SELECT paused_at IS NULL FROM outbox.schedules`) {
				t.Error("a declaration resumed what an operator had paused")
			}
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs`); n != 0 {
				t.Errorf("jobs = %d, want 0", n)
			}
		})
	}
}

// A rollout at the very time of a tick: what was due by the declaration that is
// replaced is fired by it.
func TestATickThatIsDueSurvivesAChangeOfTheTiming(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	declare(t, newScheduler(t, db, Every("s", time.Hour, reportArgs{Of: "old"}, Options{})))
	age(t, db, "s", time.Hour)
	due := ask[time.Time](t, db, `SELECT next_at FROM outbox.schedules`).UTC().Format(time.RFC3339)
	declare(t, newScheduler(t, db, Cron("s", "0 0 1 1 *", "UTC", reportArgs{Of: "new"}, Options{})))
	if got := firedFor(t, db, "s"); !cmp.Equal(got, []string{due}) {
		t.Errorf("fired for %v, want %s", got, due)
	}
	if got := ask[string](t, db, `SELECT convert_from(payload, 'UTF8') FROM outbox.jobs`); got != `{"of":"old"}` {
		t.Errorf("the job is %s, want what was declared at its time", got)
	}
	// And back: the tick has had its job.
	declare(t, newScheduler(t, db, Every("s", time.Hour, reportArgs{Of: "old"}, Options{})))
	if n := fire(t, newScheduler(t, db)); n != 0 {
		t.Errorf("fired %d schedules after the roll-back, want 0", n)
	}
}

// Five ticks are due, and four fit into a part: a declaration and an edit fire both parts before they overwrite the
// time of the next tick.
func TestAChangeOfATimingFiresEveryPart(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	large := outbox.Raw{KindName: "large", Payload: []byte(`"` + strings.Repeat("x", maxFiringBytes/4-2) + `"`)}
	declare(t, newScheduler(t, db, Every("declared", time.Hour, large, Options{Missed: All, MissedLimit: 5})))
	create(t, db, "made", Edit{Every: new(time.Hour), Kind: new("large"), Payload: large.Payload, Missed: new(All), MissedLimit: new(5)})
	for _, name := range []string{"declared", "made"} {
		age(t, db, name, 5*time.Hour)
	}
	declare(t, newScheduler(t, db, Every("declared", 2*time.Hour, large, Options{Missed: All, MissedLimit: 5})))
	if err := edit(t, db, "made", Edit{Every: new(2 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"declared", "made"} {
		if got := firedFor(t, db, name); len(got) != 5 || !slices.IsSorted(got) {
			t.Errorf("%s: fired for %v, want the 5 ticks that were due", name, got)
		}
	}
}

func TestADeclarationMendsWhatNobodyCanFire(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := newScheduler(t, db, Every("s", time.Hour, reportArgs{}, Options{}))
	declare(t, s)
	exec(t, db, `UPDATE outbox.schedules SET every = NULL, expression = 'nonsense', time_zone = 'UTC', next_at = now() - interval '1 hour'`)
	declare(t, s)
	if next := ask[time.Time](t, db, `SELECT next_at FROM outbox.schedules WHERE every IS NOT NULL`); next.Before(time.Now()) {
		t.Errorf("next tick is %s, want one to come", next)
	}
}

// The database refuses the job of a tick that is due by the old timing: neither a declaration nor an edit waits for it.
func TestAChangeOfATimingPassesARefusedTick(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	bad := outbox.Raw{KindName: "bad", Payload: []byte("1")}
	declare(t, newScheduler(t, db, Every("declared", time.Hour, bad, Options{}), Every("other", time.Hour, reportArgs{}, Options{})))
	create(t, db, "made", Edit{Every: new(time.Hour), Kind: new("bad")})
	refuseBad(t, db)
	exec(t, db, `UPDATE outbox.schedules SET next_at = next_at - interval '1 hour', since = since - interval '1 hour'`)
	s := newScheduler(t, db, Every("declared", 2*time.Hour, bad, Options{}), Every("other", 2*time.Hour, reportArgs{}, Options{}))
	declare(t, s)
	if err := edit(t, db, "made", Edit{Every: new(2 * time.Hour)}); err != nil {
		t.Error(err)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.schedules WHERE every = '2 hours' AND next_at > now()`); n != 3 {
		t.Errorf("%d schedules have changed, want 3", n)
	}
	if jobs := askAll[string](t, db, `SELECT headers ->> 'schedule' FROM outbox.jobs`); !cmp.Equal(jobs, []string{"other"}) || value(t, s.metrics.refused) != 1 {
		t.Errorf("fired %v, and %v were refused; want other, and one", jobs, value(t, s.metrics.refused))
	}
}

// Two versions start at once, again and again: nobody deadlocks, and at the end
// one of the two declarations is stored whole.
func TestVersionsThatStartTogetherDoNotArgue(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	versions := [2][]Schedule{}
	for v := range versions {
		every := time.Duration(v+1) * time.Hour
		for _, name := range []string{"a", "b", "c", "d"} {
			versions[v] = append(versions[v], Every(name, every, reportArgs{Of: every.String()}, Options{}))
		}
	}
	versions[1][0], versions[1][3] = versions[1][3], versions[1][0] // in another order
	var starting sync.WaitGroup
	for i := range 8 {
		s := newScheduler(t, db, versions[i%2]...)
		starting.Go(func() {
			for range 10 {
				if err := s.declarer.declare(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	starting.Wait()
	if n := ask[int](t, db, `SELECT count(DISTINCT (every, payload)) FROM outbox.schedules`); n != 1 {
		t.Errorf("%d declarations are stored, want those of one version", n)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.schedules`); n != 4 {
		t.Errorf("%d schedules are stored, want 4", n)
	}
}

func TestMistakesInADeclarationAreNamed(t *testing.T) {
	t.Parallel()
	valid := "0 0 * * *"
	tests := map[string]struct {
		schedule Schedule
		fields   []string
	}{
		"too few fields":      {Cron("s", "0 0 * *", "UTC", reportArgs{}, Options{}), []string{"expression"}},
		"seconds":             {Cron("s", "0 0 0 * * *", "UTC", reportArgs{}, Options{}), []string{"expression"}},
		"an unknown word":     {Cron("s", "@fortnightly", "UTC", reportArgs{}, Options{}), []string{"expression"}},
		"nothing":             {Cron("s", "", "UTC", reportArgs{}, Options{}), []string{"expression"}},
		"30 February":         {Cron("s", "0 0 30 2 *", "UTC", reportArgs{}, Options{}), []string{"expression"}},
		"31 in short months":  {Cron("s", "0 0 31 2,4,6,9,11 *", "UTC", reportArgs{}, Options{}), []string{"expression"}},
		"every field":         {Cron("s", "60 24 0 13 8", "UTC", reportArgs{}, Options{}), []string{"expression.minute", "expression.hour", "expression.day-of-month", "expression.month", "expression.day-of-week"}},
		"late in a list":      {Cron("s", "0,1,99 0 * * *", "UTC", reportArgs{}, Options{}), []string{"expression.minute"}},
		"a step of none":      {Cron("s", "*/0 0 * * *", "UTC", reportArgs{}, Options{}), []string{"expression.minute"}},
		"a step too far":      {Cron("s", "* */24 * * *", "UTC", reportArgs{}, Options{}), []string{"expression.hour"}},
		"a step of a sign":    {Cron("s", "*/+5 0 * * *", "UTC", reportArgs{}, Options{}), []string{"expression.minute"}},
		"no step":             {Cron("s", "*/ 0 * * *", "UTC", reportArgs{}, Options{}), []string{"expression.minute"}},
		"two steps":           {Cron("s", "*/2/2 0 * * *", "UTC", reportArgs{}, Options{}), []string{"expression.minute"}},
		"a range backwards":   {Cron("s", "0 5-3 * * *", "UTC", reportArgs{}, Options{}), []string{"expression.hour"}},
		"half a range":        {Cron("s", "0 5- * * *", "UTC", reportArgs{}, Options{}), []string{"expression.hour"}},
		"three ends":          {Cron("s", "0 1-2-3 * * *", "UTC", reportArgs{}, Options{}), []string{"expression.hour"}},
		"a sign":              {Cron("s", "0 +5 * * *", "UTC", reportArgs{}, Options{}), []string{"expression.hour"}},
		"an empty part":       {Cron("s", "0 1,,2 * * *", "UTC", reportArgs{}, Options{}), []string{"expression.hour"}},
		"a star among others": {Cron("s", "0 *,1 * * *", "UTC", reportArgs{}, Options{}), []string{"expression.hour"}},
		"a question mark":     {Cron("s", "0 0 ? * *", "UTC", reportArgs{}, Options{}), []string{"expression.day-of-month"}},
		"a month's full name": {Cron("s", "0 0 1 JANUARY *", "UTC", reportArgs{}, Options{}), []string{"expression.month"}},
		"a month as a day":    {Cron("s", "0 0 JAN * *", "UTC", reportArgs{}, Options{}), []string{"expression.day-of-month"}},
		"L of an hour":        {Cron("s", "0 L * * *", "UTC", reportArgs{}, Options{}), []string{"expression.hour"}},
		"the sixth Friday":    {Cron("s", "0 0 * * FRI#6", "UTC", reportArgs{}, Options{}), []string{"expression.day-of-week"}},
		"an unknown zone":     {Cron("s", valid, "Europe/Atlantis", reportArgs{}, Options{}), []string{"zone"}},
		"no zone":             {Cron("s", valid, "", reportArgs{}, Options{}), []string{"zone"}},
		"this host's zone":    {Cron("s", valid, "Local", reportArgs{}, Options{}), []string{"zone"}},
		"no interval":         {Every("s", 0, reportArgs{}, Options{}), []string{"interval"}},
		"too often":           {Every("s", time.Millisecond, reportArgs{}, Options{}), []string{"interval"}},
		"odd microseconds":    {Every("s", time.Second+time.Microsecond, reportArgs{}, Options{}), []string{"interval"}},
		"no name":             {Cron("", valid, "UTC", reportArgs{}, Options{}), []string{"name"}},
		"a name with spaces":  {Cron("a b", valid, "UTC", reportArgs{}, Options{}), []string{"name"}},
		"no arguments":        {Cron("s", valid, "UTC", nil, Options{}), []string{"Args"}},
		"a queue":             {Cron("s", valid, "UTC", reportArgs{}, Options{Queue: "a b"}), []string{"Options.Queue"}},
		"a policy":            {Cron("s", valid, "UTC", reportArgs{}, Options{Missed: "twice"}), []string{"Options.Missed"}},
		"a limit":             {Cron("s", valid, "UTC", reportArgs{}, Options{MissedLimit: 1001}), []string{"Options.MissedLimit"}},
		"a line without end":  {Cron("s", valid, "UTC", reportArgs{}, Options{Key: outbox.KeyRules{Name: "k", MaxActive: 1001}}), []string{"Options.Key.MaxActive"}},
		"a line of no key":    {Cron("s", valid, "UTC", reportArgs{}, Options{Key: outbox.KeyRules{Ordered: true}}), []string{"Options.Key"}},
		"late from the start": {Cron("s", valid, "UTC", reportArgs{}, Options{Deadline: -time.Second}), []string{"Options.Deadline"}},
		"an odd deadline":     {Cron("s", valid, "UTC", reportArgs{}, Options{Deadline: time.Nanosecond}), []string{"Options.Deadline"}},
		"a header of ours":    {Cron("s", valid, "UTC", reportArgs{}, Options{Headers: map[string]string{"schedule": "x"}}), []string{"Options.Headers"}},
		"options of one job": {Cron("s", valid, "UTC", auditArgs{outbox.Options{
			RunAt: time.Unix(1, 0), Deadline: time.Unix(2, 0), IdempotencyKey: "i", Key: outbox.KeyRules{Name: "k", Ordered: true, Sequence: 1}, Headers: map[string]string{"scheduled_for": "x"},
		}}, Options{}), []string{"Options.Deadline", "Options.Key.Sequence", "Options.Headers"}},
		"a key's depth": {Cron("s", valid, "UTC", reportArgs{}, Options{Key: outbox.KeyRules{Name: "k", MaxQueued: 1}}), []string{"Options.Key.MaxQueued"}},
		"all of it":     {Cron("", "x", "x", reportArgs{}, Options{Queue: "a b", Missed: "x"}), []string{"zone", "expression", "name", "Options.Missed", "Options.Queue"}},
	}
	for name, tt := range tests {
		got := invalidFields(tt.schedule.Validate())
		if diff := cmp.Diff(tt.fields, got); diff != "" {
			t.Errorf("%s: fields (-want +got):\n%s\n%v", name, diff, tt.schedule.Validate())
		}
		if _, err := New(nil, Config{Schedules: []Schedule{tt.schedule}}); len(invalidFields(err)) != len(tt.fields) {
			t.Errorf("%s: New says %v", name, err)
		}
	}
	if _, err := (Schedule{}).Next(time.Now()); err == nil {
		t.Error("the zero schedule has a next tick")
	}
	for _, fine := range []string{"@daily", "0 0 l * *", "0 0 15W * *", "0 0 * * FRI#2", "0 0 * * 5L", "0 0 1,15 jan-mar,12 *", "*/5,3 * * * *", "0 0 29 2 1-7/2"} {
		if err := Cron("s", fine, "UTC", reportArgs{}, Options{}).Validate(); err != nil {
			t.Errorf("%q: %v", fine, err)
		}
	}
	if _, err := New(nil, Config{Schedules: []Schedule{Cron("s", valid, "UTC", reportArgs{}, Options{}), Every("s", time.Hour, reportArgs{}, Options{})}}); !cmp.Equal(invalidFields(err), []string{"name"}) {
		t.Errorf("two schedules of one name: got %v", err)
	}
}

// auditArgs is a kind that says how its jobs are run.
type auditArgs struct{ defaults outbox.Options }

func (auditArgs) Kind() string                     { return "audit" }
func (a auditArgs) DefaultOptions() outbox.Options { return a.defaults }

// anyProtector is a protector that is never used.
type anyProtector struct{ outbox.Protector }

func TestAScheduleKeepsTheRulesOfItsKind(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	kind := auditArgs{outbox.Options{Queue: "audits", MaxAttempts: 3, Key: outbox.KeyRules{Name: "k", Ordered: true, OnDeath: outbox.SkipDead}, Caller: outbox.Caller{Service: "ledger"}}}
	declare(t, newScheduler(t, db, Every("s", time.Hour, kind, Options{MaxAttempts: 4})))
	got := askAll[string](t, db, `SELECT concat_ws(' ', queue, max_attempts, key, ordered, on_death, headers) FROM outbox.schedules`)
	for _, left := range []outbox.Options{{IdempotencyKey: "i", RunAt: time.Unix(1, 0)}, {Key: outbox.KeyRules{Name: "k", MaxQueued: 1, WhenFull: outbox.CoalesceFull}}} {
		if err := Every("s", time.Hour, auditArgs{left}, Options{}).Validate(); err != nil {
			t.Errorf("what a schedule leaves out of its kind's options: %v", err)
		}
	}
	for field, kind := range map[string]outbox.Options{
		"Options.Protect": {Protect: anyProtector{}}, "Options.Deadline": {Deadline: time.Now().Add(time.Hour)},
		"Options.Key.Sequence": {Key: outbox.KeyRules{Name: "k", Ordered: true, Sequence: 1}},
	} {
		err := Every("s", time.Hour, auditArgs{kind}, Options{}).Validate()
		if !cmp.Equal(invalidFields(err), []string{field}) || !strings.Contains(err.Error(), "the kind's DefaultOptions") {
			t.Errorf("%s: %v", field, err)
		}
	}
	if diff := cmp.Diff([]string{`audits 4 k t skip {"caller-service": "ledger"}`}, got); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

// invalidFields returns the fields of all InvalidErrors in a tree of errors.
func invalidFields(err error) (fields []string) {
	switch e := err.(type) {
	case nil:
	case *outbox.InvalidError:
		fields = append(fields, e.Field)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			fields = append(fields, invalidFields(err)...)
		}
	default:
		fields = invalidFields(errors.Unwrap(err))
	}
	return fields
}
