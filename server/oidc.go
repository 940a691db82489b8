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

// Authenticator authenticates the tokens of a database and, once its provider has been discovered, that provider's
// JWTs. It is the API's default, and serves other interfaces of the same process.
type Authenticator struct {
	access.Authenticator
	provider *lateOIDC // nil without a provider
}

// NewAuthenticator returns an Authenticator for the tokens in the database of pool, and for a provider, unless that is
// nil.
func NewAuthenticator(pool *pgxpool.Pool, provider *access.OIDCConfig, log *slog.Logger) *Authenticator {
	tokens := access.NewTokens(pool, access.TokensConfig{Logger: log})
	if provider == nil {
		return &Authenticator{Authenticator: tokens}
	}
	late := &lateOIDC{config: *provider}
	late.config.Logger = log
	return &Authenticator{access.Combine(tokens, late), late}
}

// Discover asks the provider for its configuration until it answers or ctx ends. Its JWTs cannot be verified before.
func (a *Authenticator) Discover(ctx context.Context) {
	if a.provider != nil {
		a.provider.discover(ctx)
	}
}

// lateOIDC verifies JWTs once their provider has been discovered. A provider that is unavailable, or differs from the
// configuration, does not keep anything else from working: its JWTs cannot be verified until then, and /readyz reports
// it.
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
		l.config.Logger.LogAttrs(ctx, slog.LevelWarn, "OIDC provider not discovered",
			slog.String("issuer", l.config.Issuer), slog.String("err", err.Error()))
		if retry.Wait(ctx) != nil {
			return
		}
	}
}

// ready returns why JWTs cannot be verified, which does not affect callers with tokens; nil is an API without a
// provider.
func (l *lateOIDC) ready() error {
	if l == nil || l.judge.Load() != nil {
		return nil
	}
	if failure := l.failure.Load(); failure != nil {
		return fmt.Errorf("%w: no JWT is accepted: %w", app.ErrDegraded, *failure)
	}
	return fmt.Errorf("%w: no JWT is accepted: the OIDC provider is being discovered", app.ErrDegraded)
}
