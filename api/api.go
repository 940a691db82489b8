package api

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/kinds"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

// Config is how the API works. With a Pool and an Authenticator its zero value is a
// sane production setup.
type Config struct {
	// Pool is the API's own: a small one keeps dispatchers their share of the server.
	Pool *pgxpool.Pool
	// Producer stores the jobs; nil is one of Pool with coalesced wake-ups. Give the
	// one of app.Config if this process dispatches too.
	Producer *outbox.Producer
	// Authenticator knows who a bearer token belongs to; required unless
	// AnonymousLoopback.
	Authenticator access.Authenticator
	// AnonymousLoopback lets requests without a token that come from this machine do
	// everything: for development.
	AnonymousLoopback bool

	// Kinds has the schemas that payloads are checked by; nil checks none.
	Kinds *kinds.Schemas
	// Stopping, when closed, ends the streams of changes, which would hold up
	// http.Server.Shutdown: give a channel that is closed before. Their clients come back.
	Stopping <-chan struct{}

	MaxInFlight  int // requests in progress at once; 0 is 64. One caller may have 3/4 of what the others leave
	MaxQueued    int // requests that wait for that; 0 is 128, shared in the same way. Others get a 429
	MaxBodyBytes int // of a request; 0 is 1 MiB. A batch may have 16 times that
	// MaxBodies bounds the bytes of bodies in memory at once, with those that are arriving; 0 is 64 times MaxBodyBytes,
	// and 48 times is the least. Bodies of one caller may be half of what the others leave. More get a 429. Payloads
	// and results that are being read count as well.
	MaxBodies     int
	RequestsLimit float64       // of one principal, a second; 0 is without limit
	Timeout       time.Duration // of a request; 0 is 15 s
	MaxStreams    int           // streams of changes at once; 0 is 256. Others get a 429
	CallerStreams int           // of them, those of one caller; 0 is a quarter of MaxStreams, and 4 at least

	// CountAtOnce makes New begin to count the open jobs of all tenants, so that no request waits for a count: twice a
	// minute while somebody asks, for an hour after that, and until Stopping is closed.
	CountAtOnce bool
	// Watch is what the console of this process reads, too. nil is a state of the API's own, which CountAtOnce
	// is for.
	Watch *watch.State

	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers no metrics

	// Of streams, for tests.
	lookEvery, keepAlive, writeTimeout, deafAfter time.Duration
	maxChanges, maxWaiting                        int
	restAfter                                     func(took time.Duration) time.Duration
}

func (c Config) withDefaults() Config {
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 64)
	c.MaxQueued = cmp.Or(c.MaxQueued, 128)
	c.MaxBodyBytes = cmp.Or(c.MaxBodyBytes, 1<<20)
	c.Timeout = cmp.Or(c.Timeout, 15*time.Second)
	c.MaxBodies = cmp.Or(c.MaxBodies, 4*batchFactor*c.MaxBodyBytes)
	c.MaxStreams = cmp.Or(c.MaxStreams, 256)
	c.CallerStreams = cmp.Or(c.CallerStreams, max(c.MaxStreams/4, 4))
	c.keepAlive, c.writeTimeout = cmp.Or(c.keepAlive, keepAlive), cmp.Or(c.writeTimeout, writeTimeout)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Producer == nil && c.Pool != nil {
		c.Producer = outbox.NewProducer(c.Pool, outbox.NotifyCoalesced)
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Pool == nil {
		errs = append(errs, errors.New("no Pool"))
	}
	if c.Authenticator == nil && !c.AnonymousLoopback {
		errs = append(errs, errors.New("no Authenticator, and AnonymousLoopback is off: nobody could get in"))
	}
	for _, n := range []struct {
		name  string
		value float64
	}{
		{"MaxInFlight", float64(c.MaxInFlight)},
		{"MaxQueued", float64(c.MaxQueued)},
		{"MaxBodyBytes", float64(c.MaxBodyBytes)},
		{"RequestsLimit", c.RequestsLimit},
		{"Timeout", float64(c.Timeout)},
		{"MaxStreams", float64(c.MaxStreams)},
		{"CallerStreams", float64(c.CallerStreams)},
	} {
		if n.value < 0 {
			errs = append(errs, fmt.Errorf("%s is negative, want more than 0, or 0 for the default", n.name))
		}
	}
	if least := 3 * batchFactor * c.MaxBodyBytes; c.MaxBodies < least {
		errs = append(errs, fmt.Errorf("MaxBodies is %d, want at least %d, three times what a batch may have", c.MaxBodies, least))
	}
	return errors.Join(errs...)
}

// server is what the routes share.
type server struct {
	config       Config
	log          *slog.Logger
	metrics      *metrics
	operator     *operator.Operator
	admission    *admission
	limits       *callers.Limits // nil without
	unknown      *callers.Limits // of answers at once to bearers that are not good
	inserts      *group[outbox.Request, stored]
	keyedInserts *group[outbox.Request, stored]
	lookups      *group[operator.Wanted, operator.Job]
	watch        *watch.State
	bodies       *bodies
	streams      *quota
	answers      *quota        // requests that are worked on, and answers that are being read
	checks       chan struct{} // of payloads by their schemas, at once
	newJob       jobSchema

	complaints outage.Complaints
	refused    outage.Complaints // of bearers
}

// jobSchema is what a line of a batch is checked by.
type jobSchema struct {
	registry huma.Registry
	schema   *huma.Schema
	shape    *shape
}

// New makes the API. It starts nothing but a count, if asked to: the handler works as
// long as it is served.
// Its errors are mistakes in the configuration.
func New(config Config) (http.Handler, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("configure the API: %w", err)
	}
	s := &server{
		config: config, log: config.Logger, metrics: newMetrics(config.Registerer), operator: operator.New(config.Pool),
		admission: newAdmission(config.MaxInFlight, config.MaxQueued),
		unknown:   callers.NewLimits(unknownRate),
		answers:   newQuota("requests under way", 1, 8*config.MaxInFlight, 2*config.MaxInFlight),
		bodies:    newBodies(int64(config.MaxBodies), int64(config.MaxBodyBytes), config.MaxQueued),
		refused:   outage.Complaints{Most: maxRefusedLogged},
	}
	if config.RequestsLimit > 0 {
		s.limits = callers.NewLimits(config.RequestsLimit)
	}
	s.watch = newWatch(s)
	s.inserts, s.keyedInserts = newGroup(2, 256, s.storeGroup), newGroup(2, keyedGroup, s.storeGroup)
	s.lookups = newGroup(2, 256, s.findGroup)
	s.streams, s.checks = newQuota("streams open", 10, config.MaxStreams, config.CallerStreams), make(chan struct{}, runtime.GOMAXPROCS(0))
	mux := http.NewServeMux()
	if _, err := s.register(mux, routes); err != nil {
		return nil, err
	}
	return s.outermost(mux), nil
}

// OpenAPI is the description of the API, OpenAPI 3.1 as indented JSON. It is what
// GET /openapi.json answers.
func OpenAPI() ([]byte, error) {
	s := &server{config: Config{}.withDefaults()}
	described, err := s.register(http.NewServeMux(), routes)
	if err != nil {
		return nil, err
	}
	return describe(described)
}
