package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// A line of a batch is taken exactly as the body of POST /jobs, whatever is around it.
// What is taken is taken again when it is written anew, as the same job; what is
// refused is refused with a place.
func FuzzBatch(f *testing.F) {
	for _, seed := range []string{
		`{"kind":"mail"}` + "\n" + `{"kind":"mail","payload":{"to":"ada"},"delaySeconds":1.5}`,
		"\n\r\n" + `{"kind":"mail","runAt":"2027-01-31T09:00:00+01:00","headers":{"a":"b"}}` + "\r\n\n",
		`{"kind":"mail"}{"kind":"mail"}`,
		`{"kind":"mail","kind":"mail"}`,
		`{"Kind":"mail"}`,
		`{"kind":"m","priority":1e2,"maxAttempts":3.0}`,
		`{"kind":"m","priority":99999,"payload":null}`,
		"\u00a0" + `{"kind":"mail"}` + "\u0085\n\v\f",
		"\ufeff" + `{"kind":"mail"}`,
		`[{"kind":"mail"}]`,
		`{"kind":"","key":null,"sequence":0}`,
		`{"kind":"m","payload":"\ud800"}`,
		`{"kind":"m","deadline":"0000-01-01T00:00:00Z","timeoutSeconds":1e-300}`,
		"null\ntrue\n\"\"\n-0",
	} {
		f.Add([]byte(seed))
	}
	s := &server{config: Config{}.withDefaults()}
	if _, err := s.register(http.NewServeMux(), routes); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		all := bytes.Split(body, []byte("\n"))
		before := 0
		for number, text := range lines(body) {
			if number <= before || number > len(all) || strings.Trim(string(all[number-1]), " \t\r") != string(text) {
				t.Fatalf("line %d of %q is %q, after line %d", number, body, text, before)
			}
			before = number
			job, p := s.readLine(text)
			if fault, _ := checkJSON(all[number-1], s.newJob.shape); fault != nil && (p == nil || p.Code != malformed.name) {
				t.Errorf("%q: as a body %+v, as a line %+v", all[number-1], fault, p)
			}
			if p != nil {
				if len(p.Errors) == 0 || !strings.HasPrefix(p.Errors[0].Pointer, "#") || p.Errors[0].Detail == "" {
					t.Errorf("%q is refused with %+v, which does not say where", text, p)
				}
				continue
			}
			wantSameAgain(t, s, text, job)
		}
	})
}

// wantSameAgain writes a job anew and reads that. What the fields of the zero value
// mean is left out when it is written: null, 0 and "" are.
func wantSameAgain(t *testing.T, s *server, text []byte, job NewJob) {
	t.Helper()
	written, err := json.Marshal(job)
	if err != nil {
		t.Fatalf("%q is a job that cannot be written: %v", text, err)
	}
	again, p := s.readLine(written)
	if p != nil {
		t.Fatalf("%q is taken, and written as %q not: %+v", text, written, p)
	}
	if !job.RunAt.Equal(again.RunAt) || !job.Deadline.Equal(again.Deadline) || !sameJSON(job.Payload, again.Payload) {
		t.Errorf("%q becomes %+v, and written as %q %+v", text, job, written, again)
	}
	again.RunAt, again.Deadline, again.Payload = job.RunAt, job.Deadline, job.Payload
	if len(job.Headers) == 0 {
		again.Headers = job.Headers
	}
	if !reflect.DeepEqual(job, again) {
		t.Errorf("%q becomes %+v, and written as %q %+v", text, job, written, again)
	}
}

func sameJSON(a, b json.RawMessage) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	var x, y any
	readInto := func(text json.RawMessage, v *any) error {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		return d.Decode(v)
	}
	return readInto(a, &x) == nil && readInto(b, &y) == nil && reflect.DeepEqual(x, y)
}
