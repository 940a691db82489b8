package access

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// These limit the contents of a token, and how many are listed.
const (
	maxNameBytes  = 128
	maxActorBytes = 256
	maxLifetime   = 10 * 366 * 24 * time.Hour
	maxListed     = 10_000
)

// ErrNoToken reports that no token has the id.
var ErrNoToken = errors.New("no such token")

// TokensConfig sets how tokens are kept. The zero value is a sane setup.
type TokensConfig struct {
	// Record is called in the transaction of every act on a token: the act takes effect exactly if Record returns nil
	// and the transaction commits. Nil writes a row of outbox.audit.
	Record func(ctx context.Context, tx pgx.Tx, act TokenAct) error

	Logger *slog.Logger // nil logs nothing
}

// TokenAct is an act on a token.
type TokenAct struct {
	Verb  string // "token.create" or "token.revoke"
	Actor string // who did it
	Token TokenInfo
	Again bool // it had been revoked before
}

// TokenInfo is everything that is known about a token after it has been issued.
type TokenInfo struct {
	ID           string
	Name         string
	Tenant       outbox.ID
	AllTenants   bool
	Capabilities []string
	CreatedBy    string
	CreatedAt    time.Time
	ExpiresAt    time.Time // zero if it does not expire
	LastUsedAt   time.Time // to the minute; zero if it was not used
	RevokedAt    time.Time // zero if it was not revoked
}

// Grant sets what a new token allows.
type Grant struct {
	Name         string // its user
	Tenant       outbox.ID
	AllTenants   bool // it sees and acts on the jobs of every tenant
	Capabilities []Capability
	Lifetime     time.Duration // 0 means unlimited
	CreatedBy    string
}

func (g Grant) validate() error {
	var errs []error
	note := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	text := func(field, s string, most int) {
		note(s == "" || len(s) > most || !utf8.ValidString(s) || hasControl(s), "%s is %q, want 1 to %d bytes of text",
			field, s, most)
	}
	text("Name", g.Name, maxNameBytes)
	text("CreatedBy", g.CreatedBy, maxActorBytes)
	note(len(g.Capabilities) == 0, "Capabilities is empty, want at least one")
	for _, c := range g.Capabilities {
		_, err := ParseCapability(string(c))
		note(err != nil, "Capabilities: %w", err)
	}
	note(g.Lifetime < 0 || g.Lifetime > maxLifetime, "Lifetime is %s, want up to 10 years, or 0 for ever", g.Lifetime)
	return errors.Join(errs...)
}

// Tokens makes, lists, revokes and authenticates our own bearer tokens.
type Tokens struct {
	pool   *pgxpool.Pool
	db     *sqlgen.Queries
	record func(context.Context, pgx.Tx, TokenAct) error
	log    *slog.Logger
	cache  *cache[known]
}

var _ Authenticator = (*Tokens)(nil)

// NewTokens returns the Tokens of the database that pool connects to.
func NewTokens(pool *pgxpool.Pool, config TokensConfig) *Tokens {
	t := &Tokens{pool: pool, db: sqlgen.New(pool), record: config.Record, log: config.Logger}
	if t.record == nil {
		t.record = audit
	}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	t.cache = newTokenCache(t.find)
	return t
}

// audit records an act on a token like operators' acts. It records a second revocation too, with the time of the first.
func audit(ctx context.Context, tx pgx.Tx, act TokenAct) error {
	after := map[string]any{"name": act.Token.Name, "revoked_at": instant(act.Token.RevokedAt)}
	before := map[string]any{"revoked_at": nil}
	switch {
	case act.Verb == tokenCreate:
		before, after = nil, map[string]any{
			"name": act.Token.Name, "all_tenants": act.Token.AllTenants, "capabilities": act.Token.Capabilities,
			"expires_at": instant(act.Token.ExpiresAt),
		}
	case act.Again:
		before["revoked_at"] = after["revoked_at"]
	}
	was, err := optionalJSON(before)
	if err != nil {
		return err
	}
	became, err := optionalJSON(after)
	if err != nil {
		return err
	}
	return sqlgen.New(tx).InsertAudit(ctx, sqlgen.InsertAuditParams{
		Actor: act.Actor, Act: act.Verb, TenantID: pgvalue.UUID(act.Token.Tenant), Target: act.Token.ID, Before: was,
		After: became,
	})
}

// optionalJSON returns nil for nil.
func optionalJSON(object map[string]any) ([]byte, error) {
	if object == nil {
		return nil, nil
	}
	return json.Marshal(object)
}

