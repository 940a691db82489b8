package callers

import (
	"strings"

	"github.com/posthaste-dev/posthaste/access"
)

// IsRequestID reports whether s is safe as a request id in a log and in a header.
func IsRequestID(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.IndexByte("._:/=+-", c) >= 0) {
			return false
		}
	}
	return true
}

const (
	maxReasonBytes = 300 // a JWT's claims are quoted in some
	minSecretBytes = 8   // nothing shorter is a secret, and "a" is in every reason
)

// Refusal returns, for the log, why a bearer was refused.
func Refusal(bearer string, err error) string {
	reason := strings.TrimPrefix(err.Error(), access.ErrUnauthenticated.Error()+": ")
	if len(bearer) >= minSecretBytes { // an Authenticator that is not ours may quote it
		reason = strings.ReplaceAll(reason, bearer, "REDACTED")
	}
	if len(reason) > maxReasonBytes {
		reason = strings.ToValidUTF8(reason[:maxReasonBytes], "") + "…"
	}
	return reason
}
