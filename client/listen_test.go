package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"
)

// What HTML says of event streams.
func TestEventsAreReadAsHTMLDefinesThem(t *testing.T) {
	for name, test := range map[string]struct{ stream, want string }{
		"lines of data":              {"data: a\ndata:b\ndata:  c\n\n", "message()=a|b| c;"},
		"all three ends of lines":    {"event: job\r\ndata: a\rdata: b\n\r\ndata: c\r\r", "job()=a|b;message()=c;"},
		"comments":                   {": hi\ndata: a\n:\n\n:still here\n\n", "message()=a;"},
		"an id stays":                {"id: 7\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", "message(7)=a;message(7)=b;message()=c;"},
		"an id alone is a position":  {"id: 7\n\nevent: job\nid: 8\n\n", "(7)=;(8)=;"},
		"a name without data":        {"event: job\n\ndata: a\n\n", "message()=a;"},
		"data that is empty":         {"event: resync\ndata\n\n", "resync()=;"},
		"a byte order mark":          {"\ufeffdata: a\n\n", "message()=a;"},
		"what is cut short":          {"data: a\n\nid: 9\ndata: b\n", "message()=a;"},
		"what nobody knows":          {"colour: red\nid: a\x00b\ndata: a\n\n", "message()=a;"},
		"when to come again":         {"retry: 2500\nretry: 1e3\nretry:\nretry: -1\ndata: a\n\n", "message()=a;2.5s"},
		"a colon within":             {"data: a: b\n\n", "message()=a: b;"},
		"a line that is too long":    {"data: a\n\n:" + strings.Repeat("x", maxEvent) + "\n\n", "message()=a;too long"},
		"lines that are too long":    {strings.Repeat("data: "+strings.Repeat("x", maxEvent/4)+"\n", 4) + "\n", "too long"},
		"an event that is just fits": {"data:" + strings.Repeat("x", maxEvent-5) + "\n\n", "message()=" + strings.Repeat("x", maxEvent-5) + ";"},
	} {
		r := eventReader{lines: lineReader{from: bufio.NewReader(strings.NewReader(test.stream))}}
		got := ""
		for {
			m, err := r.next()
			if errors.Is(err, errTooLong) {
				got += "too long"
			} else if err != nil && !errors.Is(err, io.EOF) {
				t.Errorf("%s: %v", name, err)
			}
			if err != nil {
				break
			}
			got += fmt.Sprintf("%s(%s)=%s;", m.name, m.id, strings.ReplaceAll(string(m.data), "\n", "|"))
		}
		if d := r.retry(0); d != 0 {
			got += d.String()
		}
		if got != test.want {
			t.Errorf("%s: got %.200q, want %.200q", name, got, test.want)
		}
	}
}

func TestALineThatTakesLongIsNoSilence(t *testing.T) {
	const stream = "data: as long as it takes\n\n"
	signs := 0
	r := eventReader{lines: lineReader{from: bufio.NewReader(heard{iotest.OneByteReader(strings.NewReader(stream)), func() { signs++ }})}}
	if _, err := r.next(); err != nil || signs != len(stream) {
		t.Errorf("signs of life = %d, %v; want one for each of %d bytes", signs, err, len(stream))
	}
}

// listenTo listens to the events of a server whose answers take turns, the last for good. It returns what the client
// yielded, and the Last-Event-IDs with which the server was asked.
func listenTo(t *testing.T, c Config, answers ...http.HandlerFunc) (yielded string, asked []string, err error) {
	t.Helper()
	var n atomic.Int32
	ids := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ids <- r.Header.Get("Last-Event-ID")
		answers[min(int(n.Add(1)), len(answers))-1](w, r)
	}))
	defer server.Close()
	c.HTTP = server.Client()
	client, err := New(server.URL, c)
	if err != nil {
		t.Fatal(err)
	}
	client.silence = 300 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for e, failed := range client.Changes(ctx, ChangeFilter{}, "") {
		if failed != nil {
			err = failed
			continue
		}
		yielded += e.Name + e.Job.ID + "(" + e.ID + ") "
	}
	for range n.Load() {
		asked = append(asked, <-ids)
	}
	return yielded, asked, err
}