// instant returns nil for the zero time.
func instant(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC()
}

// These are the acts on tokens, as the audit names them.
const (
	tokenCreate = "token.create"
	tokenRevoke = "token.revoke"
)

// Create makes a token. The token is not stored and cannot be shown again: hand it to its user now.
func (t *Tokens) Create(ctx context.Context, grant Grant) (Token, TokenInfo, error) {
	if err := grant.validate(); err != nil {
		return Token{}, TokenInfo{}, fmt.Errorf("create token: %w", err)
	}
	token := newToken()
	hash := token.hash()
	params := sqlgen.CreateTokenParams{
		ID: token.id, SecretHash: hash[:], Name: grant.Name,
		TenantID:   pgvalue.UUID(cmp.Or(grant.Tenant, outbox.RootTenant)),
		AllTenants: grant.AllTenants, CreatedBy: grant.CreatedBy,
		Lifetime: pgvalue.IntervalOrNull(grant.Lifetime),
	}
	for _, c := range grant.Capabilities {
		params.Capabilities = append(params.Capabilities, string(c))
	}
	var info TokenInfo
	err := pgx.BeginTxFunc(ctx, t.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		row, err := sqlgen.New(tx).CreateToken(ctx, params)
		if err != nil {
			return err
		}
		info = infoOf(sqlgen.ListTokensRow(row))
		return t.record(ctx, tx, TokenAct{Verb: tokenCreate, Actor: grant.CreatedBy, Token: info})
	})
	if err != nil {
		return Token{}, TokenInfo{}, fmt.Errorf("create token: %w", err)
	}
	t.log.LogAttrs(ctx, slog.LevelInfo, "token created", slog.String("token", info.ID), slog.String("name", info.Name),
		slog.String("by", grant.CreatedBy))
	return token, info, nil
}

// List returns the newest 10 000 tokens, newest first, including those that are no longer valid.
func (t *Tokens) List(ctx context.Context) ([]TokenInfo, error) {
	rows, err := t.db.ListTokens(ctx, maxListed)
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	infos := make([]TokenInfo, len(rows))
	for i, row := range rows {
		infos[i] = infoOf(row)
	}
	return infos, nil
}

// Revoke ends a token permanently, by its id. Every process refuses it within 5 seconds. It returns [ErrNoToken] if
// there is none.
func (t *Tokens) Revoke(ctx context.Context, id, actor string) (TokenInfo, error) {
	if !idForm.MatchString(id) {
		return TokenInfo{}, fmt.Errorf("revoke token %.40q: %w", id, ErrNoToken)
	}
	var info TokenInfo
	err := pgx.BeginTxFunc(ctx, t.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		rows, err := sqlgen.New(tx).RevokeToken(ctx, id)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return ErrNoToken
		}
		info = infoOf(revoked(rows[0]))
		return t.record(ctx, tx, TokenAct{Verb: tokenRevoke, Actor: actor, Token: info, Again: rows[0].WasRevoked})
	})
	if err != nil {
		return TokenInfo{}, fmt.Errorf("revoke token %s: %w", id, err)
	}
	t.cache.forget(id)
	t.log.LogAttrs(ctx, slog.LevelInfo, "token revoked", slog.String("token", id), slog.String("name", info.Name),
		slog.String("by", actor))
	return info, nil
}

func revoked(row sqlgen.RevokeTokenRow) sqlgen.ListTokensRow {
	return sqlgen.ListTokensRow{
		ID: row.ID, Name: row.Name, TenantID: row.TenantID, AllTenants: row.AllTenants, Capabilities: row.Capabilities,
		CreatedBy: row.CreatedBy,
		CreatedAt: row.CreatedAt, ExpiresAt: row.ExpiresAt, LastUsedAt: row.LastUsedAt, RevokedAt: row.RevokedAt,
	}
}

func infoOf(row sqlgen.ListTokensRow) TokenInfo {
	return TokenInfo{
		ID: row.ID, Name: row.Name, Tenant: row.TenantID.Bytes, AllTenants: row.AllTenants,
		Capabilities: row.Capabilities,
		CreatedBy:    row.CreatedBy, CreatedAt: row.CreatedAt.Time, ExpiresAt: row.ExpiresAt.Time,
		LastUsedAt: row.LastUsedAt.Time, RevokedAt: row.RevokedAt.Time,
	}
}

func hasControl(s string) bool {
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			return true
		}
	}
	return false
}
