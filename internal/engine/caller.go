package engine

import "maps"

// Caller is an outbox.Caller, to which it can be converted.
type Caller struct{ Service, User, CorrelationID string }

// AddTo returns headers together with the caller's. It overrides no header, and does not change the map.
func (c Caller) AddTo(headers map[string]string) map[string]string {
	if c == (Caller{}) {
		return headers
	}
	added := make(map[string]string, len(headers)+3)
	for name, value := range map[string]string{HeaderService: c.Service, HeaderUser: c.User, HeaderCorrelationID: c.CorrelationID} {
		if value != "" {
			added[name] = value
		}
	}
	maps.Copy(added, headers)
	return added
}
