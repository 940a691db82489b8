package console

import (
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/fingerprint"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// otherAct is an act of somebody else on jobs that an operation was about.
type otherAct struct {
	actor, act string
	request    string // of the acts; "" if they are of several
	jobs       int64
}

// oldestPreview is how long before an operation the count in its preview may be. An older instant in its filter is one
// that a person has set.
const oldestPreview = time.Hour

// others returns who has acted on jobs that the operation was about, and on which it has not acted itself, the latest
// first: on those with which it began, but on no more of them than it has left alone; and on letters between the count
// in its preview and its beginning.
func (v *visit) others(o operator.Operation) (all []otherAct, err error) {
	since := o.StartedAt
	if counted := o.Filter.FailedUntil; counted.After(since.Add(-oldestPreview)) {
		since = counted
	}
	if o.Passed == 0 && !since.Before(o.StartedAt) {
		return nil, nil
	}
	acts, err := v.operator.OthersActs(v.ctx(), o, since)
	if err != nil {
		return nil, err
	}
	acts = slices.DeleteFunc(acts, func(a operator.OthersAct) bool { return !concerns(o, a) })
	wanted := make([]operator.Wanted, len(acts))
	for i, a := range acts {
		wanted[i] = operator.Wanted{ID: a.JobID, Tenant: v.tenant()}
	}
	jobs, err := v.operator.Find(v.ctx(), wanted)
	if err != nil {
		return nil, err
	}
	left := o.Passed
	for i, a := range acts {
		again := slices.ContainsFunc(acts[:i], func(b operator.OthersAct) bool { return b.JobID == a.JobID })
		begun := !a.At.Before(o.StartedAt)
		if again || begun && left == 0 || !meantJob(o, jobs[i]) {
			continue
		}
		if begun {
			left--
		}
		at := slices.IndexFunc(all, func(b otherAct) bool { return b.actor == a.Actor && b.act == a.Act })
		if at < 0 {
			at, all = len(all), append(all, otherAct{actor: a.Actor, act: a.Act, request: a.RequestID})
		}
		if all[at].jobs++; all[at].request != a.RequestID {
			all[at].request = ""
		}
	}
	return all, nil
}

// concerns reports whether an act was on a job in a state in which the operation would have acted on it.
func concerns(o operator.Operation, a operator.OthersAct) bool {
	if o.Act.OnOpenJobs() {
		return slices.Contains(o.Act.Possible(), a.Status) &&
			(len(o.Jobs.Statuses) == 0 || slices.Contains(o.Jobs.Statuses, a.Status))
	}
	return (a.Status == outbox.Failed || a.Status == outbox.Dead) &&
		(o.Filter.Status == "" || o.Filter.Status == a.Status) &&
		(o.Filter.ErrorCode == "" || o.Filter.ErrorCode == a.ErrorCode)
}

// meantJob reports whether the operation was about a job, as far as the job still shows it. Its last error is the one
// of which it was a dead letter, until it fails again.
func meantJob(o operator.Operation, j operator.Job) bool {
	f, open := o.Filter, o.Jobs
	since, until := f.CreatedSince, f.CreatedUntil
	if o.Act.OnOpenJobs() {
		since, until = open.CreatedSince, open.CreatedUntil
	}
	kind, key := f.Kind+open.Kind, f.Key+open.Key
	return !j.ID.IsZero() && (kind == "" || j.Kind == kind) && (key == "" || j.Key == key) &&
		!j.CreatedAt.Before(since) && (until.IsZero() || j.CreatedAt.Before(until)) &&
		(f.Fingerprint == "" || f.Fingerprint == fingerprint.Of(j.Kind, j.ErrorCode, j.ErrorMessage))
}
