package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/internal/cloudevents"
)

// Publish implements [relay.Sink]. It leaves messages untried for which the time of ctx does not suffice.
func (s *Sink) Publish(ctx context.Context, batch []relay.Message) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &publication{
		sink: s, batch: batch, outcomes: make([]error, len(batch)),
		ended: make(chan exchange, s.config.Concurrency), said: map[*host]bool{},
	}
	for i := range p.outcomes {
		p.outcomes[i] = relay.ErrNotTried
	}
	if len(batch) == 0 || ctx.Err() != nil {
		return p.outcomes
	}
	var err error
	if p.keys, err = s.config.Signing.keys(); err != nil {
		p.outcomes[0] = &relay.UnavailableError{Code: relay.CodeUnavailable, Err: err}
		return p.outcomes
	}
	p.run(ctx)
	return p.outcomes
}

// publication is one call of Publish. Messages are indexes in the batch.
type publication struct {
	sink     *Sink
	keys     [][]byte
	batch    []relay.Message
	outcomes []error // ErrNotTried until they are known

	lines    []*line // those whose first message may be sent
	underWay int
	ended    chan exchange
	said     map[*host]bool // hosts for which a message already has the reason of the open circuit as its outcome
}

// line is the unsent messages of a key, or a single message without a key.
type line struct {
	of     []int
	target *url.URL // of the first message, if known
}

// exchange is a finished request.
type exchange struct {
	line *line
	host *host
	err  error
	wait time.Duration // requested by the receiver
}

// run sends messages until no request is running and none can be sent.
func (p *publication) run(ctx context.Context) {
	p.divide()
	last := lastStart(ctx, p.sink.config.Timeout)
	for {
		for first := p.underWay == 0; ctx.Err() == nil && p.underWay < p.sink.config.Concurrency &&
			(first || time.Now().Before(last)); first = false {
			if !p.next(ctx) {
				break
			}
		}
		if p.underWay == 0 {
			return
		}
		p.end(<-p.ended)
		if !time.Now().Before(last) && p.underWay == 0 {
			return
		}
	}
}

// lastStart returns until when a request may begin, so that its own timeout passes before ctx ends.
func lastStart(ctx context.Context, timeout time.Duration) time.Time {
	now := time.Now()
	deadline, ok := ctx.Deadline()
	if !ok {
		return now.Add(24 * time.Hour)
	}
	return deadline.Add(-min(timeout, deadline.Sub(now)/2))
}

// divide makes a line of each key.
func (p *publication) divide() {
	byKey := map[string]*line{}
	for i := range p.batch {
		key := p.batch[i].Key
		if l := byKey[key]; l != nil && key != "" {
			l.of = append(l.of, i)
			continue
		}
		l := &line{of: []int{i}}
		byKey[key] = l
		p.lines = append(p.lines, l)
	}
}

// next begins a request, or settles a message that need not be sent. It returns false if no message may be sent now.
func (p *publication) next(ctx context.Context) bool {
	for n := 0; n < len(p.lines); n++ {
		l := p.lines[n]
		m := &p.batch[l.of[0]]
		if l.target == nil {
			u, err := p.sink.config.target(p.sink.base, m.Destination)
			if err != nil {
				p.drop(n)
				p.outcomes[l.of[0]] = &relay.RefusedError{Code: relay.CodeBadDestination, Err: err}
				return true
			}
			l.target = u
		}
		h := p.sink.host(l.target)
		if err := h.refusal(time.Now()); err != nil {
			p.drop(n)
			// Of a host that asks to wait, each message says so: the relay lets those of other hosts go on.
			if away, is := errors.AsType[*relay.UnavailableError](err); !p.said[h] || is && away.Code == relay.CodeFull {
				p.outcomes[l.of[0]] = err
			}
			p.said[h] = true
			return true
		}
		if h.underWay < h.most(p.sink.config.Concurrency) {
			p.drop(n)
			p.begin(ctx, l, h, m)
			return true
		}
	}
	return false
}

func (p *publication) drop(n int) { p.lines = slices.Delete(p.lines, n, n+1) }

