package webhook

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

// Whatever a producer put into the headers and the content type, the request can be
// sent, arrives as one request, and what it says of the job is true.
func FuzzHeaders(f *testing.F) {
	for _, seed := range [][3]string{
		{"user", "ada", "application/json"},
		{"traceparent", "00-a-b-01", ""},
		{"Authorization", "stolen", "text/plain; charset=utf-8"},
		{"evil", "a\r\nb: c", "a\nb: c"},
		{"Host", "evil", "\x7f"},
		{"Content-Length", "0", "ü"},
		{"bad name", "x", "\t"},
		{"", "", " "},
		{"posthaste-job-id", "7", "\xff"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, name, value, contentType string) {
		job := claimed()
		job.ContentType = contentType
		job.RawHeaders, _ = json.Marshal(map[string]string{name: value, "always": "there"})
		sent, err := http.NewRequest(http.MethodPost, "http://example.com/x", bytes.NewReader(job.Payload))
		if err != nil {
			t.Fatal(err)
		}
		setHeaders(sent.Header, job)
		var wire bytes.Buffer
		if err := sent.Write(&wire); err != nil {
			t.Fatalf("%q: %q, %q cannot be sent: %v", name, value, contentType, err)
		}
		text := wire.String()
		from := bufio.NewReader(&wire)
		got, err := http.ReadRequest(from)
		if err != nil {
			t.Fatalf("%q cannot be read: %v", text, err)
		}
		body, err := io.ReadAll(got.Body)
		if err != nil || !bytes.Equal(body, job.Payload) || from.Buffered() > 0 {
			t.Errorf("%q has the body %q, %v", text, body, err)
		}
		for header, want := range map[string]string{"Posthaste-Job-Id": job.ID.String(), "Idempotency-Key": job.ID.String(), "Posthaste-Epoch": "7", "Posthaste-Header-Always": "there", "Authorization": ""} {
			if name == "always" || strings.EqualFold(name, "always") {
				continue
			}
			if got.Header.Get(header) != want || len(got.Header.Values(header)) > 1 {
				t.Errorf("%q says %s: %q, want %q", text, header, got.Header.Values(header), want)
			}
		}
		if got.Host != "example.com" || got.ContentLength != int64(len(job.Payload)) {
			t.Errorf("%q is for %q, of %d bytes", text, got.Host, got.ContentLength)
		}
	})
}

// An answer of any kind is an outcome with a code, whose text is bounded, can be stored,
// and does not have what may be secret of the target.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []struct {
		status     int
		wait, body string
	}{
		{200, "", ""},
		{204, "17", "x"},
		{301, "", "moved"},
		{400, "", "\xff\x00 no"},
		{429, "17", ""},
		{429, "soon", ""},
		{503, "Wed, 21 Oct 2026 07:28:00 GMT", "<html>"},
		{503, "99999999999999999999", ""},
		{500, "", strings.Repeat("ü", 600)},
		{999, "0", ""},
		{-1, "", ""},
	} {
		f.Add(seed.status, seed.wait, seed.body)
	}
	now := time.Date(2026, 10, 21, 7, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, status int, wait, body string) {
		res := &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {wait}}, Body: io.NopCloser(strings.NewReader(body))}
		err := judge("https://example.com", res, now)
		if (err == nil) != (status >= 200 && status < 300) {
			t.Fatalf("%d is %v", status, err)
		}
		if err == nil {
			return
		}
		failed, ok := errors.AsType[*Error](err)
		if !ok || failed.Status != status || !strings.HasPrefix(failed.Code(), "http_") || len(err.Error()) > 200+4*maxQuoted || !utf8.ValidString(err.Error()) {
			t.Errorf("%d %q is %v", status, body, err)
		}
		away, ok := backoff.RetryAfter(wait, now, maxRetryAfter)
		if away < 0 || away > maxRetryAfter || !ok && away != 0 || !ok && wait != "" && strings.Trim(wait, "0123456789") == "" {
			t.Errorf("%q is a wait of %s, %t", wait, away, ok)
		}
	})
}

// A target that is taken is an http URL with a host, and reads the same when it is
// written anew; an error does not have the secrets of what it refuses.
func FuzzTarget(f *testing.F) {
	for _, seed := range []string{"https://example.com/x?y=z#f", "http://u:hush@[::1]:80", "ftp://hush@x", "https://:80", "//x", "http://x\n", "http://%zz", "http:x", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, target string) {
		u, err := Parse(target)
		if err != nil {
			if parsed, _ := url.Parse(target); parsed != nil && len(parsed.Scheme) < 3 && len(target) > 60 && strings.Contains(err.Error(), target) {
				t.Errorf("%q is quoted: %v", target, err)
			}
			return
		}
		again, err := Parse(u.String())
		if err != nil || again.String() != u.String() || u.Hostname() == "" || u.Fragment != "" || u.Scheme != "http" && u.Scheme != "https" {
			t.Errorf("%q is taken as %q, and that as %v, %v", target, u, again, err)
		}
		h := hook{target: u}
		if place := h.place(); strings.Contains(place, "@") && !strings.Contains(u.Host, "@") {
			t.Errorf("of %q, %q is shown", target, place)
		}
	})
}
