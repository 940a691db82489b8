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

// DefaultSubjectPrefix is what the subjects of the methods begin with: rpc.v1.Jobs.List.
const DefaultSubjectPrefix = "rpc.v1"

const (
	serviceName = "posthaste-jobs"

	maxUnderWay = 64               // requests at once
	maxOfCaller = 16               // and of one caller
	timeout     = 10 * time.Second // of a request

	// maxRefusedLogged bounds the lines about refused bearers in any ten seconds.
	maxRefusedLogged = 20
)

// Config is how the methods are served.
type Config struct {
	NATS          relaynats.Config
	SubjectPrefix string // "" is DefaultSubjectPrefix

	// Pool is the service's own; a login that is a member of outbox_api alone is kept to its callers' tenants by the
	// database. Some connections are enough.
	Pool *pgxpool.Pool
	// Authenticator knows who a bearer token belongs to.
	Authenticator access.Authenticator

	RequestsLimit float64      // of one caller, a second; 0 is without limit
	Version       string       // of the program; "" or what is no semantic version is 0.0.0
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

// Service serves the methods. Make it with [New].
type Service struct {
	config   Config
	operator *operator.Operator
	log      *slog.Logger

	slots   chan struct{} // of requests under way
	mu      sync.Mutex
	callers map[callers.Caller]int // how many of them are theirs
	limits  *callers.Limits        // nil without
	refused outage.Complaints
	failed  outage.Complaints
}

// New makes a service. It connects to nothing yet. Its errors are mistakes in the configuration.
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
		slots: make(chan struct{}, maxUnderWay), callers: map[callers.Caller]int{}, refused: outage.Complaints{Most: maxRefusedLogged},
	}
	if config.RequestsLimit > 0 {
		s.limits = callers.NewLimits(config.RequestsLimit)
	}
	return s, nil
}

// Run serves until ctx ends, and then answers what has come. A NATS server that is away is waited for. It may be called
// once at a time.
func (s *Service) Run(ctx context.Context) error {
	relaynats.KeepConnected(ctx, s.config.NATS, s.log, s.serve)
	return s.awaitAnswers(time.After(timeout)) // those of connections that broke, too
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

// stop takes no more requests and waits for those that have come.
//
// The server sends a subscription nothing after it has read that it ended. So behind the answer to a flush every
// request that it has sent is in the buffer of its subscription; and a barrier is passed once those buffers are empty,
// which is when take has a slot for each of them. Then all slots are free when all requests are answered.
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

// awaitAnswers waits until no request is under way.
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
