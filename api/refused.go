package api

import (
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
)

const (
	// maxRefusedLogged limits the lines about refused bearers, and the memory for them, in any ten seconds: a caller
	// that invents bearers does not fill the log.
	maxRefusedLogged = 20
)

// noteRefused logs a refused bearer with the reason, which the caller does not get: once in ten seconds for each
// caller's address and reason.
func (s *server) noteRefused(r *http.Request, bearer string, err error) {
	reason := callers.Refusal(bearer, err)
	from, _, splitErr := net.SplitHostPort(r.RemoteAddr)
	if splitErr != nil {
		from = r.RemoteAddr
	}
	missed, due := s.refused.Due(from+" "+reason, time.Now())
	if !due {
		return
	}
	s.log.LogAttrs(r.Context(), slog.LevelWarn, "bearer refused", slog.String("request_id", requestID(r.Context())),
		slog.String("remote", from),
		slog.String("token", access.TokenID(bearer)), slog.String("reason", reason),
		slog.Int("since_last_line", missed))
}
