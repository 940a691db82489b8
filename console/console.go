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

// Config is how the console works. With a Pool and an Authenticator its zero value is a sane production setup.
type Config struct {
	// Pool is the console's own, or the API's: a small one keeps dispatchers their share of the server.
	Pool *pgxpool.Pool
	// Authenticator knows the tokens with which people sign in; required unless Who, OIDC or AnonymousLoopback is set.
	Authenticator access.Authenticator
	// The embedder's own login is Who: it returns the principal of a request, or access.ErrUnauthenticated.
	// With it there is no login page. Nil signs in with tokens.
	Who func(*http.Request) (access.Principal, error)
	// OIDC is a provider at which people sign in, besides with tokens; nil is none. It needs a PublicURL: the provider
	// sends people back to callback below it, and CallbackURL has to be empty or that.
	OIDC *access.SignInConfig
	// Recheck is how often the provider is asked whether somebody may still come in, if it gives refresh tokens; 0 is 5
	// minutes, at most half an hour. Without refresh tokens a session ends with its ID token.
	Recheck time.Duration
	// AnonymousLoopback lets requests that come from this machine do everything without a login: for development.
	AnonymousLoopback bool

	// PublicURL is where people open the console, such as https://ops.example.org/console/. With one that is https,
	// the cookie is Secure. Requests to another host are refused. "" takes any host.
	PublicURL string
	// Keys seal the sessions: 32 bytes each, at most two. The first one seals; the second one, the key before, still
	// opens. None makes one that lasts as long as the process.
	Keys [][]byte
	// ReadOnly refuses everything that would change something.
	ReadOnly bool

	// Name tells people which instance they look at; "" is the name of the database.
	Name string
	// Manual is where people read the manual, such as /manual/; "" links to none.
	Manual string
	// TraceURL and LogURL lead from a job to its trace and its logs, such as https://traces.example.org/trace/{trace_id}
	// and https://logs.example.org/?q={job_id}; "" is none. See [CheckLink].
	TraceURL, LogURL string
	// Watch is what the API of this process reads, too: counts, changes, what is wrong. nil is a state of the console's
	// own.
	Watch *watch.State
	// Kinds has the schemas of payloads; nil is none.
	Kinds *kinds.Schemas
	// Redact are JSON pointers into payloads, results and checkpoints whose values are masked until a person asks for
	// them; * stands for any one segment. Members whose names look like secrets always are.
	Redact []string

	// Stopping, when closed, ends the streams of changes, which would hold up [http.Server.Shutdown]. nil never does.
	Stopping <-chan struct{}

	// Pages that are worked on at once; 0 is 32. One login has half of them at most. Others wait, then get a 429.
	MaxInFlight int
	Timeout     time.Duration // of a page; 0 is 15 s

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
	note(c.Recheck < time.Second || c.Recheck > idleLength/2, "Recheck is %s, want from 1 s to %s, or 0 for the default", c.Recheck, idleLength/2)
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
		"Manual": checkManual(c.Manual), "TraceURL": CheckLink(c.TraceURL, traceField), "LogURL": CheckLink(c.LogURL, jobField),
	} {
		note(err != nil, "%s: %w", name, err)
	}
	_, err := c.publicURL()
	note(err != nil, "PublicURL: %w", err)
	return errors.Join(errs...)
}

// publicURL is nil without one.
func (c Config) publicURL() (*url.URL, error) {
	if c.PublicURL == "" {
		return nil, nil
	}
	u, err := url.Parse(c.PublicURL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("want something like https://host/path/, without user and query")
	}
	if !strings.HasSuffix(u.Path, "/") {
		u.Path += "/"
	}
	return u, nil
}

// site is what the pages share.
type site struct {
	config   Config
	log      *slog.Logger
	operator *operator.Operator
	watch    *watch.State
	public   *url.URL // nil without
	persons  *persons // nil without a provider
	cookie   cookie
	origins  *http.CrossOriginProtection
	assets   *assets
	places   places // of pages
	forms    places // of forms that are large

	verifying sync.Mutex // held while the audit is verified for somebody
	streams   streams

	editing    editing
	complaints outage.Complaints
}

// New makes the console. It starts nothing: the handler works as long as it is served. Its errors are mistakes in the
// configuration.
func New(config Config) (http.Handler, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("configure the console: %w", err)
	}
	public, _ := config.publicURL() // validate has seen it
	s := &site{
		config: config, log: config.Logger, operator: operator.New(config.Pool), watch: config.Watch, public: public,
		cookie: newCookie(public, config.Keys), origins: http.NewCrossOriginProtection(), assets: newAssets(),
		places: newPlaces(config.MaxInFlight), forms: newPlaces(largeForms),
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
