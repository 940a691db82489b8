package outbox

import "encoding/json"

// Ended is what a hook is told of the job that has ended: see dispatcher.OnSuccess
// and dispatcher.OnDeath.
type Ended[T any] struct {
	ID           ID
	Kind         string
	Queue        string
	Status       Status // Succeeded, Failed or Dead
	Attempt      int    // how many it took, or spent
	Epoch        int64  // with ID, names this end: a job that a person has run again may die again
	ErrorCode    string // of the attempt that failed last; "" after a success
	ErrorMessage string

	Args    T
	Payload []byte // the job's payload if it is not a T as JSON; then Args is zero. Neither is told of more than 16 MiB
	Result  []byte // as JSON; only for dispatcher.OnResult
}

// ended is Ended as it is stored; migrations/functions/store_death_hook.sql writes it, too.
type ended struct {
	ID           ID              `json:"id"`
	Kind         string          `json:"kind"`
	Queue        string          `json:"queue"`
	Status       Status          `json:"status"`
	Attempt      int             `json:"attempt"`
	Epoch        int64           `json:"epoch"`
	ErrorCode    string          `json:"error_code"`
	ErrorMessage string          `json:"error_message"`
	Args         json.RawMessage `json:"args,omitempty"`
	Payload      []byte          `json:"payload,omitempty"`
	Result       json.RawMessage `json:"result,omitempty"`
}

// UnmarshalJSON reads what was stored. A payload that is not a T is no error: the job
// may have died of it, and its hook is to run all the same.
func (e *Ended[T]) UnmarshalJSON(text []byte) error {
	var stored ended
	if err := json.Unmarshal(text, &stored); err != nil {
		return err
	}
	*e = Ended[T]{
		ID: stored.ID, Kind: stored.Kind, Queue: stored.Queue, Status: stored.Status, Attempt: stored.Attempt, Epoch: stored.Epoch,
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
