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

// A Tick identifies the schedule and the time for which a job was enqueued.
type Tick struct {
	Schedule string    // name of the schedule
	At       time.Time // when it was due, in UTC; for a job of "run now", when that was requested
}

// TickOf returns the tick of a job, and false if no schedule enqueued the job. Follow-ups and hooks of a schedule's
// jobs have no tick.
func TickOf(job *outbox.Claimed) (Tick, bool) {
	headers := job.Headers()
	at, err := time.Parse(time.RFC3339Nano, headers[headerScheduledFor])
	name, ok := headers[headerSchedule]
	return Tick{Schedule: name, At: at}, ok && err == nil
}

// tickHeaders returns the headers with those that TickOf reads added.
func tickHeaders(headers map[string]string, t Tick) map[string]string {
	all := make(map[string]string, len(headers)+2)
	for name, value := range headers {
		all[name] = value
	}
	all[headerSchedule], all[headerScheduledFor] = t.Schedule, t.At.UTC().Format(time.RFC3339Nano)
	return all
}
