package api

import (
	"fmt"

	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

// ChangeFilter selects the changes that a stream sends.
type ChangeFilter struct {
	Kind   string   `query:"kind" maxLength:"128"`
	Queue  string   `query:"queue" maxLength:"128"`
	Status []string `query:"status" nullable:"false" enum:"created,pending,blocked,running,retrying,failed,dead,succeeded,cancelled,expired,skipped,stale,dismissed" doc:"Only changes to one of these statuses, separated by commas"`
	Job    []string `query:"job" nullable:"false" maxItems:"100" doc:"Ids of jobs, separated by commas"`
}

// read parses the filter for the hub.
func (f ChangeFilter) read() (watch.Filter, error) {
	w := watch.Filter{Kind: f.Kind, Queue: f.Queue}
	for _, status := range f.Status {
		if w.Statuses == nil {
			w.Statuses = map[outbox.Status]bool{}
		}
		w.Statuses[outbox.Status(status)] = true
	}
	for i, text := range f.Job {
		id, err := outbox.ParseID(text)
		if err != nil {
			return w, invalidInput.because("", Fault{Parameter: fmt.Sprintf("job[%d]", i), Detail: "is no id"})
		}
		if w.Jobs == nil {
			w.Jobs = map[outbox.ID]bool{}
		}
		w.Jobs[id] = true
	}
	return w, nil
}

// JobChange is what GET /changes sends about a job: its present state.
type JobChange = watch.JobChange
