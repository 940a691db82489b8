package console

import (
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// otherAct is an act of somebody else on jobs that an operation was about.
type otherAct struct {
	actor, act, request string
	jobs                int
}

// previewedFor is how long before an act on open jobs its preview may have been made.
const previewedFor = time.Hour

// others returns who has acted since the preview on jobs that the operation was about, and on which it has not acted
// itself, the latest first: of the newest 200 acts, those on jobs of its queue, kind and key. What others had done
// before the operation began is not counted in it.
func (v *visit) others(o operator.Operation) (all []otherAct, err error) {
	f := operator.AuditFilter{
		Since: o.Filter.FailedUntil, Until: o.FinishedAt, Tenant: v.tenant(), Queue: o.Filter.Queue + o.Jobs.Queue,
		Limit: operator.MaxLimit,
	}
	if f.Since.IsZero() {
		f.Since = o.StartedAt.Add(-previewedFor)
	}
	entries, err := v.operator.Audit(v.ctx(), f)
	if err != nil {
		return nil, err
	}
	own := map[outbox.ID]bool{}
	for _, e := range entries {
		own[e.JobID] = own[e.JobID] || e.RequestID == o.RequestID
	}
	var wanted []operator.Wanted
	for _, e := range entries {
		if !e.JobID.IsZero() && !own[e.JobID] {
			wanted = append(wanted, operator.Wanted{ID: e.JobID, Tenant: v.tenant()})
		}
	}
	found, err := v.operator.Find(v.ctx(), wanted)
	if err != nil {
		return nil, err
	}
	meant := map[outbox.ID]bool{}
	for _, j := range found {
		kind, key := o.Filter.Kind+o.Jobs.Kind, o.Filter.Key+o.Jobs.Key
		meant[j.ID] = (kind == "" || j.Kind == kind) && (key == "" || j.Key == key)
	}
	at := map[otherAct]int{}
	for _, e := range entries {
		one := otherAct{actor: e.Actor, act: e.Act, request: e.RequestID}
		if !meant[e.JobID] {
			continue
		}
		if _, known := at[one]; !known {
			at[one] = len(all)
			all = append(all, one)
		}
		all[at[one]].jobs++
	}
	return all, nil
}
