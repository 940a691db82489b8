package verify

import (
	"bytes"
	"encoding/json"
	"os"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// said is a line of a process's log, as far as we look at it.
type said struct {
	At   time.Time `json:"time"`
	Msg  string    `json:"msg"`
	Addr string    `json:"addr"`
	Job  string    `json:"job_id"`
}

// Messages of the listener's log.
const (
	listenerHears = "listener connected"
	listenerDeaf  = "listener is deaf"
)

// sayings is every time that a process logged a message since a time. The line
// that it may be writing now is not among them.
func sayings(p *child.Process, msg string, since time.Time) (found []said, err error) {
	content, err := os.ReadFile(p.Log)
	if err != nil {
		return nil, err
	}
	quoted := []byte(`"msg":"` + msg + `"`)
	for line := range bytes.Lines(content) {
		var s said
		if bytes.Contains(line, quoted) && json.Unmarshal(line, &s) == nil && s.At.After(since) {
			found = append(found, s)
		}
	}
	return found, nil
}
