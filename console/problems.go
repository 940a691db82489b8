package console

import (
	"slices"
	"strconv"
	"time"

	"github.com/posthaste-dev/posthaste/doctor"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

func (s *site) problems(v *visit) error {
	found, err := s.watch.Problems.Look(v.ctx(), v.tenant())
	if err != nil {
		return err
	}
	return v.render(problemsPage(v, found))
}

// severitySign returns the sign of a severity.
func severitySign(s doctor.Severity) string {
	switch s {
	case doctor.OK:
		return "good"
	case doctor.Warning:
		return "warn"
	}
	return "bad"
}

// bad counts the problems that are more than warnings.
func bad(found watch.Findings) (n int) {
	for _, p := range found.Problems {
		if p.Severity == doctor.Problem {
			n++
		}
	}
	return n
}

// summary returns how many problems there are, before when that was checked.
func summary(found watch.Findings) string {
	if len(found.Problems) == 0 {
		return "checked "
	}
	text := plural(bad(found), "problem") + ", " + plural(len(found.Problems)-bad(found), "warning")
	if len(found.More) > 0 {
		text += ", the worst of them"
	}
	return text + "; checked "
}

// problemID returns the id of a problem on its page, which stays the same while it lasts.
func problemID(p watch.Problem) string {
	if p.Kind == watch.Installation || p.Kind == watch.Unanswered { // they are about nothing else
		return rowID(p.Kind, p.Sentence)
	}
	return rowID(p.Kind, p.Tenant.String(), p.Queue, p.JobKind, p.Key, p.Fingerprint, p.ErrorCode, p.Schedule,
		p.Worker, p.Sink)
}

// places returns the pages that show what a problem is about, with label and URL.
func (v *visit) places(p watch.Problem) (places []place) {
	add := func(label, path string, pairs ...string) {
		if row := table[path]["GET"]; row.gate.admits(v.who) {
			places = append(places, place{label, string(link(path, pairs...))})
		}
	}
	tenant := ""
	if !p.Tenant.IsZero() {
		tenant = p.Tenant.String()
	}
	switch {
	case p.Fingerprint != "":
		add("Dead letters", "letters", "error", p.Fingerprint, "kind", p.JobKind)
	case p.Key != "":
		add("Key", "key", "tenant", tenant, "queue", p.Queue, "key", p.Key)
	case p.Schedule != "":
		add("Schedule", "schedule", "tenant", tenant, "name", p.Schedule)
	case p.Sink != "":
		add("Sink", "sink", "name", p.Sink)
	case p.Worker != "":
		add("Workers", "workers")
	case p.Queue != "":
		add("Queue", "queue", "queue", p.Queue)
	}
	if p.JobKind != "" && p.Fingerprint == "" {
		add("Jobs", "jobs", "kind", p.JobKind, "queue", p.Queue)
	}
	if !p.Job.IsZero() {
		add("Example", "job", "id", p.Job.String())
	}
	if p.Kind == watch.Installation && p.Sink == "" {
		add("System", "system")
	}
	return places
}

// unshown describes the problems of a kind that are not shown, and returns the page that has them all.
func (v *visit) unshown(m watch.More) (words string, to place) {
	all := map[string]struct{ noun, label, path, only string }{
		watch.DeadLetters:        {"groups of dead letters", "Dead letters", "letters", ""},
		watch.NoHandler:          {"kinds without a handler", "Queues", "queues", ""},
		watch.LeaseLapsed:        {"kinds with lapsed leases", "Queues", "queues", ""},
		watch.Late:               {"late queues", "Queues", "queues", ""},
		watch.QueueFull:          {"queues at their limit", "Queues", "queues", ""},
		watch.QueuePaused:        {"paused queues", "Queues", "queues", ""},
		watch.KeyParked:          {"parked keys", "Keys", "keys", "parked"},
		watch.DependencyAway:     {"kinds whose dependency is unavailable", "Kinds", "kinds", ""},
		watch.ScheduleOverdue:    {"overdue schedules", "Schedules", "schedules", ""},
		watch.WorkerMissing:      {"silent dispatchers", "Workers", "workers", ""},
		watch.WorkerNotListening: {"dispatchers that are not listening", "Workers", "workers", ""},
		watch.Installation:       {"answers about the installation", "System", "system", ""},
	}[m.Kind]
	words = "and " + number(int64(m.Count)) + " more: " + all.noun
	if m.AtLeast {
		words = "and more: " + all.noun
	}
	if row := table[all.path]["GET"]; row == nil || !row.gate.admits(v.who) {
		return words, place{}
	}
	var only []string
	if all.only != "" {
		only = []string{all.only, "1"}
	}
	return words, place{all.label, string(link(all.path, only...))}
}

// place is a page that shows more.
type place struct{ label, url string }

func (s *site) now(v *visit) error {
	o, err := s.watch.Overviews.Look(v.ctx())
	if err != nil {
		return err
	}
	c, err := v.chart("", "")
	if err != nil {
		return err
	}
	return v.render(nowPage(v, o, c))
}

// examineEvery is how old the examination may be that the page of the installation shows.
const examineEvery = time.Minute

func (s *site) system(v *visit) error {
	e, err := s.watch.Examinations.Look(v.ctx(), examineEvery)
	if err != nil {
		return err
	}
	return v.render(systemPage(v, e))
}

// severities orders answers by how bad they are, the worst first.
var severities = map[doctor.Severity]int{doctor.Problem: 0, doctor.Warning: 1, doctor.OK: 2}

// worstFirst returns answers in the order in which people should read them.
func worstFirst(all []doctor.Finding) []doctor.Finding {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b doctor.Finding) int { return severities[a.Severity] - severities[b.Severity] })
	return all
}

// about returns a number of jobs, with ~ before an estimate.
func about(o operator.Overview, n int64) string {
	if o.Estimated && n > 0 {
		return "~" + number(n)
	}
	return number(n)
}

// perSecond returns how many jobs of a kind have ended per second.
func perSecond(k operator.Recent, asOf time.Time) string {
	span := asOf.Sub(k.Since).Seconds()
	if span <= 0 {
		return "–"
	}
	return strconv.FormatFloat(float64(k.Jobs)/span, 'f', 1, 64)
}

// inStatus returns the search for the jobs of a queue in one of the statuses; "" means all queues.
func inStatus(queue string, statuses ...outbox.Status) search {
	return search{queue: queue, statuses: statuses}
}

// endedSince returns the search for the jobs that a row of the latest ones counts.
func endedSince(k operator.Recent) search {
	return search{kind: k.Kind, finishedSince: instantText{k.Since.UTC().Format(time.RFC3339Nano), k.Since}}
}