func tell(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
	}
}

func breakOff(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		tell(text)(w, r)
		panic(http.ErrAbortHandler)
	}
}

func refuse(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
}

func TestAStreamIsTakenUpWhereItBrokeOff(t *testing.T) {
	t.Parallel()
	const soon = "retry: 1\n\n"
	hang := func(w http.ResponseWriter, r *http.Request) {
		tell("")(w, r)
		<-r.Context().Done()
	}
	job := func(id, position string) string {
		return "event: job\n" + position + "data: {\"id\":\"" + id + "\"}\n\n"
	}
	for name, test := range map[string]struct {
		answers        []http.HandlerFunc
		yielded, asked string
	}{
		"within an event": {
			[]http.HandlerFunc{breakOff(soon + job("a", "id: 1\n") + "event: job\nid: 2\ndata: {"), tell(job("b", "id: 2\n")), refuse(204)},
			"joba(1) jobb(2) ", ",1,2",
		},
		"by refusals, some of nobody's": {
			[]http.HandlerFunc{tell(soon + "id: 1\n\n"), refuse(502), refuse(429), refuse(500), breakOff(""), tell(job("b", "")), refuse(204)},
			"(1) jobb(1) ", ",1,1,1,1,1,1",
		},
		"before it said where it is": {
			[]http.HandlerFunc{refuse(503), breakOff(soon + job("a", "")), tell(job("b", "id: 2\n")), refuse(204)},
			"joba() resync() jobb(2) ", ",,,2",
		},
		"by falling silent": {
			[]http.HandlerFunc{tell(soon + "id: 1\n\n"), hang, refuse(204)},
			"(1) ", ",1,1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			yielded, asked, err := listenTo(t, Config{}, test.answers...)
			if yielded != test.yielded || strings.Join(asked, ",") != test.asked || err != nil {
				t.Errorf("told %q, asked with %q, %v; want %q and %q", yielded, asked, err, test.yielded, test.asked)
			}
		})
	}
}

func TestAStreamEndsWhereWaitingDoesNotHelp(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"401": refuse(401), "422": refuse(422), "and no event stream": refuse(200), "longer than": tell(":" + strings.Repeat("x", 3*maxEvent)),
		"cannot be read": tell("event: job\ndata: {\n\n"),
	} {
		if yielded, asked, err := listenTo(t, Config{}, answer); yielded != "" || len(asked) != 1 || err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: told %q after %d requests, %v", name, yielded, len(asked), err)
		}
	}
}

// The server says when to come again, in either way, and is obeyed up to MaxWait.
func TestAStreamStaysAwayAsLongAsItIsAskedTo(t *testing.T) {
	t.Parallel()
	began := time.Now()
	if _, _, err := listenTo(t, Config{}, tell("retry: 1000\n\n"), refuse(204)); err != nil || time.Since(began) < time.Second {
		t.Errorf("came again after %s, %v; want a second", time.Since(began), err)
	}
	// More than the 20 s after which listenTo gives up.
	if _, asked, err := listenTo(t, Config{MaxWait: time.Millisecond}, tell("retry: 60000\n\n"), refuse(503), refuse(204)); err != nil || len(asked) != 3 {
		t.Errorf("asked %d times, %v; want 3", len(asked), err)
	}
}

