package access

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// EndedSessions knows which sessions have been ended before their time, in every process of a database. Sessions are
// cookies that no process stores: a copy of one would otherwise be accepted until it expires. It is safe for concurrent
// use.
type EndedSessions struct {
	db    *sqlgen.Queries
	cache *cache[struct{}] // what is found has ended
}

// NewEndedSessions returns the EndedSessions of the database that pool connects to.
func NewEndedSessions(pool *pgxpool.Pool) *EndedSessions {
	e := &EndedSessions{db: sqlgen.New(pool)}
	e.cache = newCache(e.find)
	return e
}

// Has reports whether the session has been ended. It queries the database once in a few seconds for each session: every
// process learns within 5 seconds that a session was ended.
func (e *EndedSessions) Has(ctx context.Context, id string) (bool, error) {
	ended, err := e.cache.get(ctx, id)
	if err != nil {
		return false, fmt.Errorf("look whether a session was ended: %w", err)
	}
	return ended != nil, nil
}

// find returns nil for a session that was not ended.
func (e *EndedSessions) find(ctx context.Context, id string) (*struct{}, error) {
	ended, err := e.db.IsSessionEnded(ctx, stored(id))
	if err != nil || !ended {
		return nil, err
	}
	return &struct{}{}, nil
}

// End ends a session in every process. No process may accept it for longer than left anyway. If the database does not
// record that, the session has ended in this process only, and End returns the error. A caller that goes away has ended
// the session nevertheless.
func (e *EndedSessions) End(ctx context.Context, id string, left time.Duration) error {
	e.EndHere(id, left)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	if err := e.db.EndSession(ctx, stored(id), pgvalue.Interval(left)); err != nil {
		return fmt.Errorf("end a session in other processes: %w", err)
	}
	return nil
}

// EndHere ends a session in this process, which forgets it only if too many others have ended since.
func (e *EndedSessions) EndHere(id string, left time.Duration) {
	now := time.Now()
	e.cache.remember(id, look[struct{}]{&struct{}{}, now.Add(max(left, cacheFor))}, now)
}

// stored returns the form in which the database has a session. No id can be derived from it.
func stored(id string) []byte {
	hash := sha256.Sum256([]byte(id))
	return hash[:]
}
