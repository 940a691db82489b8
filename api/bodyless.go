package api

import (
	"bytes"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// maxNothing is how much is read of a body where none is expected.
const maxNothing = 64

// wantNoBody refuses a body that a route would ignore: a client that sends dryRun to a route without it must not find
// the act done. An empty body, white space and {} are accepted.
func (s *server) wantNoBody(w http.ResponseWriter, r *http.Request) *Problem {
	if r.Method == http.MethodGet || r.Method == http.MethodHead || r.ContentLength == 0 {
		return nil
	}
	// Some tests' connections do not support it.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.bodyTimeout()))
	text, err := io.ReadAll(io.LimitReader(r.Body, maxNothing+1))
	if err != nil {
		return bodyProblem(err, maxNothing)
	}
	if len(text) > maxNothing {
		return unwantedBody(r) // with the deadline: net/http reads the rest before it answers
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the whole body has arrived
	if said := string(bytes.Join(bytes.Fields(text), nil)); said != "" && said != "{}" {
		return unwantedBody(r)
	}
	return nil
}

// unwantedBody returns the problem with a body where none is taken.
func unwantedBody(r *http.Request) *Problem {
	return malformed.because("", Fault{Pointer: "#", Detail: "is not taken: " + r.Pattern + " has no body"})
}

// keyless maps the routes that store a job again on each repeat and accept no Idempotency-Key to advice: a client that
// sends the header relies on it.
var keyless = map[string]string{
	"/jobs/batch":           "is not taken here: give each line its own idempotencyKey",
	"/jobs/replay":          "is not taken here: every replay enqueues the jobs again",
	"/operations":           "is not taken here: every request starts another operation",
	"/schedules/{name}/run": "is not taken here: every run enqueues another job",
	"/sinks/{sink}/replays": "is not taken here: every replay publishes the events again",
}

func refuseKey(op *huma.Operation, r *http.Request) *Problem {
	if why := keyless[op.Path]; why != "" && len(r.Header.Values("Idempotency-Key")) > 0 {
		return invalidInput.because("", Fault{Header: "Idempotency-Key", Detail: why})
	}
	return nil
}
