package engine

import (
	"maps"
	"strings"
	"unicode"
)

// Caller is an outbox.Caller, to which it can be converted.
type Caller struct{ Service, User, CorrelationID string }

// AddTo returns headers together with the caller's. It overrides no header, and does not change the map.
func (c Caller) AddTo(headers map[string]string) map[string]string {
	if c == (Caller{}) {
		return headers
	}
	added := make(map[string]string, len(headers)+3)
	for name, value := range map[string]string{
		HeaderService: c.Service, HeaderUser: c.User,
		HeaderCorrelationID: c.CorrelationID,
	} {
		if value != "" {
			added[name] = value
		}
	}
	maps.Copy(added, headers)
	return added
}

// PosesAsService reports whether name is another spelling of caller-service. A receiver that ignores the case of names,
// or that sees each character except letters and digits as _, as CGI does, takes its value for the service's name.
func PosesAsService(name string) bool {
	folded := strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return r
		}
		return '-'
	}, name)
	return name != HeaderService && strings.EqualFold(folded, HeaderService)
}
