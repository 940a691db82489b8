package backoff

import (
	"errors"
	"net/http"
	"strconv"
	"time"
)

// RetryAfter parses the header Retry-After of a response (RFC 9110, 10.2.3): seconds or a date. It limits the wait to
// between zero and most, and reports false if the header is neither.
func RetryAfter(header string, now time.Time, most time.Duration) (time.Duration, bool) {
	var wait time.Duration
	// A number that is out of range counts as the largest possible one.
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil || errors.Is(err, strconv.ErrRange) {
		wait = time.Duration(seconds) * time.Second
	} else if date, err := http.ParseTime(header); err == nil {
		wait = date.Sub(now)
	} else {
		return 0, false
	}
	return min(max(wait, 0), most), true
}
