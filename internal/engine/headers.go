package engine

import (
	"bytes"
	"encoding/json"
)

// Headers of every job of a schedule. Jobs that follow it do not have them: no schedule enqueued those.
const (
	HeaderSchedule     = "schedule"
	HeaderScheduledFor = "scheduled_for"
)

// InheritedHeaders is the headers, as JSON, of a job that follows the one that has these; nil for none.
// functions/store_death_hook.sql does the same.
func InheritedHeaders(of []byte) *string {
	if bytes.Contains(of, []byte(`"`+HeaderScheduledFor+`"`)) {
		var all map[string]json.RawMessage
		if json.Unmarshal(of, &all) == nil && all[HeaderSchedule] != nil && all[HeaderScheduledFor] != nil {
			delete(all, HeaderSchedule)
			delete(all, HeaderScheduledFor)
			if of = nil; len(all) > 0 {
				of, _ = json.Marshal(all) // of raw messages that were valid
			}
		}
	}
	if len(of) == 0 {
		return nil
	}
	return new(string(of))
}
