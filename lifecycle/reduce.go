package lifecycle

import (
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// State is the state of a job according to its events up to the N-th. The zero value is a job without any known event.
type State struct {
	Job    outbox.ID
	Tenant outbox.ID
	N      int
	Status outbox.Status
	Epoch  int64

	Queue       string
	Kind        string
	Key         string
	Priority    int
	Attempt     int
	MaxAttempts int
	LostLeases  int
	Parent      outbox.ID
	Payload     []byte // nil if its event left it out, like the result
	ContentType string
	Result      []byte
	Worker      string // the worker that runs it, or ran it when it was closed; "" for none
	Error       Error  // of the latest failed attempt
	Progress    Progress

	CreatedAt  time.Time
	RunAt      time.Time
	StartedAt  time.Time // of the latest attempt
	FinishedAt time.Time // zero while the job is open
	Deadline   time.Time
}

var (
	// ErrGap is returned by [Reduce] for an event that does not directly follow the last one of its job: events in
	// between are missing.
	ErrGap = errors.New("events are missing")
	// ErrConflict is returned by [Reduce] for an event that neither follows the last one nor repeats one: it belongs to
	// another job, gives another previous state, has the number of the last event but another state or epoch, or closes
	// the job at an earlier number. After a restore from a backup, the database gives out numbers a second time. An
	// event with such a number that leaves the same state and epoch is taken for a repeat.
	ErrConflict = errors.New("the event contradicts those before it")
)

// Reduce returns the state of a job after an event. A repeat changes nothing: an event counts if its number is above
// that of the state. The lines of logs are not kept. After a gap, it returns the state given by the newer event and an
// error that is [ErrGap]; anything that only the missing events contain, such as the payload, is absent. After a
// conflict, it returns the previous state and [ErrConflict].
func Reduce(s State, e Event) (State, error) {
	if s.N > 0 && s.Job != e.Job {
		return s, fmt.Errorf("job %s, event %s of job %s: %w", s.Job, e.Name, e.Job, ErrConflict)
	}
	if e.Name == StaleCompletionIgnored {
		return s, nil
	}
	var err error
	switch {
	case e.N == s.N && (e.Status != s.Status || e.Epoch != s.Epoch), e.N < s.N && e.Status.Closed():
		return s, fmt.Errorf("job %s is %s (epoch %d) after event %d, and by event %d (%s) it is %s (epoch %d): %w",
			e.Job, s.Status, s.Epoch, s.N, e.N, e.Name, e.Status, e.Epoch, ErrConflict)
	case e.N <= s.N:
		return s, nil
	case e.N > s.N+1:
		err = fmt.Errorf("job %s: event %d (%s) follows event %d: %w", e.Job, e.N, e.Name, s.N, ErrGap)
	case e.PreviousStatus != s.Status:
		return s, fmt.Errorf("job %s: event %d (%s) was preceded by %q, not by %q: %w", e.Job, e.N, e.Name,
			e.PreviousStatus, s.Status, ErrConflict)
	}
	if s.Status.Closed() {
		return s, fmt.Errorf("job %s is %s, and event %d (%s) follows: %w", e.Job, s.Status, e.N, e.Name, ErrConflict)
	}
	return s.after(e), err
}

// after returns the state after a change.
func (s State) after(e Event) State {
	s.Job, s.Tenant, s.N, s.Status, s.Epoch = e.Job, e.Tenant, e.N, e.Status, e.Epoch
	if e.Progress != nil {
		s.Progress = *e.Progress
	}
	s.Queue, s.Kind, s.Key, s.Attempt = e.Queue, e.Kind, e.Key, e.Attempt
	if e.Name == Progressed || e.Name == Logged {
		return s
	}
	s.LostLeases = e.LostLeases
	if e.Payload != nil || e.PayloadBytes > 0 { // a new payload replaces the old one even if the event leaves it out
		s.Payload, s.ContentType = e.Payload, e.ContentType
	}
	if e.Priority != nil {
		s.Priority = *e.Priority
	}
	if e.Error != nil {
		s.Error = *e.Error
	}
	if !e.RunAt.IsZero() {
		s.RunAt = e.RunAt
	}
	if !e.Status.Closed() || e.PreviousStatus != outbox.Running {
		s.Worker = e.Worker // "" for every event but Started
	}
	switch {
	case e.Name == Created:
		s.CreatedAt, s.MaxAttempts, s.Deadline, s.Parent = e.At, e.MaxAttempts, e.Deadline, e.Parent
	case e.Name == Started:
		s.StartedAt = e.At
	case e.Status.Closed():
		s.FinishedAt, s.Result = e.At, e.Result
	}
	return s
}
