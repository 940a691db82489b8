package console

import (
	"context"
	"net/http"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// lookTime is how long a page waits for a connection, to say whether the database takes writes.
const lookTime = 500 * time.Millisecond

// readOnly says why nothing can be changed, in words that go on a sentence; "" if something can. What the database says
// is what it has said on the connection that is used next, so that a page costs no statement for it and follows a
// failover by itself. Where that is not known, an act that fails says so.
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
	if !v.known || v.status >= http.StatusInternalServerError { // a page that says what is wrong waits for nothing
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