// The events of any stream are those that HTML defines, however it comes in pieces,
// and none takes more memory than an event may have.
func FuzzEvents(f *testing.F) {
	for _, seed := range []string{
		"data: a\ndata:b\ndata:  c\n\n", "event: job\r\ndata: a\rdata: b\n\r\ndata: c\r\r", ": hi\ndata: a\n:\n\n:still here\n\n",
		"id: 7\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", "id: 7\n\nevent: job\nid: 8\n\n", "event: job\n\ndata: a\n\n", "data\n\n", "data\ndata\n\n",
		"\ufeffdata: a\n\n", "\ufeff\ufeffdata: a\n\n", "data: a\n\nid: 9\ndata: b\n", "colour: red\nid: a\x00b\ndata: a\n\n",
		"retry: 2500\nretry: 1e3\nretry:\nretry: -1\ndata: a\n\n", "retry: 99999999999999999999\n\n", "retry: 007\ndata\n\n", "data: \xff\n\n", "\r", "\n\r\n\r", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		want := eventsOf(string(stream))
		for _, from := range []io.Reader{bytes.NewReader(stream), iotest.OneByteReader(bytes.NewReader(stream))} {
			r := eventReader{lines: lineReader{from: bufio.NewReaderSize(from, 16)}}
			var got []string
			for {
				m, err := r.next()
				if err != nil {
					if !errors.Is(err, io.EOF) && !errors.Is(err, errTooLong) {
						t.Errorf("%q ends with %v", stream, err)
					}
					break
				}
				if len(m.data) > maxEvent {
					t.Fatalf("an event of %d bytes", len(m.data))
				}
				got = append(got, fmt.Sprintf("%s(%q)=%q", m.name, m.id, m.data))
			}
			if len(stream) < maxEvent && !slices.Equal(got, want) {
				t.Errorf("%q is read as %s, want %s", stream, got, want)
			}
			if wait := r.retry(0); wait < 0 || wait > 25*24*time.Hour {
				t.Errorf("%q asks to wait for %s", stream, wait)
			}
		}
	})
}

// eventsOf reads a whole stream by the letter of HTML (9.2.6), and positions besides.
func eventsOf(stream string) (events []string) {
	stream = strings.TrimPrefix(stream, "\ufeff")
	stream = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(stream)
	blocks := strings.Split(stream, "\n")
	blocks = blocks[:len(blocks)-1] // a line without its end
	last, name, hasID := "", "", false
	buffer := last
	var data []string
	for _, line := range blocks {
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			last = buffer
			if data != nil {
				events = append(events, fmt.Sprintf("%s(%q)=%q", cmp.Or(name, "message"), last, strings.Join(data, "\n")))
			} else if hasID {
				events = append(events, fmt.Sprintf("(%q)=%q", last, ""))
			}
			data, name, hasID = nil, "", false
		case field == "event":
			name = value
		case field == "data":
			data = append(data, value)
		case field == "id" && !strings.Contains(value, "\x00"):
			buffer, hasID = value, true
		}
	}
	return events
}

// Whatever answers, the API or something in between, is a problem that can be shown,
// with the status that came and a wait that is none or within reason.
func FuzzProblem(f *testing.F) {
	for _, seed := range []struct {
		status            int
		body, wait, about string
	}{
		{404, `{"title":"Job not found","status":404,"code":"job_not_found","detail":"It is gone.","requestId":"r1","errors":[{"detail":"is no id","parameter":"id"}]}`, "", ""},
		{429, `{"code":"rate_limited"}`, "17", "r2"},
		{503, "<html>", "Wed, 21 Oct 2065 07:28:00 GMT", "r3"},
		{500, `{"code":"x","status":200,"errors":null}`, "-1", ""},
		{502, `{"code":7}`, "99999999999999999999", ""},
		{400, `{"code":"x","errors":[{"line":-1},{"line":3,"pointer":"#/a"}]}`, "1e3", ""},
		{0, "", "", ""},
	} {
		f.Add(seed.status, seed.body, seed.wait, seed.about)
	}
	f.Fuzz(func(t *testing.T, status int, body, wait, about string) {
		resp := &http.Response{StatusCode: status, Status: strconv.Itoa(status), Header: http.Header{"Retry-After": {wait}, "X-Request-Id": {about}}}
		p := problemOf(resp, []byte(body))
		if p.Status != status || p.Error() == "" || len(p.Error()) > 200+2*len(about)+8*len(body) {
			t.Errorf("%d %q is %+v, told as %q", status, body, p, p.Error())
		}
		if p.RetryAfter < 0 || p.RetryAfter > 0 && wait == "" {
			t.Errorf("Retry-After %q is %s", wait, p.RetryAfter)
		}
		if p.Code == "" && p.Title != "HTTP "+resp.Status {
			t.Errorf("%d %q, which is not the API's, is %+v", status, body, p)
		}
	})
}
