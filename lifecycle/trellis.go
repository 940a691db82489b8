package lifecycle

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// These headers of a message of the preset trellis carry what its body has no fields for.
const (
	HeaderN     = "job-n"
	HeaderEpoch = "job-epoch"
)

// trellis is the body of a message under the preset trellis: JobEventWire of Trellis.
type trellis struct {
	JobID   outbox.ID `json:"jobId"`
	Context struct {
		RequestID   string `json:"requestId"`
		TraceID     string `json:"traceId"`
		Traceparent string `json:"traceparent"`
		Tracestate  string `json:"tracestate,omitempty"`
	} `json:"context"`
	Service       string              `json:"service"`
	JobType       string              `json:"jobType"`
	EventType     Name                `json:"eventType"`
	State         string              `json:"state"`
	PreviousState string              `json:"previousState,omitempty"`
	Tries         int                 `json:"tries"`
	Error         string              `json:"error,omitempty"`
	Progress      *trellisProgress    `json:"progress,omitempty"`
	Logs          []trellisLine       `json:"logs,omitempty"`
	Payload       json.RawMessage     `json:"payload,omitempty"`
	Result        json.RawMessage     `json:"result,omitempty"`
	Deadline      *time.Time          `json:"deadline,omitempty"`
	Concurrency   *trellisConcurrency `json:"concurrency,omitempty"`
	Timestamp     time.Time           `json:"timestamp"`
}

type trellisProgress struct {
	Message string `json:"message,omitempty"`
	Current int64  `json:"current,omitempty"`
	Total   int64  `json:"total,omitempty"`
}

type trellisLine struct {
	Timestamp time.Time `json:"timestamp"`
	Level     string    `json:"level"`
	Message   string    `json:"message"`
}

type trellisConcurrency struct {
	Key     string `json:"key"`
	KeyHash string `json:"keyHash"`
}

// traceParent matches a header traceparent of W3C Trace Context; a trace id of zeros is invalid, too.
var traceParent = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}$`)

// trellisStates maps the states that have other names in Trellis. To Trellis, a held or blocked job is pending.
var trellisStates = map[outbox.Status]string{
	outbox.Created: "pending", outbox.Blocked: "pending", outbox.Running: "active", outbox.Retrying: "retry",
	outbox.Succeeded: "completed",
}

func trellisState(s outbox.Status) string {
	if other, ok := trellisStates[s]; ok {
		return other
	}
	return string(s)
}

// EncodeTrellis returns the body of an event in Trellis's form, and the headers of its message. It derives them from
// the job's own headers: those of its trace and its correlation id. A job without a trace gets one that is made from
// its id.
func EncodeTrellis(e Event, headers map[string]string) (body []byte, own map[string]string, err error) {
	w := trellis{
		JobID: e.Job, Service: e.Queue, JobType: e.Kind, EventType: e.Name, State: trellisState(e.Status),
		PreviousState: trellisState(e.PreviousStatus),
		Tries:         e.Attempt, Payload: asJSON(e.Payload), Result: asJSON(e.Result), Timestamp: e.At.UTC(),
	}
	trace, parent := hex.EncodeToString(e.Job[:]), headers["traceparent"]
	if m := traceParent.FindStringSubmatch(parent); m != nil && strings.Trim(m[1], "0") != "" {
		trace = m[1]
	} else {
		parent = "00-" + trace + "-" + trace[16:] + "-00"
	}
	w.Context.RequestID, w.Context.TraceID, w.Context.Traceparent, w.Context.Tracestate = headers["correlation-id"],
		trace, parent, headers["tracestate"]
	if w.Context.RequestID == "" {
		w.Context.RequestID = e.Job.String()
	}
	if e.Error != nil {
		w.Error = e.Error.Code + ": " + e.Error.Message
	}
	if p := e.Progress; p != nil {
		w.Progress = &trellisProgress{p.Message, p.Current, p.Total}
	}
	for _, line := range e.Lines {
		w.Logs = append(w.Logs, trellisLine{line.At.UTC(), trellisLevel(line.Level), line.Message})
	}
	if !e.Deadline.IsZero() {
		w.Deadline = new(e.Deadline.UTC())
	}
	if e.Key != "" {
		w.Concurrency = &trellisConcurrency{e.Key, engine.KeyHash(e.Key)}
	}
	own = map[string]string{
		"request-id": w.Context.RequestID, "traceparent": parent, HeaderN: strconv.Itoa(e.N),
		HeaderEpoch: strconv.FormatInt(e.Epoch, 10),
	}
	if w.Context.Tracestate != "" {
		own["tracestate"] = w.Context.Tracestate
	}
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	err = to.Encode(w)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), own, err
}

// asJSON returns bytes that are not JSON as a base64 string, and JSON unchanged.
func asJSON(b []byte) json.RawMessage {
	if b == nil || json.Valid(b) {
		return b
	}
	text, _ := json.Marshal(b) // cannot fail for bytes
	return text
}

// trellisLevel maps a level to one of the three that Trellis has.
func trellisLevel(level string) string {
	switch level = strings.ToLower(level); {
	case strings.HasPrefix(level, "warn"):
		return "warn"
	case strings.HasPrefix(level, "error"):
		return "error"
	}
	return "info"
}

// DecodeTrellis decodes a message of the preset trellis. Where Trellis has fewer states, it returns those: held and
// blocked jobs are pending.
func DecodeTrellis(body []byte, header func(name string) string) (Event, error) {
	var w trellis
	if err := json.Unmarshal(body, &w); err != nil {
		return Event{}, fmt.Errorf("decode an event of a job: %w", err)
	}
	n, err := strconv.Atoi(header(HeaderN))
	epoch, epochErr := strconv.ParseInt(header(HeaderEpoch), 10, 64)
	if err := errors.Join(err, epochErr); err != nil {
		return Event{}, fmt.Errorf("decode an event of job %s: headers %s and %s: %w", w.JobID, HeaderN, HeaderEpoch,
			err)
	}
	if w.JobID.IsZero() || w.EventType == "" || n < 1 {
		return Event{}, errors.New("decode an event of a job: it has no jobId, eventType or number")
	}
	e := Event{
		Job: w.JobID, Name: w.EventType, N: n, PreviousStatus: fromTrellis(w.PreviousState), Status: fromTrellis(w.State),
		Epoch: epoch, Attempt: w.Tries,
		At: w.Timestamp, Queue: w.Service, Kind: w.JobType, Payload: w.Payload, Result: w.Result,
	}
	if w.Payload != nil {
		e.ContentType = "application/json"
	}
	if w.Concurrency != nil {
		e.Key = w.Concurrency.Key
	}
	if w.Deadline != nil {
		e.Deadline = *w.Deadline
	}
	if code, message, ok := strings.Cut(w.Error, ": "); ok {
		e.Error = &Error{code, message}
	}
	if p := w.Progress; p != nil {
		e.Progress = &Progress{Current: p.Current, Total: p.Total, Message: p.Message, At: w.Timestamp}
	}
	for _, line := range w.Logs {
		e.Lines = append(e.Lines, Line{At: line.Timestamp, Level: line.Level, Message: line.Message})
	}
	return e, nil
}

func fromTrellis(state string) outbox.Status {
	for ours, theirs := range trellisStates {
		if theirs == state && theirs != "pending" {
			return ours
		}
	}
	return outbox.Status(state)
}
