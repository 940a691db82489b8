package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

// SinkConfig sets where a sink sends requests, and how.
type SinkConfig struct {
	// URL is the receiver's URL. A destination is the part after it, such as orders/{topic|path}, or "/" for the URL
	// itself; or it is a whole URL whose host is this one's or one of Hosts. The relay shows and stores a destination
	// that accepts nothing, without its query: a secret belongs here, and this is never shown.
	URL string
	// Hosts are host or host:port of other receivers, with the URL's scheme. They are for names that become unavailable
	// together, such as two names of one service: while one of them is unavailable, the sink is stopped. Give
	// independent receivers a sink each.
	Hosts []string

	Signing Signing

	// Allow lists networks with addresses that a receiver may have. Other addresses outside the public internet are not
	// connected to, whatever name resolves to them: the data that fills in a destination, and the name server that
	// resolves a name, may belong to an attacker who wants to reach the internal network.
	Allow []netip.Prefix

	Concurrency int           // maximum of concurrent requests, of different keys; 0 means 16
	Timeout     time.Duration // for an answer; 0 means 5 s, and 8 s is the maximum

	CAFile          string // certificates to trust instead of those of the system
	CertificateFile string // the client's own, with KeyFile
	KeyFile         string

	UserAgent string // sent to the receiver; "" means "posthaste"
}

const (
	defaultConcurrency = 16
	maxConcurrency     = 1000
	defaultTimeout     = 5 * time.Second
	maxTimeout         = 8 * time.Second // the relay gives a batch 10 s
)

func (c SinkConfig) withDefaults() SinkConfig {
	c.Concurrency = cmp.Or(c.Concurrency, defaultConcurrency)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.UserAgent = cmp.Or(c.UserAgent, "posthaste")
	return c
}

// validate reports every mistake. No error repeats a secret, nor the URL, which may contain one.
func (c SinkConfig) validate() error {
	var errs []error
	u, err := Parse(c.URL)
	switch {
	case err != nil:
		errs = append(errs, err)
	case u.User != nil:
		errs = append(errs, invalid.Field("URL", "has credentials in it: sign requests instead"))
	case u.Scheme == "http" && c.certificates().Any():
		errs = append(errs, errors.New("certificates are given, and the URL is not https://"))
	}
	for i, host := range c.Hosts {
		if u, err := url.Parse("https://" + host); err != nil || u.Host != host || u.Hostname() == "" {
			errs = append(errs, invalid.Field(fmt.Sprintf("Hosts[%d]", i), "is not host or host:port"))
		}
	}
	if err := c.Signing.validate(); err != nil {
		errs = append(errs, err)
	}
	if c.Concurrency < 1 || c.Concurrency > maxConcurrency {
		errs = append(errs, invalid.Field("Concurrency", "is %d, want 1 to %d", c.Concurrency, maxConcurrency))
	}
	if c.Timeout < time.Millisecond || c.Timeout > maxTimeout {
		errs = append(errs, invalid.Field("Timeout", "is %s, want up to %s", c.Timeout, maxTimeout))
	}
	return errors.Join(append(errs, c.certificates().Validate())...)
}

func (c SinkConfig) certificates() credentials.Certificates {
	return credentials.Certificates{CAFile: c.CAFile, CertificateFile: c.CertificateFile, KeyFile: c.KeyFile}
}

// A Sink posts messages to receivers. Its methods may be called concurrently, and wait for each other.
type Sink struct {
	relay.Turns

	config    SinkConfig
	base      *url.URL
	dialer    *dialer
	transport *http.Transport
	client    *http.Client

	mu    sync.Mutex
	hosts map[string]*host // by host and port
}

var _ relay.Sink = (*Sink)(nil)

// Open validates a configuration. It does not connect: [Sink.Publish] and [Sink.Probe] report an unavailable receiver.
func Open(config SinkConfig) (*Sink, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("open the webhook sink: %w", err)
	}
	base, err := Parse(config.URL)
	if err != nil {
		return nil, err
	}
	d := &dialer{config.Allow, config.certificates()}
	transport := d.guarded()
	return &Sink{
		config: config, base: base, dialer: d, transport: transport,
		client: &http.Client{Transport: transport, CheckRedirect: followNone}, hosts: map[string]*host{},
	}, nil
}

