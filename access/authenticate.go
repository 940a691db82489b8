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

// touchTimeout bounds the note that a token was used: it is not worth waiting for.
const touchTimeout = time.Second

// known is a token as the database had it a moment ago.
type known struct {
	hash      [32]byte
	principal Principal
	revoked   bool
	expires   time.Time // by our monotonic clock, from what the database's said; zero: never
	touchDue  atomic.Bool
}

// Authenticate tells whose token the bearer is. It looks at the database once in a
// few seconds for each token; see the guarantees of the package.
func (t *Tokens) Authenticate(ctx context.Context, bearer string) (Principal, error) {
	token, ok := parseToken(bearer)
	if !ok {
		return Principal{}, refused("the bearer does not have the form of a token")
	}
	found, err := t.cache.get(ctx, token.id)
	if err != nil {
		return Principal{}, fmt.Errorf("authenticate token %s: %w", token.id, err)
	}
	// One that does not exist is compared like others, with a hash that nothing has.
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
			Name: row.Name, Tenant: outbox.ID(row.TenantID.Bytes), AllTenants: row.AllTenants, Capabilities: grant(row.Capabilities),
		},
	}
	if row.ExpiresIn.Valid {
		k.expires = asked.Add(pgvalue.Duration(row.ExpiresIn))
	}
	k.touchDue.Store(row.TouchDue)
	return k, nil
}

// touch notes that a token was used. A failure to note it refuses nobody, and
// it is noted even if the caller goes away.
func (t *Tokens) touch(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), touchTimeout)
	defer cancel()
	if err := t.db.TouchToken(ctx, id); err != nil {
		t.log.LogAttrs(ctx, slog.LevelWarn, "use of a token not noted", slog.String("token", id), slog.Any("err", err))
	}
}
