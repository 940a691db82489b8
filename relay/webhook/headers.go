package webhook

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/posthaste-dev/posthaste/outbox"
)

// headerPrefix separates a producer's headers from those with a meaning in HTTP: nobody can set Authorization or Host
// by enqueueing a job.
const headerPrefix = "Posthaste-Header-"

// setHeaders sets the headers that describe the job. It leaves out a header of the job that HTTP cannot carry.
func setHeaders(header http.Header, job *outbox.Claimed) {
	contentType := job.ContentType
	if contentType == "" || !validValue(contentType) {
		contentType = "application/octet-stream"
	}
	header.Set("Content-Type", contentType)
	for name, value := range job.Headers() {
		if !validToken(name) || !validValue(value) {
			continue
		}
		switch lower := strings.ToLower(name); lower {
		case "traceparent", "tracestate":
			header.Set(lower, value)
		default:
			header.Set(headerPrefix+name, value)
		}
	}
	header.Set("Posthaste-Job-Id", job.ID.String())
	header.Set("Posthaste-Kind", job.Kind)
	header.Set("Posthaste-Attempt", strconv.Itoa(job.Attempt))
	header.Set("Posthaste-Epoch", strconv.FormatInt(job.Epoch, 10))
	header.Set(headerIdempotencyKey, job.ID.String())
}

// validToken reports whether s can be a header's name (RFC 9110, 5.6.2).
func validToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		letterOrDigit := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letterOrDigit && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// validValue reports whether s can be a header's value, without control characters except the tab.
func validValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
