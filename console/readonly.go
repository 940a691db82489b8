package console

import (
	"context"
	"net/http"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// lookTime is how long a page waits for a connection to find out whether the database accepts writes.
const lookTime = 500 * time.Millisecond

// readOnly returns why nothing can be changed, worded to continue a sentence; "" if changes are possible. It uses the
// state that the database last reported on the next connection of the pool, so that a page costs no statement for it
// and follows a failover. Where the state is unknown, an act that fails reports it.
func (v *visit) readOnly() string {
	if v.noWrites == nil {
		v.noWrites = new(v.site.whyReadOnly(v))
	}
	return *v.noWrites
}

func (s *site) whyReadOnly(v *visit) string {
	if s.config.ReadOnly {
		return "it was started so"
	}
	if !v.known || v.status >= http.StatusInternalServerError { // a page that reports an error waits for nothing
		return ""
	}
	ctx, cancel := context.WithTimeout(v.ctx(), lookTime)
	defer cancel()
	conn, err := s.config.Pool.Acquire(ctx)
	if err != nil {
		return ""
	}
	defer conn.Release()
	return pgsession.NoWrites(conn.Conn())
}
