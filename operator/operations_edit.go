package operator

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// JobEdit lists changes to waiting jobs. A field that is zero or nil changes nothing.
//
// A job of an ordered key keeps its place in the line, whatever its time and priority; if the next one is postponed,
// those behind it wait. A job with a key is not moved to another queue, because the key's limit and order apply within
// one queue: such a job is not changed at all. Neither is a message that a sink has refused: only the relay works off
// its queue, and no job is moved into such a queue.
type JobEdit struct {
	Queue    string    `json:"queue,omitempty"`
	Priority *int      `json:"priority,omitempty"`
	RunAt    time.Time `json:"run_at,omitzero"` // a time in the past means now
}

// String returns a text like queue slow, priority -7, run_at 2027-01-31T09:00:00Z.
func (e JobEdit) String() string {
	var parts []string
	if e.Queue != "" {
		parts = append(parts, "queue "+e.Queue)
	}
	if e.Priority != nil {
		parts = append(parts, "priority "+strconv.Itoa(*e.Priority))
	}
	if !e.RunAt.IsZero() {
		parts = append(parts, "run_at "+e.RunAt.UTC().Format(time.RFC3339Nano))
	}
	return strings.Join(parts, ", ")
}

func (n OperationSpec) validateEdit() error {
	e := n.Edit
	switch nothing := e == (JobEdit{}); {
	case n.Act != EditJobs && !nothing:
		return invalid.Field("OperationSpec.Edit", "goes with %s only", EditJobs)
	case n.Act != EditJobs:
		return nil
	case nothing:
		return invalid.Field("OperationSpec.Edit", "changes nothing: want a queue, a priority or a time")
	}
	var errs []error
	if e.Priority != nil && (*e.Priority < math.MinInt16 || *e.Priority > math.MaxInt16) {
		errs = append(errs, invalid.Field("JobEdit.Priority", "is %d, want %d to %d", *e.Priority, math.MinInt16,
			math.MaxInt16))
	}
	if year := e.RunAt.UTC().Year(); !e.RunAt.IsZero() && (year < 1970 || year > 9999) {
		errs = append(errs, invalid.Field("JobEdit.RunAt", "is in the year %d, want 1970 to 9999", year))
	}
	if e.Queue != "" && n.Jobs.Key != "" {
		errs = append(errs, invalid.Field("JobEdit.Queue",
			"is not for jobs of a key: its limit and its order hold within a queue"))
	}
	if fault := engine.QueueFault(e.Queue); e.Queue != "" && fault != "" {
		errs = append(errs, invalid.Field("JobEdit.Queue", "%s", fault))
	}
	return errors.Join(errs...)
}

// editJobs edits jobs that still wait in the state that the operation has counted, and returns how many it has edited.
func (o *Operator) editJobs(ctx context.Context, operation pgtype.UUID, edit JobEdit, statuses []outbox.Status,
	ids []pgtype.UUID,
) (int, error) {
	params := sqlgen.EditJobsParams{
		OperationID: operation, Ids: ids, RunAt: timeOrAny(edit.RunAt),
		Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	}
	if edit.Queue != "" {
		params.Queue = &edit.Queue
	}
	if edit.Priority != nil {
		params.Priority = new(int16(*edit.Priority))
	}
	for _, s := range statuses {
		params.Among = append(params.Among, string(s))
	}
	edited, err := o.db.EditJobs(ctx, params)
	return len(edited), err
}
