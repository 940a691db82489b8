package console_test

import (
	"html"
	"net/url"
	"regexp"
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

// However many schedules there are, the list leads to each of them, and each has its page.
func TestManySchedulesAreListedByPages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at) SELECT $1, 's' || lpad(i::text, 5, '0'), '1 hour', 'k', '{}', now() + interval '1 hour' FROM generate_series(1, 10100) AS i`, tenantB)
	r.exec(`INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at) SELECT t, 's00500', '1 hour', 'k', '{}', now() + interval '1 hour' FROM unnest($1::uuid[]) AS t`, []string{tenantA.String(), outbox.NewID().String()})
	seen, next := map[string]bool{}, "schedules"
	for pages := 0; next != ""; pages++ {
		if pages > 30 {
			t.Fatal("the list has no end")
		}
		body := r.get(next).is(200).Body.String()
		for _, row := range regexp.MustCompile(`<tr id="([^"]+)"`).FindAllStringSubmatch(body, -1) {
			if seen[row[1]] {
				t.Errorf("%s is listed twice", row[1])
			}
			seen[row[1]] = true
		}
		next = ""
		if found := regexp.MustCompile(`rel="next" href="([^"]+)"`).FindStringSubmatch(body); found != nil {
			next = html.UnescapeString(found[1])
		}
	}
	if len(seen) != 10_102 {
		t.Errorf("the pages have %d schedules, want 10 102", len(seen))
	}
	r.as("a").get("schedules").is(200).has("1 schedule").hasNot("Next page", `rel="next"`)
	r.get("schedule?name=s10100&tenant=" + tenantB.String()).is(200).has("s10100")
	r.get("schedules?after_name=z&after_tenant=" + tenantB.String()).is(200).has("There are no more schedules")
	r.get("schedules?after_name=z&after_tenant=z").is(400)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
