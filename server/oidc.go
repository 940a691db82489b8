package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/internal/backoff"
)

// Authenticator knows the tokens of a database and, once its provider has been discovered, that one's JWTs. It is what
// the API has by default, for other doors to the same process.
type Authenticator struct {
	access.Authenticator
	provider *lateOIDC // nil without
}

// NewAuthenticator makes one of the tokens that pool leads to, and of a provider, unless that is nil.
func NewAuthenticator(pool *pgxpool.Pool, provider *access.OIDCConfig, log *slog.Logger) *Authenticator {
	tokens := access.NewTokens(pool, access.TokensConfig{Logger: log})
	if provider == nil {
		return &Authenticator{Authenticator: tokens}
	}
	late := &lateOIDC{config: *provider}
	late.config.Logger = log
	return &Authenticator{access.Combine(tokens, late), late}
}

// Discover asks the provider who it is until it answers or ctx ends. Its JWTs cannot be judged before.
func (a *Authenticator) Discover(ctx context.Context) {
	if a.provider != nil {
		a.provider.discover(ctx)
	}
}

// lateOIDC judges JWTs once their provider has been discovered. A provider that is
// away, or is not what the configuration says, keeps nothing else from working:
// its JWTs cannot be judged until then, and /readyz tells.
type lateOIDC struct {
	config  access.OIDCConfig
	judge   atomic.Pointer[access.OIDC]
	failure atomic.Pointer[error] // of the latest discovery
}

var _ access.Authenticator = (*lateOIDC)(nil)

func (l *lateOIDC) Authenticate(ctx context.Context, bearer string) (access.Principal, error) {
	if judge := l.judge.Load(); judge != nil {
		return judge.Authenticate(ctx, bearer)
	}
	return access.Principal{}, fmt.Errorf("authenticate a JWT: %w: it was not discovered yet", access.ErrProviderAway)
}

// discover asks the provider until it answers or ctx ends.
func (l *lateOIDC) discover(ctx context.Context) {
	retry := backoff.Backoff{Min: 500 * time.Millisecond, Max: time.Minute}
	for ctx.Err() == nil && l.judge.Load() == nil {
		judge, err := access.NewOIDC(ctx, l.config)
		if err == nil {
			l.judge.Store(judge)
			return
		}
		l.failure.Store(&err)
		l.config.Logger.LogAttrs(ctx, slog.LevelWarn, "OIDC provider not discovered", slog.String("issuer", l.config.Issuer), slog.String("err", err.Error()))
		if retry.Wait(ctx) != nil {
			return
		}
	}
}

// ready says why JWTs cannot be judged, which callers with tokens do not need; nil is an API without a provider.
func (l *lateOIDC) ready() error {
	if l == nil || l.judge.Load() != nil {
		return nil
	}
	if failure := l.failure.Load(); failure != nil {
		return fmt.Errorf("%w: no JWT is accepted: %w", app.ErrDegraded, *failure)
	}
	return fmt.Errorf("%w: no JWT is accepted: the OIDC provider is being discovered", app.ErrDegraded)
}
