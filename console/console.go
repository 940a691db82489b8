package console

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/kinds"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/watch"
)

// Config configures the console. With a Pool and an Authenticator its zero value is a sane production setup.
type Config struct {
	// Pool is required; for the console alone, or shared with the API: a small one leaves dispatchers their share of
	// the server.
	Pool *pgxpool.Pool
	// Authenticator authenticates the tokens with which people sign in; required unless Who, OIDC or AnonymousLoopback
	// is set.
	Authenticator access.Authenticator
	// In a program that has its own login, Who returns the principal of a request, or access.ErrUnauthenticated, and
	// the console has no login page. Nil means that people sign in with tokens.
	Who func(*http.Request) (access.Principal, error)
	// OIDC is a provider at which people can sign in, in addition to tokens; nil means none. It requires a PublicURL:
	// the provider sends people back to callback below it, and CallbackURL must be empty or equal to that.
	OIDC *access.SignInConfig
	// Recheck is how often the provider is asked whether a person is still allowed in, if it issues refresh tokens; 0
	// means 5 minutes, at most half an hour. Without refresh tokens a session ends with its ID token.
	Recheck time.Duration
	// AnonymousLoopback lets requests from this machine do everything without a login. It is for development.
	AnonymousLoopback bool

	// PublicURL is where people open the console, such as https://ops.example.org/console/. If it is https, the cookie
	// is Secure. Requests to another host are refused. "" accepts any host.
	PublicURL string
	// Keys seal the sessions: 32 bytes each, at most two. The first one seals; the second one, the previous key, still
	// opens. Without keys, the console makes one that lasts as long as the process.
	Keys [][]byte
	// ReadOnly refuses everything that would change something.
	ReadOnly bool

	// Name identifies the instance to people; "" means the name of the database.
	Name string
	// Manual is the address of the manual, such as /manual/; "" shows no link.
	Manual string
	// TraceURL and LogURL link a job to its trace and its logs, such as https://traces.example.org/trace/{trace_id} and
	// https://logs.example.org/?q={job_id}; "" shows no link. See [CheckLink].
	TraceURL, LogURL string
	// Watch is state shared with the API of this process: counts, changes, what is wrong. If it is nil, the console has
	// its own.
	Watch *watch.State
	// Kinds contains the schemas of payloads; nil means none.
	Kinds *kinds.Schemas
	// AuditReads records in the audit, as payload.read, who reveals masked values of a job, or downloads its payload or
	// result. What cannot be recorded is not shown.
	AuditReads bool
	// Redact lists JSON pointers into payloads, results and checkpoints whose values are masked until a person asks for
	// them; * stands for any one segment. Members whose names look like secrets are always masked.
	Redact []string

	// Stopping, when closed, ends the streams of changes, which would otherwise delay [http.Server.Shutdown]. A nil
	// channel never does.
	Stopping <-chan struct{}

	// MaxInFlight limits the pages that are made at once; 0 means 32. One login has half of them at most. Others wait,
	// then get a 429.
	MaxInFlight int
	Timeout     time.Duration // of a page; 0 means 15 s

	Logger *slog.Logger // nil logs nothing
}

func (c Config) withDefaults() Config {
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 32)
	c.Timeout = cmp.Or(c.Timeout, 15*time.Second)
	c.Recheck = cmp.Or(c.Recheck, 5*time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Name == "" && c.Pool != nil {
		c.Name = c.Pool.Config().ConnConfig.Database
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	note := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	note(c.Pool == nil, "no Pool")
	note(c.Authenticator == nil && c.Who == nil && c.OIDC == nil && !c.AnonymousLoopback,
		"no Authenticator, no Who, no OIDC, and AnonymousLoopback is off: nobody could get in")
	note(c.OIDC != nil && c.Who != nil, "both OIDC and Who, want one of them")
	note(c.OIDC != nil && c.PublicURL == "", "OIDC without a PublicURL, want where the provider sends people back to")
	note(c.Recheck < time.Second || c.Recheck > idleLength/2,
		"Recheck is %s, want from 1 s to %s, or 0 for the default", c.Recheck, idleLength/2)
	note(c.MaxInFlight < 0, "MaxInFlight is negative, want more than 0, or 0 for the default")
	note(c.Timeout < 0, "Timeout is negative, want more than 0, or 0 for the default")
	note(len(c.Keys) > 2, "Keys has %d keys, want at most two", len(c.Keys))
	for i, key := range c.Keys {
		note(len(key) != keyBytes, "Keys[%d] has %d bytes, want %d", i, len(key), keyBytes)
	}
	for _, pointer := range c.Redact {
		note(!strings.HasPrefix(pointer, "/"), "Redact has %q, want JSON pointers such as /card/number", pointer)
	}
	for name, err := range map[string]error{
		"Manual": checkManual(c.Manual), "TraceURL": CheckLink(c.TraceURL, traceField),
		"LogURL": CheckLink(c.LogURL, jobField),
	} {
		note(err != nil, "%s: %w", name, err)
	}
	_, err := c.publicURL()
	note(err != nil, "PublicURL: %w", err)
	return errors.Join(errs...)
}

// publicURL returns nil if there is none.
func (c Config) publicURL() (*url.URL, error) {
	if c.PublicURL == "" {
		return nil, nil
	}
	u, err := url.Parse(c.PublicURL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" {
		return nil, errors.New("want something like https://host/path/, without user and query")
	}
	if !strings.HasSuffix(u.Path, "/") {
		u.Path += "/"
	}
	return u, nil
}

// site is the state that the pages share.
type site struct {
	config   Config
	log      *slog.Logger
	operator *operator.Operator
	watch    *watch.State
	public   *url.URL // nil if there is none
	persons  *persons // nil without a provider
	cookie   cookie
	ended    *access.EndedSessions
	origins  *http.CrossOriginProtection
	assets   *assets
	places   places // for pages
	forms    places // for large forms

	verifying sync.Mutex // held while somebody verifies the audit
	streams   streams
	exports   streams

	editing    editing
	complaints outage.Complaints
}

// New returns the console. It starts nothing: the handler works as long as it is served. Its errors are mistakes in the
// configuration.
func New(config Config) (http.Handler, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("configure the console: %w", err)
	}
	public, _ := config.publicURL() // validate has parsed it
	s := &site{
		config: config, log: config.Logger, operator: operator.New(config.Pool), watch: config.Watch, public: public,
		cookie: newCookie(public, config.Keys), origins: http.NewCrossOriginProtection(), assets: newAssets(),
		places: newPlaces(config.MaxInFlight), forms: newPlaces(largeForms),
		ended: access.NewEndedSessions(config.Pool),
	}
	if config.OIDC != nil {
		if err := s.useProvider(*config.OIDC); err != nil {
			return nil, fmt.Errorf("configure the console: OIDC: %w", err)
		}
	}
	if s.watch == nil {
		s.watch = watch.New(config.Pool, watch.Config{Changes: watch.ChangesConfig{Complain: s.complain}})
	}
	if public != nil {
		if err := s.origins.AddTrustedOrigin(public.Scheme + "://" + public.Host); err != nil {
			return nil, fmt.Errorf("configure the console: PublicURL: %w", err)
		}
	}
	return s, nil
}