// begin sends the first message of a line.
func (p *publication) begin(ctx context.Context, l *line, h *host, m *relay.Message) {
	req, err := p.sink.request(l.target, m, p.keys, time.Now())
	if err != nil {
		p.outcomes[l.of[0]] = &relay.RefusedError{Code: relay.CodeRefused, Err: err}
		return
	}
	p.underWay++
	h.underWay++
	go func() {
		req, span := tracePost(req.WithContext(ctx),
			engine.SpanStart{ID: m.ID, Headers: []map[string]string{traceOf(m)}})
		wait, err := p.sink.exchange(req.Context(), req)
		span.end(err)
		p.ended <- exchange{l, h, err, wait}
	}()
}

// end handles the end of a request.
func (p *publication) end(e exchange) {
	p.underWay--
	e.host.underWay--
	i := e.line.of[0]
	p.outcomes[i] = e.err
	failed, _ := errors.AsType[*Error](e.err)
	unavailable, away := errors.AsType[*relay.UnavailableError](e.err)
	switch {
	case away && unavailable.Code != relay.CodeNoDestination:
		e.host.fell(time.Now(), unavailable, e.wait)
		p.said[e.host] = true
	case failed != nil && failed.Status == 0 && p.batch[i].Trial: // says nothing of the host
	case failed != nil && failed.Status == 0:
		e.host.fellSilent(time.Now(), failed)
		p.said[e.host] = true
	default:
		e.host.answered()
	}
	if e.err == nil && len(e.line.of) > 1 {
		p.lines = append(p.lines, &line{of: e.line.of[1:]})
	}
}

// request returns a message as an HTTP request. Its error is about a header that cannot be sent.
func (s *Sink) request(target *url.URL, m *relay.Message, keys [][]byte, now time.Time) (*http.Request, error) {
	header := http.Header{"User-Agent": {s.config.UserAgent}, headerIdempotencyKey: {m.ID}}
	if m.ContentType != "" {
		header["Content-Type"] = []string{m.ContentType}
	}
	if !validValue(m.ID) || !validValue(m.ContentType) {
		return nil, errors.New("the message's ID or content type has a control character in it")
	}
	for _, h := range m.Headers {
		name, value := headerPrefix+h.Name, h.Value
		switch lower := strings.ToLower(h.Name); {
		case strings.HasPrefix(lower, cloudevents.Prefix):
			name, value = lower, cloudevents.Escape(value)
		case lower == "traceparent", lower == "tracestate":
			name = lower
		}
		if !validToken(h.Name) || !validValue(value) {
			return nil, fmt.Errorf("header %q cannot be sent: a name is a token, and a value has no control characters",
				h.Name)
		}
		header[name] = append(header[name], value)
	}
	sign(header, keys, m.ID, now, m.Body)
	req, err := http.NewRequest(http.MethodPost, target.String(), bytes.NewReader(m.Body))
	if err != nil {
		return nil, stripped(err)
	}
	req.Header = header
	return req, nil
}

// exchange sends a request and returns the outcome, and the wait that the receiver asks for.
func (s *Sink) exchange(ctx context.Context, req *http.Request) (wait time.Duration, outcome error) {
	ctx, hangUp := context.WithTimeout(ctx, s.config.Timeout)
	defer hangUp()
	res, err := s.client.Do(req.WithContext(ctx))
	if err != nil {
		failed := &Error{Place: place(req.URL), Err: stripped(err)}
		if _, unsent := errors.AsType[*notSent](err); unsent {
			return 0, away(failed)
		}
		return 0, failed
	}
	defer res.Body.Close()
	defer time.AfterFunc(bodyTime, hangUp).Stop()
	if !isSuccess(res.StatusCode) {
		var again bool
		wait, again = backoff.RetryAfter(res.Header.Get("Retry-After"), time.Now(), maxRetryAfter)
		outcome = classify(failure(place(req.URL), res), again)
	}
	if res.StatusCode != http.StatusSwitchingProtocols { // whose body is the connection
		_, _ = io.CopyN(io.Discard, res.Body, maxDrained)
	}
	return wait, outcome
}
