package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/operator"
	relaynats "github.com/posthaste-dev/posthaste/relay/nats"
)

// DefaultSubjectPrefix begins the subjects of the methods: rpc.v1.Jobs.List.
const DefaultSubjectPrefix = "rpc.v1"

const (
	serviceName = "posthaste-jobs"

	maxUnderWay = 64               // requests at once
	maxOfCaller = 16               // and per caller
	timeout     = 10 * time.Second // per request

	// maxRefusedLogged limits the lines about refused bearer tokens in any ten seconds.
	maxRefusedLogged = 20
)

// Config sets how the methods are served.
type Config struct {
	NATS          relaynats.Config
	SubjectPrefix string // "" means DefaultSubjectPrefix

	// Pool is required, and for the service alone. If its login is a member of outbox_api alone, the database restricts
	// it to its callers' tenants. A few connections are enough.
	Pool *pgxpool.Pool
	// Authenticator identifies the owner of a bearer token.
	Authenticator access.Authenticator

	RequestsLimit float64      // requests per second of one caller; 0 means no limit
	Version       string       // of the program; "" or an invalid semantic version means 0.0.0
	Logger        *slog.Logger // nil logs nothing
}

var versions = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$`)

func (c Config) validate() error {
	errs := []error{c.NATS.Validate(), relaynats.CheckPrefix(c.SubjectPrefix)}
	if c.Pool == nil {
		errs = append(errs, errors.New("no Pool"))
	}
	if c.Authenticator == nil {
		errs = append(errs, errors.New("no Authenticator: nobody could get in"))
	}
	if c.RequestsLimit < 0 {
		errs = append(errs, errors.New("RequestsLimit is negative, want more than 0, or 0 for no limit"))
	}
	return errors.Join(errs...)
}

// A Service serves the methods. Make one with [New].
type Service struct {
	config   Config
	operator *operator.Operator
	log      *slog.Logger

	slots   chan struct{} // one for each request in progress
	mu      sync.Mutex
	callers map[callers.Caller]int // how many of them each caller has
	limits  *callers.Limits        // nil without limits
	refused outage.Complaints
	failed  outage.Complaints
}

// New returns a service. It does not connect yet. Its errors are mistakes in the configuration.
func New(config Config) (*Service, error) {
	config.SubjectPrefix = cmp.Or(config.SubjectPrefix, DefaultSubjectPrefix)
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("configure the RPC: %w", err)
	}
	if !versions.MatchString(config.Version) {
		config.Version = "0.0.0"
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Service{
		config: config, operator: operator.New(config.Pool), log: config.Logger,
		slots: make(chan struct{}, maxUnderWay), callers: map[callers.Caller]int{},
		refused: outage.Complaints{Most: maxRefusedLogged},
	}
	if config.RequestsLimit > 0 {
		s.limits = callers.NewLimits(config.RequestsLimit)
	}
	return s, nil
}

// Run serves until ctx ends, and then answers the requests that have arrived. It waits for an unavailable NATS server.
// Only one Run may be active at a time.
func (s *Service) Run(ctx context.Context) error {
	relaynats.KeepConnected(ctx, s.config.NATS, s.log, s.serve)
	return s.awaitAnswers(time.After(timeout)) // also those of broken connections
}

// serve serves on one connection until ctx ends.
func (s *Service) serve(ctx context.Context, nc *nats.Conn) error {
	endpoints, err := micro.AddService(nc, micro.Config{
		Name: serviceName, Version: s.config.Version, Description: "Jobs: look at them, act on them",
		QueueGroup: serviceName,
	})
	if err != nil {
		return err
	}
	group := endpoints.AddGroup(s.config.SubjectPrefix + ".Jobs")
	for _, m := range methods {
		err := group.AddEndpoint(m.name, micro.HandlerFunc(func(r micro.Request) { s.take(nc, m, r) }))
		if err != nil {
			return errors.Join(err, endpoints.Stop())
		}
	}
	<-ctx.Done()
	return s.stop(nc, endpoints)
}

// stop accepts no more requests and waits for those that have arrived.
//
// The server sends a subscription nothing after it has read that it ended. So when the answer to a flush arrives, every
// request that the server has sent is in the buffer of its subscription. A barrier is passed once those buffers are
// empty, which is when take has a slot for each request. Then all slots are free when all requests are answered.
func (s *Service) stop(nc *nats.Conn, endpoints micro.Service) error {
	if err := endpoints.Stop(); err != nil || nc.IsClosed() {
		return err
	}
	limit := time.After(timeout)
	if nc.FlushTimeout(timeout) == nil {
		passed := make(chan struct{})
		if nc.Barrier(func() { close(passed) }) == nil {
			select {
			case <-passed:
			case <-limit:
			}
		}
	}
	return s.awaitAnswers(limit)
}

// awaitAnswers waits until no request is in progress.
func (s *Service) awaitAnswers(limit <-chan time.Time) error {
	for range maxUnderWay {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-limit:
			return errors.New("requests were cut off")
		}
	}
	return nil
}
