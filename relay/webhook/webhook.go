package webhook

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Config sets how requests are made. Its zero value is a sane production setup.
type Config struct {
	// Transport makes the requests. Nil means one that all handlers share: it keeps connections open and honours
	// HTTP_PROXY and the like.
	Transport http.RoundTripper

	// UserAgent names the sender to the receiver; "" means "posthaste".
	UserAgent string

	// Signing signs requests, by the job's id.
	Signing Signing
}

const (
	maxQuoted  = 1 << 10         // of an answer, in an error
	maxDrained = 64 << 10        // of an answer, read so that its connection can be used again
	bodyTime   = 2 * time.Second // for that much of a body: an endless one must not occupy a worker

	pingAfter   = 5 * time.Second // of silence from a receiver, over HTTP/2
	pingTimeout = 5 * time.Second // for its answer, or the connection is broken
)

// sharedTransport has no timeout for a whole request: the attempt's context limits that.
var sharedTransport = newTransport()

func newTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableCompression = true // answers are hardly read
	t.MaxIdleConns = 1024
	t.MaxIdleConnsPerHost = 256 // jobs of one kind go to one host, many at a time
	t.MaxResponseHeaderBytes = 64 << 10
	// Requests of HTTP/2 share a connection, which stays open when one of them gets no answer. If the receiver is gone
	// and nothing reports it, all later requests would fail until the system gives the connection up, after minutes.
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
	return t
}

// Handler returns a handler that posts each job to target. It fails if target is
// not an absolute http or https URL; the error does not quote it.
func Handler(target string, config Config) (dispatcher.Handler, error) {
	u, err := Parse(target)
	if err != nil {
		return nil, err
	}
	if err := config.Signing.validate(); err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	h := &hook{
		target:    u,
		signing:   config.Signing,
		bodyTime:  bodyTime,
		userAgent: cmp.Or(config.UserAgent, "posthaste"),
		client: &http.Client{
			Transport:     cmp.Or[http.RoundTripper](config.Transport, sharedTransport),
			CheckRedirect: followNone,
		},
	}
	return h.deliver, nil
}

// followNone makes a redirect count as the answer.
func followNone(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Parse parses a webhook's URL. Its errors do not quote the URL, which may hold secrets.
func Parse(target string) (*url.URL, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, errors.New("webhook URL: it is malformed (it may hold a password and is not shown)")
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("webhook URL: the scheme is %q, want http or https", u.Scheme)
	}
	if u.Hostname() == "" {
		return nil, errors.New("webhook URL: the host is missing")
	}
	u.Fragment, u.RawFragment = "", ""
	return u, nil
}

// hook is one target.
type hook struct {
	target    *url.URL
	signing   Signing
	userAgent string
	client    *http.Client
	bodyTime  time.Duration
}

// place returns the part of the target that may be shown.
func (h *hook) place() string { return place(h.target) }

func (h *hook) deliver(ctx context.Context, job *outbox.Claimed) error {
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.target.String(), bytes.NewReader(job.Payload))
	if err != nil {
		return dispatcher.Discard(fmt.Errorf("make a request to %s: %w", h.place(), stripped(err)))
	}
	keys, err := h.signing.keys()
	if err != nil {
		return dispatcher.Unavailable(fmt.Errorf("sign a request to %s: %w", h.place(), err), 0)
	}
	setHeaders(req.Header, job)
	req.Header.Set("User-Agent", h.userAgent)
	sign(req.Header, keys, job.ID.String(), time.Now(), job.Payload)
	req, span := tracePost(req, engine.SpanStart{Destination: job.Queue, ID: job.ID.String()})
	outcome := h.exchange(req, hangUp)
	span.end(outcome)
	return outcome
}

// exchange sends a request and judges the answer.
func (h *hook) exchange(req *http.Request, hangUp context.CancelFunc) error {
	res, err := h.client.Do(req)
	if err != nil {
		return judgeSilence(&Error{Place: h.place(), Err: stripped(err)})
	}
	defer res.Body.Close()
	defer time.AfterFunc(h.bodyTime, hangUp).Stop()
	outcome := judge(h.place(), res, time.Now())
	if res.StatusCode != http.StatusSwitchingProtocols { // whose body is the connection, which no context closes
		_, _ = io.CopyN(io.Discard, res.Body, maxDrained) // a longer one costs the connection, not the job
	}
	return outcome
}

// stripped removes the URL from an error of net/http.
func stripped(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}
