package console_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/schedule"
)

const stored = `INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at, set_by) VALUES ($1, 'sync', '1 hour', 'sync', '{}', now() + interval '1 hour', 'eve')`

// A person looks at what an act on a schedule will do. Before they confirm it, the schedule becomes another one: what
// they would run, pause or delete now is not what they have seen.
func TestAnActOnAScheduleIsOnThatWhichWasShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bob := operator.New(r.db).As(operator.Actor{Name: "bob"})
	for name, meanwhile := range map[string]struct {
		happens func(t *testing.T)
		says    []string
	}{
		"somebody changes it": {func(t *testing.T) {
			_, err := bob.ChangeSchedule(t.Context(), tenantA, "sync", schedule.Edit{Kind: new("sync.all")})
			must(t, err)
		}, []string{"The schedule was changed meanwhile", "bob did schedule.change", "ago. Nothing was changed now."}},
		"somebody deletes it": {func(t *testing.T) {
			must(t, bob.DeleteSchedule(t.Context(), tenantA, "sync"))
		}, []string{"bob did schedule.delete"}},
		"somebody creates another of its name": {func(t *testing.T) {
			must(t, bob.DeleteSchedule(t.Context(), tenantA, "sync"))
			_, err := bob.CreateSchedule(t.Context(), schedule.Edit{Every: new(time.Hour), Kind: new("sync")}.New(tenantA, "sync"))
			must(t, err)
		}, []string{"bob did schedule.create"}},
		"a program declares it": {func(t *testing.T) {
			declared := schedule.Every("sync", time.Minute, outbox.Raw{KindName: "sync", Payload: []byte("{}")}, schedule.Options{Tenant: tenantA})
			must(t, pgx.BeginFunc(t.Context(), r.db, func(tx pgx.Tx) error {
				return schedule.DeclareIn(t.Context(), tx, time.Minute, declared)
			}))
		}, []string{"A program declared it"}},
	} {
		for _, act := range strings.Fields("run delete pause") {
			t.Run(name+" and not "+act, func(t *testing.T) {
				r := *r
				r.t = t
				r.exec(`TRUNCATE outbox.jobs, outbox.schedules`)
				r.exec(stored, tenantA)
				page := "schedule-" + act + "?" + url.Values{"tenant": {tenantA.String()}, "name": {"sync"}}.Encode()
				form := r.as("a").get(page).is(200).fieldsOf()
				meanwhile.happens(t)
				const state = `SELECT concat((SELECT count(*) FROM outbox.jobs), ' ', (SELECT max(concat(kind, paused_at, every)) FROM outbox.schedules))`
				before := r.read(state)
				r.as("a").post("schedule-"+act, form).is(409).has(meanwhile.says...)
				if after := r.read(state); after != before {
					t.Errorf("it was %q, is %q", before, after)
				}
			})
		}
	}
}

// A schedule that was resumed is deleted and created once more: what undoes the former's act is none of the latter's.
func TestAnActOnAScheduleThatIsGoneIsNotUndone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(stored, tenantA)
	r.exec(`UPDATE outbox.schedules SET paused_at = now()`)
	undo := r.confirm("schedule-resume", url.Values{"tenant": {tenantA.String()}, "name": {"sync"}}).undoes(r)
	r.exec(`DELETE FROM outbox.schedules`)
	r.exec(stored, tenantA)
	r.post("undo", undo).is(409)
	if paused := r.read(`SELECT coalesce(paused_at::text, 'goes on') FROM outbox.schedules`); paused != "goes on" {
		t.Errorf("the new one is paused since %s", paused)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