// Probe connects to the URL's host. While the host's circuit is open, it only returns the reason.
func (s *Sink) Probe(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.host(s.base).refusal(time.Now()); err != nil {
		return err
	}
	dial, port := s.dialer.dial, "80"
	if s.base.Scheme == "https" {
		dial, port = s.dialer.dialTLS, "443"
	}
	conn, err := dial(ctx, "tcp", net.JoinHostPort(s.base.Hostname(), cmp.Or(s.base.Port(), port)))
	if err != nil {
		return away(&Error{Place: place(s.base), Err: err})
	}
	_ = conn.Close()
	return nil
}

// Check implements [relay.Sink].
func (s *Sink) Check(_ context.Context, destinations []string) (all []relay.Finding, err error) {
	keys, err := s.config.Signing.keys()
	if err != nil {
		return nil, err
	}
	add := func(when bool, severity relay.Severity, what, remedy string) {
		if when {
			all = append(all, relay.Finding{Severity: severity, What: what, Remedy: remedy})
		}
	}
	add(s.base.Scheme == "http", relay.SeverityWarning,
		"the URL is http://: what is sent can be read and changed on its way", "use https://")
	add(len(keys) == 0, relay.SeverityWarning, "requests are not signed: the receiver cannot tell them from others'",
		"set a secret")
	others := slices.DeleteFunc(slices.Clone(s.config.Hosts), func(host string) bool { return host == s.base.Host })
	add(len(others) > 0, relay.SeverityWarning,
		fmt.Sprintf("the sink has several hosts, %s and %s, and one position in the log: while one is away, messages to all wait",
			s.base.Host, strings.Join(others, ", ")),
		"give each host that can be away by itself a sink of its own, or, if there are many, send jobs (docs/operate/sinks.md)")
	add(len(keys) > 1, relay.SeverityNote, "requests are signed by two keys",
		"take the old one away when every receiver has the new one")
	for _, destination := range destinations {
		if _, err := s.config.target(s.base, strings.NewReplacer("*", "x", ">", "x").Replace(destination)); err != nil {
			add(true, relay.SeverityProblem, fmt.Sprintf("destination %q: %v", destination, err),
				"correct the route's destination, or the sink's hosts")
		}
	}
	return all, nil
}

// Close closes connections.
func (s *Sink) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// host returns the circuit of a URL's host. The caller holds the lock.
func (s *Sink) host(u *url.URL) *host {
	h := s.hosts[u.Host]
	if h == nil {
		h = &host{}
		s.hosts[u.Host] = h
	}
	return h
}

// host is the circuit of one receiver. While the receiver answers, the circuit is closed, and any number of requests
// may run up to the limit. At first, and after an outage, a single request is tried before there are more.
type host struct {
	answers  bool // the last request was answered
	failures int  // in a row; if there are any, the circuit is open until
	until    time.Time
	err      error // the last failure, a [*relay.UnavailableError]
	underWay int   // how many requests are running
}

const (
	leastPause = 500 * time.Millisecond
	mostPause  = 15 * time.Second
	mostAsked  = time.Minute // longest wait that a receiver can ask for; one message is then tried
)

// refusal returns why nothing may be sent now; nil if something may.
func (h *host) refusal(now time.Time) error {
	if h.failures > 0 && now.Before(h.until) {
		return h.err
	}
	return nil
}

// most returns how many requests may run at once.
func (h *host) most(concurrency int) int {
	if h.answers {
		return concurrency
	}
	return 1
}

// answered closes the circuit.
func (h *host) answered() { h.answers, h.failures, h.err = true, 0, nil }

// fell opens the circuit, at least for as long as the receiver asked. Requests that ran together fail together, and
// count as one failure.
func (h *host) fell(now time.Time, err error, asked time.Duration) {
	if h.refusal(now) == nil {
		h.failures++
	}
	pause := min(leastPause<<min(h.failures-1, 10), mostPause)
	if until := now.Add(max(pause, min(asked, mostAsked))); until.After(h.until) {
		h.until = until
	}
	h.answers, h.err = false, err
}

// fellSilent records a request without an answer. It opens the circuit if that request was the trial.
func (h *host) fellSilent(now time.Time, err error) {
	if !h.answers {
		h.fell(now, &relay.UnavailableError{Code: relay.CodeUnavailable, Err: err}, 0)
	}
	h.answers = false
}
