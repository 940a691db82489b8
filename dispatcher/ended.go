package dispatcher

import (
	"encoding/json"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Ended describes a job that has ended to its hook: see [OnSuccess] and [OnDeath].
type Ended[T any] struct {
	ID           outbox.ID
	Kind         string
	Queue        string
	Status       outbox.Status // Succeeded, Failed or Dead
	Attempt      int           // attempts that it took, or spent
	Epoch        int64         // identifies this end together with ID: a job that was run again may die again
	ErrorCode    string        // of the attempt that failed last; "" after a success
	ErrorMessage string

	Args    T
	Payload []byte // the job's payload if it is not a T as JSON; then Args is zero. Both are empty beyond 16 MiB
	Result  []byte // as JSON; only for [OnResult]
}

// ended is Ended in its stored form; migrations/functions/store_death_hook.sql writes it, too.
type ended struct {
	ID           outbox.ID       `json:"id"`
	Kind         string          `json:"kind"`
	Queue        string          `json:"queue"`
	Status       outbox.Status   `json:"status"`
	Attempt      int             `json:"attempt"`
	Epoch        int64           `json:"epoch"`
	ErrorCode    string          `json:"error_code"`
	ErrorMessage string          `json:"error_message"`
	Args         json.RawMessage `json:"args,omitempty"`
	Payload      []byte          `json:"payload,omitempty"`
	Result       json.RawMessage `json:"result,omitempty"`
}

// UnmarshalJSON reads the stored form. A payload that is not a T is no error: the job may have died of it, and its hook
// should run all the same.
func (e *Ended[T]) UnmarshalJSON(text []byte) error {
	var stored ended
	if err := json.Unmarshal(text, &stored); err != nil {
		return err
	}
	*e = Ended[T]{
		ID: stored.ID, Kind: stored.Kind, Queue: stored.Queue, Status: stored.Status, Attempt: stored.Attempt,
		Epoch:     stored.Epoch,
		ErrorCode: stored.ErrorCode, ErrorMessage: stored.ErrorMessage, Payload: stored.Payload, Result: stored.Result,
	}
	if stored.Payload != nil {
		return nil
	}
	var args T
	if err := json.Unmarshal(stored.Args, &args); err != nil {
		e.Payload = stored.Args
		return nil
	}
	e.Args = args
	return nil
}

// hookRow builds the job that calls the hook of a job that succeeds.
func hookRow(job *outbox.Claimed, kind string, withResult bool) engine.Row {
	end := ended{
		ID: job.ID, Kind: job.Kind, Queue: job.Queue, Status: outbox.Succeeded, Attempt: job.Attempt,
		Epoch: job.Epoch,
	}
	switch {
	case engine.InternalOf(job).Seal != nil: // what was sealed is not stored in the clear
	case job.ContentType == engine.ContentJSON && json.Valid(job.Payload):
		end.Args = job.Payload
	default:
		end.Payload = job.Payload
	}
	if withResult && json.Valid(job.Result) {
		end.Result = job.Result
	}
	payload, err := json.Marshal(end)
	if err != nil { // two raw messages that are valid, and plain types
		panic(fmt.Sprintf("dispatcher: encode the end of job %s: %v", job.ID, err))
	}
	row := engine.Row{
		ID: pgvalue.UUID(outbox.NewID()), TenantID: pgvalue.UUID(job.Tenant), Queue: job.Queue, Kind: kind,
		Priority:    int16(job.Priority),
		MaxAttempts: engine.DefaultMaxAttempts, Payload: payload, ContentType: engine.ContentJSON,
	}
	row.Headers = engine.InheritedHeaders(job.RawHeaders)
	return row
}
