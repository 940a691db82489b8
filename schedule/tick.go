package schedule

import (
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	headerSchedule     = engine.HeaderSchedule
	headerScheduledFor = engine.HeaderScheduledFor
)

// Tick is what a schedule's job was enqueued for.
type Tick struct {
	Schedule string    // its name
	At       time.Time // when it was due, in UTC. For a job of "run now", when that was said
}

// TickOf returns the tick of a job; false for one that no schedule enqueued: the follow-ups and hooks of its jobs are
// such ones.
func TickOf(job *outbox.Claimed) (Tick, bool) {
	headers := job.Headers()
	at, err := time.Parse(time.RFC3339Nano, headers[headerScheduledFor])
	name, ok := headers[headerSchedule]
	return Tick{Schedule: name, At: at}, ok && err == nil
}

// tickHeaders adds what TickOf reads.
func tickHeaders(headers map[string]string, t Tick) map[string]string {
	all := make(map[string]string, len(headers)+2)
	for name, value := range headers {
		all[name] = value
	}
	all[headerSchedule], all[headerScheduledFor] = t.Schedule, t.At.UTC().Format(time.RFC3339Nano)
	return all
}
