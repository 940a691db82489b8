package download

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A validator distinguishes one version of a file from another.
type validator struct {
	ETag         string `json:"etag,omitempty"`
	LastModified string `json:"last_modified,omitempty"` // set only if it may be used
}

// strongAfter is how much younger than the file a response must be for the file's date to distinguish its versions. RFC
// 9110, 8.8.2.2, asks for a second if one clock made both dates, and for more if that is not known.
const strongAfter = time.Minute

func newValidator(h http.Header) validator {
	v := validator{ETag: h.Get("ETag")}
	modified, err := http.ParseTime(h.Get("Last-Modified"))
	if err != nil || v.ETag != "" { // an entity tag, even a weak one, excludes the date: RFC 9110, 13.1.5
		return v
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil && date.Sub(modified) >= strongAfter {
		v.LastModified = h.Get("Last-Modified")
	}
	return v
}

// ifRange returns the condition for continuing, or "" if no strong validator is known.
func (v validator) ifRange() string {
	if v.ETag != "" {
		if strings.HasPrefix(v.ETag, `"`) && strings.HasSuffix(v.ETag, `"`) && len(v.ETag) >= 2 { // W/"…" is weak
			return v.ETag
		}
		return ""
	}
	return v.LastModified
}

// contradicted reports whether a response belongs to another version. The response need not identify its version.
func (v validator) contradicted(h http.Header) bool {
	if v.ETag != "" {
		return h.Get("ETag") != "" && h.Get("ETag") != v.ETag
	}
	return h.Get("Last-Modified") != "" && h.Get("Last-Modified") != v.LastModified
}

// contentRange parses "bytes 5-9/10"; total is -1 for "*".
func contentRange(s string) (first, last, total int64, ok bool) {
	span, length, found := strings.Cut(strings.TrimPrefix(s, "bytes "), "/")
	from, to, isSpan := strings.Cut(span, "-")
	if !found || !isSpan || !strings.HasPrefix(s, "bytes ") {
		return 0, 0, 0, false
	}
	total = -1
	ok = number(from, &first) && number(to, &last) && (length == "*" || number(length, &total))
	return first, last, total, ok && first <= last && (total < 0 || last < total)
}

// unsatisfied parses "bytes */10".
func unsatisfied(s string) (total int64, ok bool) {
	length, found := strings.CutPrefix(s, "bytes */")
	return total, found && number(length, &total)
}

func number(s string, n *int64) bool {
	v, err := strconv.ParseUint(s, 10, 62)
	*n = int64(v)
	return err == nil
}
