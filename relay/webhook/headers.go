package webhook

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// headerPrefix separates a producer's headers from those with a meaning in HTTP: nobody can set Authorization or Host
// by enqueueing a job.
const headerPrefix = "Posthaste-Header-"

// setHeaders sets the headers that describe the job. It leaves out a header of the job that HTTP cannot carry, and one
// that a receiver might take for caller-service. Of names that differ in case only, the last one in byte order is sent,
// so that the caller's other headers, which are in lower case, replace what is spelled like them.
func setHeaders(header http.Header, job *outbox.Claimed) {
	contentType := job.ContentType
	if contentType == "" || !validValue(contentType) {
		contentType = "application/octet-stream"
	}
	header.Set("Content-Type", contentType)
	headers := job.Headers()
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		value := headers[name]
		if !validToken(name) || !validValue(value) || engine.PosesAsService(name) {
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
