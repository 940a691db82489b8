package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// ledger is a file outside of the database that outlives the process: every line
// is one write with O_APPEND, so that processes share it and a kill -9 loses none.
type ledger struct {
	file *os.File
	name string
}

// line is what the stories read; they know it by its JSON.
type line struct {
	At      time.Time `json:"at"`
	Worker  string    `json:"worker"`
	PID     int       `json:"pid"`
	Event   string    `json:"event"` // start, end, effect, refused, stalled, acked
	Job     outbox.ID `json:"job"`
	N       int       `json:"n"`
	Do      string    `json:"do"`
	Epoch   int64     `json:"epoch"`
	Attempt int       `json:"attempt"`
	Key     string    `json:"key,omitempty"`
	Error   string    `json:"error,omitempty"` // its class; see class
	Detail  string    `json:"detail,omitempty"`
	Cause   string    `json:"cause,omitempty"` // of the handler's ended context
}

func openLedger(path, name string) (*ledger, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	return &ledger{file: file, name: name}, nil
}

func (l *ledger) close() error { return l.file.Close() }

// write does not return without having written: what is not in the ledger must
// not have happened.
func (l *ledger) write(entry line) {
	entry.At, entry.Worker, entry.PID = time.Now(), l.name, os.Getpid()
	b, err := json.Marshal(entry)
	if err == nil {
		_, err = l.file.Write(append(b, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("write to the ledger: %v", err))
	}
}

// of begins a line about a job.
func of(event string, job *outbox.Job[task]) line {
	return line{Event: event, Job: job.ID, N: job.Args.N, Do: job.Args.Do, Epoch: job.Epoch, Attempt: job.Attempt, Key: job.Args.Key}
}
