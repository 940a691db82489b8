package download

import (
	"fmt"
	"net/http"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A range that is taken is one that can be: its bytes are those of a file of that
// length, and it reads the same when it is written anew.
func FuzzContentRange(f *testing.F) {
	for _, seed := range []string{"bytes 5-9/10", "bytes 0-0/*", "bytes */10", "bytes 9-5/10", "bytes 5-10/10", "bytes  5-9/10", "bytes -1-5/10", "items 0-1/2", "bytes 0-4611686018427387904/*", "bytes 00-+1/2", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if first, last, total, ok := contentRange(s); ok {
			length := "*"
			if total >= 0 {
				length = fmt.Sprint(total)
			}
			if first < 0 || last < first || total >= 0 && last >= total || last-first+1 <= 0 {
				t.Errorf("%q is %d to %d of %d", s, first, last, total)
			}
			again := fmt.Sprintf("bytes %d-%d/%s", first, last, length)
			if a, b, c, ok := contentRange(again); !ok || a != first || b != last || c != total {
				t.Errorf("%q is read as %q, and that not", s, again)
			}
		}
		if total, ok := unsatisfied(s); ok {
			if again, ok := unsatisfied(fmt.Sprintf("bytes */%d", total)); !ok || again != total || total < 0 {
				t.Errorf("%q is a file of %d bytes", s, total)
			}
			if _, _, _, ok := contentRange(s); ok {
				t.Errorf("%q is two things", s)
			}
		}
	})
}

// A condition for going on is a strong one that HTTP can carry, and an answer with the
// same headers does not contradict it.
func FuzzValidator(f *testing.F) {
	const date, later = "Wed, 21 Oct 2026 07:28:00 GMT", "Wed, 21 Oct 2026 07:30:00 GMT"
	for _, seed := range [][3]string{{`"a"`, date, later}, {`W/"a"`, date, later}, {"", date, later}, {"", later, date}, {"", date, date}, {`"`, "", ""}, {`""`, "x", "y"}, {"\"a\r\nRange: b\"", "", ""}} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, tag, modified, date string) {
		h := http.Header{"Etag": {tag}, "Last-Modified": {modified}, "Date": {date}}
		v := newValidator(h)
		if v.ifRange() != "" && v.contradicted(h) {
			t.Errorf("%v contradicts itself", h)
		}
		switch condition := v.ifRange(); {
		case condition == "":
		case condition == tag:
			if !strings.HasPrefix(tag, `"`) || !strings.HasSuffix(tag, `"`) || tag == `"` {
				t.Errorf("the condition is %q", condition)
			}
		default:
			changed, err := http.ParseTime(condition)
			answered, err2 := http.ParseTime(date)
			if err != nil || err2 != nil || condition != modified || tag != "" || answered.Sub(changed) < strongAfter {
				t.Errorf("of %v the condition is %q", h, condition)
			}
		}
	})
}

// A wait that a server asks for is none or within an hour, and what it asks for in
// seconds is never too long to be understood.
func FuzzRetryAfter(f *testing.F) {
	for _, seed := range []string{"17", "0", "-1", "+1", "1e3", " 1", "3601", "2147483648", "99999999999999999999", "Wed, 21 Oct 2026 07:28:00 GMT", "Mon Jan  2 15:04:05 2006", ""} {
		f.Add(seed)
	}
	now := time.Date(2026, 10, 21, 7, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, value string) {
		wait, ok := backoff.RetryAfter(value, now, maxRetryAfter)
		if wait < 0 || wait > maxRetryAfter || !ok && wait != 0 {
			t.Errorf("%q is a wait of %s", value, wait)
		}
		if digits := value != "" && strings.Trim(value, "0123456789") == ""; digits && !ok {
			t.Errorf("%q is not understood", value)
		}
	})
}

// A part file is known by exactly the name that it was given, and by its own job.
func FuzzPartName(f *testing.F) {
	id, other := outbox.RootTenant, outbox.NewID()
	for _, seed := range []string{partName(id, 3, 0), partName(other, 3, 0), partPrefix(id) + "+3-1.part", partPrefix(id) + "3-1.part.bak", partPrefix(id) + "3--1.part", partPrefix(id) + "03-1.part", partPrefix(id) + "3-1", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		epoch, ok := partEpoch(id, name)
		if !ok {
			return
		}
		if !strings.HasPrefix(name, fmt.Sprintf("%s%d-", partPrefix(id), epoch)) || !strings.HasSuffix(name, ".part") || path.Base(name) != name {
			t.Errorf("%q is a part of epoch %d", name, epoch)
		}
		if _, foreign := partEpoch(other, name); foreign {
			t.Errorf("%q is another job's, too", name)
		}
	})
}
