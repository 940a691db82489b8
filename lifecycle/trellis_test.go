package lifecycle_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/lifecycle"
	"github.com/posthaste-dev/posthaste/outbox"
)

// onTheWire returns the body of an event in Trellis's form, and what is decoded from it and its headers.
func onTheWire(t *testing.T, e lifecycle.Event, headers map[string]string) (body string, decoded lifecycle.Event) {
	t.Helper()
	b, own, err := lifecycle.EncodeTrellis(e, headers)
	if err != nil {
		t.Fatal(err)
	}
	decoded, err = lifecycle.DecodeTrellis(b, func(name string) string { return own[name] })
	if err != nil {
		t.Fatalf("decode %s: %v", b, err)
	}
	return string(b), decoded
}

// Each state of a job has one of Trellis's names, and is decoded as itself, or as pending where Trellis has fewer.
func TestStatesOfTrellis(t *testing.T) {
	t.Parallel()
	for state, want := range map[outbox.Status]struct {
		name    string
		decoded outbox.Status
	}{
		outbox.Created:   {"pending", outbox.Pending},
		outbox.Pending:   {"pending", outbox.Pending},
		outbox.Blocked:   {"pending", outbox.Pending},
		outbox.Running:   {"active", outbox.Running},
		outbox.Retrying:  {"retry", outbox.Retrying},
		outbox.Succeeded: {"completed", outbox.Succeeded},
		outbox.Failed:    {"failed", outbox.Failed},
		outbox.Dead:      {"dead", outbox.Dead},
		outbox.Cancelled: {"cancelled", outbox.Cancelled},
		outbox.Expired:   {"expired", outbox.Expired},
		outbox.Skipped:   {"skipped", outbox.Skipped},
		outbox.Stale:     {"stale", outbox.Stale},
		outbox.Dismissed: {"dismissed", outbox.Dismissed},
	} {
		e := life()[1]
		e.PreviousStatus, e.Status = state, state
		body, decoded := onTheWire(t, e, nil)
		if part := `"state":"` + want.name + `","previousState":"` + want.name + `"`; !strings.Contains(body, part) {
			t.Errorf("%s: body has no %s: %s", state, part, body)
		}
		if decoded.Status != want.decoded || decoded.PreviousStatus != want.decoded {
			t.Errorf("%s: decoded as %s after %s, want %s", state, decoded.Status, decoded.PreviousStatus, want.decoded)
		}
	}
}

// Each field that an event can have is where JobEventWire has it.
func TestFieldsOfTrellis(t *testing.T) {
	t.Parallel()
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	at := time.Date(2026, 11, 26, 10, 0, 0, 0, time.FixedZone("", 3600))
	e := life()[2]
	e.Name, e.Key, e.Deadline, e.At = lifecycle.Retry, "k", at, at
	e.Result = []byte("not JSON")
	e.Progress = &lifecycle.Progress{Current: 3, Total: 9, Message: "pages", At: at}
	e.Lines = []lifecycle.Line{
		{Line: 1, At: at, Level: "DEBUG", Message: "a"},
		{Line: 2, At: at, Level: "WARN", Message: "b"},
		{Line: 3, At: at, Level: "ERROR+2", Message: "c"},
	}
	body, decoded := onTheWire(t, e, map[string]string{"traceparent": trace, "tracestate": "v=1", "correlation-id": "r-1"})
	var got bytes.Buffer
	if err := json.Indent(&got, []byte(body), "", "  "); err != nil {
		t.Fatal(err)
	}
	want := `{
  "jobId": "` + e.Job.String() + `",
  "context": {
    "requestId": "r-1",
    "traceId": "0af7651916cd43dd8448eb211c80319c",
    "traceparent": "` + trace + `",
    "tracestate": "v=1"
  },
  "service": "mail",
  "jobType": "mail.send",
  "eventType": "retry",
  "state": "retry",
  "previousState": "active",
  "tries": 1,
  "error": "smtp_away: no answer",
  "progress": {
    "message": "pages",
    "current": 3,
    "total": 9
  },
  "logs": [
    {
      "timestamp": "2026-11-26T09:00:00Z",
      "level": "info",
      "message": "a"
    },
    {
      "timestamp": "2026-11-26T09:00:00Z",
      "level": "warn",
      "message": "b"
    },
    {
      "timestamp": "2026-11-26T09:00:00Z",
      "level": "error",
      "message": "c"
    }
  ],
  "result": "bm90IEpTT04=",
  "deadline": "2026-11-26T09:00:00Z",
  "concurrency": {
    "key": "k",
    "keyHash": "8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a"
  },
  "timestamp": "2026-11-26T09:00:00Z"
}`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
	back := e
	back.Tenant, back.RunAt = outbox.ID{}, time.Time{} // JobEventWire has neither
	back.At, back.Deadline, back.Progress.At = at.UTC(), at.UTC(), at.UTC()
	back.Result = []byte(`"bm90IEpTT04="`)
	back.Lines = nil
	for i, level := range []string{"info", "warn", "error"} {
		back.Lines = append(back.Lines, lifecycle.Line{At: at.UTC(), Level: level, Message: string(rune('a' + i))})
	}
	if diff := cmp.Diff(back, decoded); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
}

// A header that is no trace makes none: the trace is made of the job's id, as without a header.
func TestTracesOfTrellis(t *testing.T) {
	t.Parallel()
	e := life()[0]
	own, _ := onTheWire(t, e, nil)
	for _, header := range []string{
		strings.Repeat("x", 55), "00-00000000000000000000000000000000-b7ad6b7169203331-01",
		"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c",
		"00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
	} {
		if body, _ := onTheWire(t, e, map[string]string{"traceparent": header}); body != own {
			t.Errorf("with the header %q the body is\n%s, want\n%s", header, body, own)
		}
	}
}
