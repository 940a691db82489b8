package engine

import (
	"bytes"
	"encoding/json"
)

// Headers of a job that record who asked for it (outbox.Caller). The trace's headers are traceparent and tracestate, as
// W3C defines them.
const (
	HeaderService       = "caller-service"
	HeaderUser          = "caller-user"
	HeaderCorrelationID = "correlation-id"
)

// Headers of every job of a schedule. Follow-ups of such a job do not have them, because no schedule enqueued those.
const (
	HeaderSchedule     = "schedule"
	HeaderScheduledFor = "scheduled_for"
)

// InheritedHeaders returns the headers, as JSON, that a follow-up inherits from a job with the headers of; nil for
// none. functions/store_death_hook.sql does the same.
func InheritedHeaders(of []byte) *string {
	if bytes.Contains(of, []byte(`"`+HeaderScheduledFor+`"`)) {
		var all map[string]json.RawMessage
		if json.Unmarshal(of, &all) == nil && all[HeaderSchedule] != nil && all[HeaderScheduledFor] != nil {
			delete(all, HeaderSchedule)
			delete(all, HeaderScheduledFor)
			if of = nil; len(all) > 0 {
				of, _ = json.Marshal(all) // raw messages that were valid
			}
		}
	}
	if len(of) == 0 {
		return nil
	}
	return new(string(of))
}
