package console

import (
	"encoding/json"
	"time"

	"github.com/a-h/templ"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/schedule"
)

func (s *site) schedules(v *visit) (err error) {
	tenant := v.tenant()
	if text := v.param("tenant"); text != "" {
		if tenant, err = v.tenantParam(text); err != nil {
			return err
		}
	}
	q := operator.SchedulesQuery{Tenant: tenant, AfterName: v.param("after_name"), Limit: schedulesShown + 1}
	if q.AfterName != "" {
		if q.AfterTenant, err = outbox.ParseID(v.param("after_tenant")); err != nil {
			return unreadable("after_tenant", "is no tenant’s id")
		}
	}
	found, err := v.operator.SchedulesPage(v.ctx(), q)
	if err != nil {
		return err
	}
	l := scheduleList{shown: found, first: q.AfterName == ""}
	if len(found) > schedulesShown {
		l.shown = found[:schedulesShown]
		last := l.shown[schedulesShown-1]
		l.next = link("schedules", "tenant", v.param("tenant"), "after_name", last.Name, "after_tenant",
			last.Tenant.String())
	}
	return v.render(schedulesPage(v, l))
}

// schedulesShown is how many schedules a page of the list has.
const schedulesShown = 500

// scheduleList is a page of the list.
type scheduleList struct {
	shown []operator.Schedule
	first bool
	next  templ.SafeURL // of the page behind it; "" on the last
}

// search returns the search for the jobs like those that a schedule stores.
func (s shownSchedule) search() search {
	return search{kind: s.Kind, queue: s.Queue, tenant: s.Tenant}
}

// nextTicks is how many ticks a schedule's page shows.
const nextTicks = 5

// shownSchedule is a schedule with its next ticks.
type shownSchedule struct {
	operator.Schedule
	ticks []time.Time
	done  doneAct
	jobs  []operator.Job // the newest of its kind in its queue: which of them it has stored is not indexed
}

func (s *site) schedule(v *visit) error {
	found, err := s.scheduleOf(v)
	if err != nil {
		return err
	}
	done, err := v.justDone(scheduleStanding(found))
	if err != nil {
		return err
	}
	newest, err := v.operator.Page(v.ctx(), operator.Filter{
		Kind: found.Kind, Queue: found.Queue, Tenant: found.Tenant, Limit: sampleSize,
	})
	if err != nil {
		return err
	}
	return v.render(schedulePage(v, shownSchedule{found, ticksOf(found, v.now), done, newest.Jobs}))
}

// scheduleOf returns the schedule that the parameters name.
func (s *site) scheduleOf(v *visit) (found operator.Schedule, err error) {
	tenant := v.who.Tenant
	if text := v.param("tenant"); text != "" {
		if tenant, err = v.tenantParam(text); err != nil {
			return found, err
		}
	}
	return v.operator.Schedule(v.ctx(), tenant, v.param("name"))
}

// ticksOf returns the coming ticks, from the one that the database waits for; of a paused schedule, those that would
// come if it were resumed now.
func ticksOf(s operator.Schedule, now time.Time) (ticks []time.Time) {
	declared := schedule.Every(s.Name, s.Every, stored(s.Kind), schedule.Options{})
	if s.Expression != "" {
		declared = schedule.Cron(s.Name, s.Expression, s.Zone, stored(s.Kind), schedule.Options{})
	}
	after := now
	if s.PausedSince.IsZero() {
		ticks, after = append(ticks, s.NextAt), s.NextAt
	}
	for len(ticks) < nextTicks {
		next, err := declared.Next(after)
		if err != nil { // an expression that another version accepted
			break
		}
		ticks, after = append(ticks, next), next
	}
	return ticks
}

// next returns when a schedule ticks next; zero if it is paused.
func next(s operator.Schedule) time.Time {
	if !s.PausedSince.IsZero() {
		return time.Time{}
	}
	return s.NextAt
}

// ticksTitle returns the title of a schedule's coming ticks.
func ticksTitle(s operator.Schedule) string {
	if !s.PausedSince.IsZero() {
		return "Next ticks, if it were resumed now"
	}
	return "Next ticks"
}

// stored is the arguments of a stored schedule, of which only the kind is known here.
type stored string

func (s stored) Kind() string { return string(s) }

func (s stored) MarshalJSON() ([]byte, error) { return json.Marshal(nil) }

// scheduleGrace is how long after its tick a schedule is overdue: processes look at least every minute.
const scheduleGrace = 2 * time.Minute

// rhythm describes when a schedule ticks.
func rhythm(s operator.Schedule) string {
	if s.Expression == "" {
		return "every " + took(s.Every)
	}
	return s.Expression
}

// inZone returns an instant in the schedule's own zone, with its name.
func inZone(t time.Time, zone string) string {
	at, err := time.LoadLocation(zone)
	if err != nil {
		return t.UTC().Format("Mon 2 Jan 15:04 MST")
	}
	return t.In(at).Format("Mon 2 Jan 15:04:05 MST")
}

// tenantFlag returns the flag that names a tenant on the command line; root is the default.
func tenantFlag(id outbox.ID) string {
	if id.IsZero() || id == outbox.RootTenant {
		return ""
	}
	return " --tenant " + id.String()
}
