package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// maxEvent limits an event, and each of its lines: those of the API are far shorter.
	maxEvent = 1 << 20
	// silence is how long a connection may give no sign of life before it counts as lost. The API sends one every 15
	// seconds.
	silence = time.Minute
	// maxRefusal limits how much is read of an answer that is not a stream.
	maxRefusal = 1 << 20
)

var errTooLong = fmt.Errorf("an event is longer than %d bytes", maxEvent)

// message is a server-sent event, or if it has no name, only a position.
type message struct {
	name string
	id   string // the latest in the stream
	data []byte
}

// listener is the state of a stream from connection to connection.
type listener struct {
	client  *Client
	request request
	lastID  string
	retry   time.Duration // requested by the server; 0 if it has not
	begun   bool          // there was a connection
	lively  bool          // the connection had a message: the next failure counts as the first
}

// listen yields the messages of a stream of the API, over as many connections as it takes.
//
// Nothing is lost between two connections, because the second begins at the last id. If the first connection broke
// before it had an id, the changes from then until the second one has begun are lost, and listen yields a resync of its
// own.
func (c *Client) listen(ctx context.Context, r request, after string) iter.Seq2[message, error] {
	return func(yield func(message, error) bool) {
		if r.err != nil {
			yield(message{}, fmt.Errorf("%s %s: %w", r.method, r.path, r.err))
			return
		}
		l := &listener{client: c, request: r, lastID: after}
		for failures := 1; ; failures++ {
			l.lively = false
			err := l.connect(ctx, yield)
			switch {
			case err == nil: // 204, or the loop has ended
				return
			case ctx.Err() != nil:
				yield(message{}, ctx.Err())
				return
			case !passes(err):
				yield(message{}, err)
				return
			}
			if l.lively {
				failures = 1
			}
			if !sleep(ctx, l.wait(err, failures)) {
				yield(message{}, ctx.Err())
				return
			}
		}
	}
}

// passes reports whether another connection may succeed.
func passes(err error) bool {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p.Status >= http.StatusInternalServerError || p.nothingWasDone()
	}
	_, ok := errors.AsType[*lost](err)
	return ok
}

// wait returns how long to wait before the next connection: as long as the server asked, or longer with each failure.
// It is randomized, so that the clients of a server that was down do not all return at once.
func (l *listener) wait(err error, failures int) time.Duration {
	asked := l.retry + rand.N(l.retry/2+1)
	if p, ok := errors.AsType[*Problem](err); ok && p.RetryAfter > 0 {
		asked = p.RetryAfter
	}
	return min(max(asked, backoff(failures)), l.client.maxWait)
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// connect yields the messages of one connection. It returns nil if no other connection is needed.
func (l *listener) connect(ctx context.Context, yield func(message, error) bool) error {
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	quiet := time.AfterFunc(l.client.silence, hangUp)
	defer quiet.Stop()
	req, err := l.client.newRequest(ctx, l.request)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream, application/problem+json")
	if l.lastID != "" {
		req.Header.Set("Last-Event-ID", l.lastID)
	}
	resp, err := l.client.http.Do(req)
	if err != nil {
		return &lost{err}
	}
	defer resp.Body.Close()
	if over, err := accept(resp); over || err != nil {
		return err
	}
	if l.begun && l.lastID == "" && !yield(message{name: ChangeResync}, nil) {
		return nil
	}
	l.begun = true
	alive := func() { quiet.Reset(l.client.silence) }
	reader := eventReader{lines: lineReader{from: bufio.NewReader(heard{resp.Body, alive})}, id: l.lastID}
	for {
		alive()
		m, err := reader.next()
		quiet.Stop() // the loop's body may take long
		l.retry = reader.retry(l.retry)
		switch {
		case errors.Is(err, errTooLong):
			return fmt.Errorf("%s %s: %w", l.request.method, l.request.path, err)
		case err != nil:
			return &lost{fmt.Errorf("%s %s: read the stream: %w", l.request.method, l.request.path, err)}
		}
		l.lastID, l.lively = m.id, true
		if !yield(m, nil) {
			return nil
		}
	}
}

// accept reports whether the stream ended before it began, or was refused.
func accept(resp *http.Response) (over bool, err error) {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode == http.StatusNoContent:
		return true, nil
	case resp.StatusCode == http.StatusOK && kind == "text/event-stream":
		return false, nil
	case resp.StatusCode < 300:
		return false, fmt.Errorf("the answer is %s with %q, and no event stream", resp.Status, kind)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err != nil {
		return false, &lost{err}
	}
	return false, problemOf(resp, text)
}

// heard is a connection on which every byte is a sign of life, even within a slow line.
type heard struct {
	io.Reader
	alive func()
}

func (h heard) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if n > 0 {
		h.alive()
	}
	return n, err
}

// eventReader reads server-sent events as HTML defines them.
type eventReader struct {
	lines lineReader
	id    string // of the latest complete block
	again time.Duration
	asked bool // the server has sent a retry field
}

// next reads to the end of the next block that has an event, or only an id. It drops a block that the end of the stream
// cuts short.
func (r *eventReader) next() (message, error) {
	m, id, hasID, hasData := message{}, "", false, false
	for {
		line, err := r.lines.next()
		if err != nil {
			return message{}, err
		}
		if len(line) == 0 {
			if hasID {
				r.id = id
			}
			m.id = r.id
			if hasData {
				if m.name == "" {
					m.name = "message"
				}
				return m, nil
			}
			if hasID {
				return message{id: r.id}, nil
			}
			m = message{}
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			m.name = string(value)
		case "data":
			if hasData {
				m.data = append(m.data, '\n')
			}
			if hasData = true; len(m.data)+len(value) > maxEvent {
				return message{}, errTooLong
			}
			m.data = append(m.data, value...)
		case "id":
			if !bytes.ContainsRune(value, 0) {
				id, hasID = string(value), true
			}
		case "retry":
			r.comeAgain(string(value))
		}
	}
}

// comeAgain parses a retry field, which must consist of digits.
func (r *eventReader) comeAgain(value string) {
	if strings.Trim(value, "0123456789") != "" {
		return
	}
	if n, err := strconv.ParseInt(value, 10, 32); err == nil {
		r.again, r.asked = time.Duration(n)*time.Millisecond, true
	}
}

// retry returns the server's retry time, or was if it has not sent one.
func (r *eventReader) retry(was time.Duration) time.Duration {
	if r.asked {
		return r.again
	}
	return was
}

// lineReader reads lines that end with CR, LF or both. After a CR it does not wait for the next byte.
type lineReader struct {
	from   *bufio.Reader
	text   []byte
	begun  bool
	skipLF bool
}

var byteOrderMark = []byte("\ufeff")

// next returns a line without its end; it is valid until the next call.
func (l *lineReader) next() ([]byte, error) {
	l.text = l.text[:0]
	for {
		b, err := l.from.ReadByte()
		if err != nil {
			return nil, err
		}
		skip := l.skipLF && b == '\n'
		l.skipLF = b == '\r'
		switch {
		case skip:
		case b == '\r', b == '\n':
			line := l.text
			if !l.begun {
				line = bytes.TrimPrefix(line, byteOrderMark)
			}
			l.begun = true
			return line, nil
		case len(l.text) == maxEvent:
			return nil, errTooLong
		default:
			l.text = append(l.text, b)
		}
	}
}
