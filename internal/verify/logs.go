package verify

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// logLine holds the fields that rows look for in the logs of workers.
type logLine struct {
	At     time.Time `json:"time"`
	Level  string    `json:"level"`
	Msg    string    `json:"msg"`
	Addr   string    `json:"addr"`
	Job    string    `json:"job_id"`
	Worker string    `json:"worker"`
	Err    string    `json:"err"`   // an error of ours
	Error  string    `json:"error"` // an error of a handler
}

// logged returns the lines of a process's log for which keep reports true. It leaves out a last line that is still
// being written.
func logged(p *child.Process, keep func(logLine) bool) (lines []logLine, err error) {
	file, err := os.Open(p.Log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for in := bufio.NewReaderSize(file, 1<<20); ; {
		text, err := in.ReadBytes('\n')
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return lines, err
		}
		var line logLine
		if json.Unmarshal(text, &line) == nil && keep(line) { // the race detector writes no JSON; Fate finds it
			lines = append(lines, line)
		}
	}
}

// saying returns a function for logged that keeps the lines with a message.
func saying(msg string) func(logLine) bool { return func(l logLine) bool { return l.Msg == msg } }

// Messages of the listener's log.
const (
	listenerHears = "listener connected"
	listenerDeaf  = "listener receives no notifications"
)

// sayings returns the lines with a message that a process has logged since a time.
func sayings(p *child.Process, msg string, since time.Time) ([]logLine, error) {
	return logged(p, func(l logLine) bool { return l.Msg == msg && l.At.After(since) })
}
