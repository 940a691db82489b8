package rpc

import (
	"encoding/base64"
	"encoding/json"
	"mime"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// job is a job in the form that is sent. Its service is the queue, and its type the kind.
type job struct {
	ID          string          `json:"id"`
	Service     string          `json:"service"`
	Type        string          `json:"type"`
	State       string          `json:"state"`
	Payload     json.RawMessage `json:"payload"` // null in lists, and without payload.read
	Result      json.RawMessage `json:"result,omitempty"`
	CreatedAt   time.Time       `json:"createdAt"`
	UpdatedAt   time.Time       `json:"updatedAt"`
	StartedAt   time.Time       `json:"startedAt,omitzero"`
	CompletedAt time.Time       `json:"completedAt,omitzero"`
	Tries       int             `json:"tries"`
	MaxTries    int             `json:"maxTries"`
	LastError   string          `json:"lastError,omitempty"`
	Deadline    time.Time       `json:"deadline,omitzero"`
	Concurrency *concurrency    `json:"concurrency,omitempty"`
	Progress    *progress       `json:"progress,omitempty"`
	Logs        []logEntry      `json:"logs,omitempty"`
}

type concurrency struct {
	Key            string    `json:"key"`
	KeyHash        string    `json:"keyHash"`
	LeaseExpiresAt time.Time `json:"leaseExpiresAt,omitzero"`
}

type progress struct {
	Message string `json:"message,omitempty"`
	Current int64  `json:"current"`
	Total   int64  `json:"total,omitempty"`
}

type logEntry struct {
	Timestamp time.Time `json:"timestamp"`
	Level     string    `json:"level"`
	Message   string    `json:"message"`
}

// states maps statuses to the form that is sent; docs/reference/states.md explains each.
var states = map[outbox.Status]string{
	outbox.Created: "pending", outbox.Pending: "pending", outbox.Blocked: "pending",
	outbox.Running: "active", outbox.Retrying: "retry", outbox.Succeeded: "completed",
	outbox.Failed: "failed", outbox.Dead: "dead", outbox.Dismissed: "dismissed",
	outbox.Cancelled: "cancelled", outbox.Expired: "expired", outbox.Skipped: "skipped", outbox.Stale: "stale",
}

func stateOf(s outbox.Status) string { return states[s] }

// statusesOf returns the statuses that a state stands for, or none if there is no such state.
func statusesOf(state string) (all []outbox.Status) {
	for status, sent := range states {
		if sent == state {
			all = append(all, status)
		}
	}
	slices.Sort(all)
	return all
}

// view returns what the caller may see of a job.
func view(who access.Principal, j operator.Job) job {
	v := job{
		ID: j.ID.String(), Service: j.Queue, Type: j.Kind, State: stateOf(j.Status), Payload: json.RawMessage("null"),
		CreatedAt: utc(j.CreatedAt), UpdatedAt: utc(updatedAt(j)), StartedAt: utc(j.StartedAt),
		CompletedAt: utc(j.FinishedAt),
		Tries:       j.Attempt, MaxTries: j.MaxAttempts, LastError: j.ErrorCode, Deadline: utc(j.Deadline),
	}
	if who.Can(access.AdminRead) && j.ErrorMessage != "" {
		v.LastError = j.ErrorMessage
	}
	if j.Key != "" {
		v.Concurrency = &concurrency{Key: j.Key, KeyHash: engine.KeyHash(j.Key), LeaseExpiresAt: utc(j.LeaseExpiresAt)}
	}
	if who.Can(access.PayloadRead) && j.Payload != nil {
		v.Payload = document(j.Payload, j.ContentType)
	}
	return v
}

// updatedAt returns the time of a job's last change that has one: the database keeps no time for others, such as a
// release.
func updatedAt(j operator.Job) time.Time {
	last := j.CreatedAt
	for _, at := range []time.Time{j.StartedAt, j.CancelRequestedAt, j.FinishedAt} {
		if at.After(last) {
			last = at
		}
	}
	for _, a := range j.Attempts {
		if a.FinishedAt.After(last) {
			last = a.FinishedAt
		}
	}
	return last
}

// document returns bytes as JSON: unchanged if they are valid JSON, or otherwise as an object that contains them.
func document(b []byte, contentType string) json.RawMessage {
	if kind, _, _ := mime.ParseMediaType(contentType); kind == "application/json" && json.Valid(b) {
		return b
	}
	// It contains only strings, and cannot fail.
	other, _ := json.Marshal(
		map[string]string{"contentType": contentType, "base64": base64.StdEncoding.EncodeToString(b)})
	return other
}

// utc returns a time in the form that is shown.
func utc(t time.Time) time.Time { return operator.Presentable(t) }
