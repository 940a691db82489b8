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

// Config configures the API. With a Pool and an Authenticator its zero value is a sane production setup.
type Config struct {
	// Pool is required, and for the API alone: a small one leaves dispatchers their share of the server. One caller's
	// requests use three quarters of the connections that the others leave.
	Pool *pgxpool.Pool
	// QuickPool is for what every request needs and takes a moment, finding and storing single jobs: requests that use
	// up Pool do not delay it. nil means Pool, of which other requests then leave half.
	QuickPool *pgxpool.Pool
	// Producer stores the jobs; nil means one of QuickPool with coalesced wake-ups. If this process also dispatches,
	// pass the producer of app.Config.
	Producer *outbox.Producer
	// Authenticator identifies the owner of a bearer token; required unless AnonymousLoopback is set.
	Authenticator access.Authenticator
	// AnonymousLoopback allows requests without a token from this machine to do everything. It is for development.
	AnonymousLoopback bool

	// AuditReads records in the audit, as payload.read, who reads what only payload.read shows: the payload and the
	// headers of a job, the results of its steps, and the payload that an edit has replaced. What cannot be recorded is
	// not shown. It does not record who reads results of jobs, as every caller of a job does, who searches in payloads,
	// and who reads through other services, such as the operators' service on NATS.
	AuditReads bool
	// Kinds contains the schemas against which payloads are validated; nil checks nothing.
	Kinds *kinds.Schemas
	// Stopping, when closed, ends the streams of changes, which would otherwise delay http.Server.Shutdown: pass a
	// channel that is closed before that. Their clients reconnect. A nil channel never ends them.
	Stopping <-chan struct{}

	MaxInFlight  int // requests in progress at once; 0 means 64. One caller may have 3/4 of what the others leave
	MaxQueued    int // requests waiting for that; 0 means 128, shared in the same way. Others get a 429
	MaxBodyBytes int // of a request; 0 means 1 MiB. A batch may have 16 times that
	// MaxBodies limits the bytes of all bodies in memory, including those arriving; 0 means 64 times MaxBodyBytes, and
	// 48 times is the minimum. Bodies of one caller may take half of what the others leave. Others get a 429. Payloads
	// and results that are being read count as well.
	MaxBodies     int
	RequestsLimit float64       // requests per second of one principal; 0 means no limit
	Timeout       time.Duration // of a request; 0 means 15 s
	MaxStreams    int           // streams of changes at once; 0 means 256. Others get a 429
	CallerStreams int           // the same per caller; 0 means a quarter of MaxStreams, and at least 4

	// CountAtOnce makes New start counting the open jobs of all tenants, so that no request waits for a count: twice a
	// minute while somebody asks, for an hour after that, and until Stopping is closed.
	CountAtOnce bool
	// Watch is state shared with the console of this process. If it is nil, the API has its own, to which CountAtOnce
	// applies.
	Watch *watch.State

	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers no metrics

	// These are for tests.
	lookEvery, keepAlive, writeTimeout, deafAfter, bodyTimeout time.Duration
	maxChanges, maxWaiting                                     int
	restAfter                                                  func(took time.Duration) time.Duration
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
	c.QuickPool = cmp.Or(c.QuickPool, c.Pool)
	if c.Producer == nil && c.QuickPool != nil {
		c.Producer = outbox.NewProducer(c.QuickPool, outbox.NotifyCoalesced)
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
		errs = append(errs, fmt.Errorf("MaxBodies is %d, want at least %d, three times what a batch may have",
			c.MaxBodies, least))
	}
	return errors.Join(errs...)
}

// server is the state that the routes share.
type server struct {
	config       Config
	log          *slog.Logger
	metrics      *metrics
	operator     *operator.Operator
	quick        *operator.Operator // finds single jobs, beside operator
	admission    *admission
	statements   *line           // to the connections of Pool
	batches      *line           // to the Producer, for requests that store jobs in transactions of their own
	limits       *callers.Limits // nil without limits
	unknown      *callers.Limits // of immediate answers to invalid bearers
	inserts      *group[outbox.Request, stored]
	keyedInserts *group[outbox.Request, stored]
	lookups      *group[operator.Wanted, operator.Job]
	watch        *watch.State
	bodies       *bodies
	streams      *quota
	answers      *quota // requests in progress, and answers being read
	checks       *line  // to validations of payloads
	newJob       jobSchema

	complaints outage.Complaints
	refused    outage.Complaints // refused bearers
}

// jobSchema validates a line of a batch.
type jobSchema struct {
	registry huma.Registry
	schema   *huma.Schema
	shape    *shape
}

// New returns the API. It starts nothing except counting, if asked to: the handler works as long as it is served. Its
// errors are mistakes in the configuration.
func New(config Config) (http.Handler, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("configure the API: %w", err)
	}
	s := &server{
		config: config, log: config.Logger, metrics: newMetrics(config.Registerer), operator: operator.New(config.Pool),
		quick:      operator.New(config.QuickPool),
		admission:  newAdmission(config.MaxInFlight, config.MaxQueued),
		statements: newLine(connections(config), unlimited),
		batches:    newLine(maxBatches, unlimited),
		unknown:    callers.NewLimits(unknownRate),
		answers:    newQuota("requests under way", 1, 8*config.MaxInFlight, 2*config.MaxInFlight),
		bodies:     newBodies(int64(config.MaxBodies), int64(config.MaxBodyBytes), config.MaxQueued),
		refused:    outage.Complaints{Most: maxRefusedLogged},
	}
	if config.RequestsLimit > 0 {
		s.limits = callers.NewLimits(config.RequestsLimit)
	}
	s.watch = newWatch(s)
	s.inserts, s.keyedInserts = newGroup(2, 256, s.storeGroup), newGroup(2, keyedGroup, s.storeGroup)
	s.lookups = newGroup(2, 256, s.findGroup)
	s.streams = newQuota("streams open", 10, config.MaxStreams, config.CallerStreams)
	s.checks = newLine(runtime.GOMAXPROCS(0), unlimited)
	mux := http.NewServeMux()
	if _, err := s.register(mux, routes); err != nil {
		return nil, err
	}
	return s.outermost(mux), nil
}

// maxBatches is how many requests store jobs in transactions of their own at once: beside them, the Producer has
// connections for the groups of all the others.
const maxBatches = 4

// connections returns how many connections of Pool requests may use at once.
func connections(c Config) int {
	most := int(c.Pool.Config().MaxConns)
	if c.QuickPool == c.Pool {
		most /= 2
	}
	return max(most, 1)
}

// OpenAPI returns the description of the API, OpenAPI 3.1 as indented JSON, which GET /openapi.json serves.
func OpenAPI() ([]byte, error) {
	s := &server{config: Config{}.withDefaults()}
	described, err := s.register(http.NewServeMux(), routes)
	if err != nil {
		return nil, err
	}
	return describe(described)
}
