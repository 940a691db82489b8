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

// logLine is what rows look for in the logs of workers.
type logLine struct {
	At     time.Time `json:"time"`
	Msg    string    `json:"msg"`
	Addr   string    `json:"addr"`
	Job    string    `json:"job_id"`
	Worker string    `json:"worker"`
	Err    string    `json:"err"`   // of ours
	Error  string    `json:"error"` // of a handler
}

// logged reads the lines of a process's log that keep chooses. A last line that is
// being written is left for the next time.
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

// saying keeps the lines with a message.
func saying(msg string) func(logLine) bool { return func(l logLine) bool { return l.Msg == msg } }

// Messages of the listener's log.
const (
	listenerHears = "listener connected"
	listenerDeaf  = "listener is deaf"
)

// sayings is every time that a process logged a message since a time.
func sayings(p *child.Process, msg string, since time.Time) ([]logLine, error) {
	return logged(p, func(l logLine) bool { return l.Msg == msg && l.At.After(since) })
}
