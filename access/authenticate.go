package access

import (
	"context"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

// touchTimeout limits recording that a token was used, which is not worth a longer wait.
const touchTimeout = time.Second

// known is a token as the database recently had it.
type known struct {
	hash      [32]byte
	principal Principal
	revoked   bool
	expires   time.Time // by our monotonic clock, derived from the database's; zero means never
	touchDue  atomic.Bool
}

// Authenticate returns the owner of the bearer token. It queries the database once in a few seconds for each token; see
// the guarantees of the package.
func (t *Tokens) Authenticate(ctx context.Context, bearer string) (Principal, error) {
	token, ok := parseToken(bearer)
	if !ok {
		return Principal{}, refused("the bearer does not have the form of a token")
	}
	found, err := t.cache.get(ctx, token.id)
	if err != nil {
		return Principal{}, fmt.Errorf("authenticate token %s: %w", token.id, err)
	}
	// An id that does not exist is compared like others, with a hash that no token has.
	var want [32]byte
	if found != nil {
		want = found.hash
	}
	hash := token.hash()
	same := subtle.ConstantTimeCompare(hash[:], want[:]) == 1
	switch {
	case !same || found == nil:
		return Principal{}, refused("no token %s has this secret", token.id)
	case found.revoked:
		return Principal{}, refused("token %s is revoked", token.id)
	case !found.expires.IsZero() && !time.Now().Before(found.expires):
		return Principal{}, refused("token %s has expired", token.id)
	}
	if found.touchDue.CompareAndSwap(true, false) {
		t.touch(ctx, token.id)
	}
	return found.principal, nil
}

// find reads a token's row; nil if there is none.
func (t *Tokens) find(ctx context.Context, id string) (*known, error) {
	asked := time.Now()
	rows, err := t.db.FindToken(ctx, id)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	row := rows[0]
	k := &known{
		hash:    [32]byte(row.SecretHash),
		revoked: row.Revoked,
		principal: Principal{
			Name: row.Name, Tenant: outbox.ID(row.TenantID.Bytes), AllTenants: row.AllTenants,
			Capabilities: grant(row.Capabilities),
		},
	}
	if row.ExpiresIn.Valid {
		k.expires = asked.Add(pgvalue.Duration(row.ExpiresIn))
	}
	k.touchDue.Store(row.TouchDue)
	return k, nil
}

// touch records that a token was used. A failure to record it refuses nobody, and it is recorded even if the caller
// goes away.
func (t *Tokens) touch(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), touchTimeout)
	defer cancel()
	if err := t.db.TouchToken(ctx, id); err != nil {
		t.log.LogAttrs(ctx, slog.LevelWarn, "use of a token not noted", slog.String("token", id), slog.Any("err", err))
	}
}
