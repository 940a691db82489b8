package backoff

import (
	"errors"
	"net/http"
	"strconv"
	"time"
)

// RetryAfter reads the header Retry-After of an answer (RFC 9110, 10.2.3): seconds or a date. What a server asks for
// is a wait between none and most; false if it is neither.
func RetryAfter(header string, now time.Time, most time.Duration) (time.Duration, bool) {
	var wait time.Duration
	// A number that is out of range counts as the largest there is.
	if seconds, err := strconv.ParseUint(header, 10, 31); err == nil || errors.Is(err, strconv.ErrRange) {
		wait = time.Duration(seconds) * time.Second
	} else if date, err := http.ParseTime(header); err == nil {
		wait = date.Sub(now)
	} else {
		return 0, false
	}
	return min(max(wait, 0), most), true
}
