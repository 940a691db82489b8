// Package ledger is the record of a fault test outside the database under test. Processes append a line to files for
// everything they do; the package also reads these files.
//
// A line is one write(2) with O_APPEND: processes may share a file, and a kill -9 loses at most the line that was being
// written.
package ledger

import (
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Events of a worker.
const (
	Start   = "start"   // an attempt begins
	End     = "end"     // the handler returned; Error is empty if it succeeded
	Effect  = "effect"  // a transaction with the effect was seen to commit
	Refused = "refused" // such a transaction was refused: the lease is lost
	Failed  = "failed"  // such a transaction failed, and certainly did not commit
	Unknown = "unknown" // the connection broke at COMMIT: the transaction may have committed
	Stalled = "stalled" // a handler waits for SIGCONT
)

// Events of a producer; Key names the business row. Producers also write [Failed] and [Unknown].
const (
	Attempted = "attempted" // a transaction begins
	Acked     = "acked"     // its commit was acknowledged
)

// Published is written by a sink about a message that it has accepted: Key is the body, Do the sink, Detail the id and
// Epoch the position.
const Published = "published"

// Traced calls of a worker to the database: Do is the statement and N the microseconds.
const (
	Called    = "called"    // the duration of a call
	Overdue   = "overdue"   // a call returned so long after the end of its context
	Unbounded = "unbounded" // a call has no deadline
)

// Entry is one line.
type Entry struct {
	At      time.Time `json:"at"`             // the machine's time, even if the writer's clock is off
	Clock   time.Time `json:"clock,omitzero"` // the writer's, if it is not the machine's
	Worker  string    `json:"worker"`         // name of the process that writes, also of a producer
	PID     int       `json:"pid"`
	Event   string    `json:"event"`
	Job     outbox.ID `json:"job,omitzero"`
	N       int       `json:"n,omitempty"`
	Do      string    `json:"do,omitempty"`
	Epoch   int64     `json:"epoch,omitempty"`
	Attempt int       `json:"attempt,omitempty"`
	Key     string    `json:"key,omitempty"`
	Error   string    `json:"error,omitempty"` // its class, in one word
	Detail  string    `json:"detail,omitempty"`
	Cause   string    `json:"cause,omitempty"` // of the handler's ended context
}

// Writer appends to a ledger. It is safe for concurrent use.
type Writer struct {
	file *os.File
	name string
}

// Open opens a ledger, and creates the file if there is none. The process is called name in its lines.
func Open(path, name string) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	return &Writer{file: file, name: name}, nil
}

// Name returns the name of the process in its lines.
func (w *Writer) Name() string { return w.name }

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }

// Write appends the entries, in one write, and returns only once they are written: what is not in the ledger must not
// have happened. It panics if it cannot write.
func (w *Writer) Write(entries ...Entry) {
	var lines []byte
	for _, e := range entries {
		e.At, e.Clock = now()
		e.Worker, e.PID = w.name, os.Getpid()
		line, err := json.Marshal(e)
		if err != nil {
			panic(fmt.Sprintf("encode a line of the ledger: %v", err))
		}
		lines = append(append(lines, line...), '\n')
	}
	if _, err := w.file.Write(lines); err != nil {
		panic(fmt.Sprintf("write to the ledger: %v", err))
	}
}

// now returns the time of the machine, and the process's clock if it differs: a row of the scorecard sets that clock
// off, which affects time.Now, but not gettimeofday.
func now() (at, clock time.Time) {
	clock = time.Now()
	var tv syscall.Timeval
	if err := syscall.Gettimeofday(&tv); err != nil {
		return clock, time.Time{}
	}
	if at = time.Unix(int64(tv.Sec), int64(tv.Usec)*1000); clock.Sub(at).Abs() > time.Second {
		return at, clock
	}
	return clock, time.Time{}
}
