package api

import (
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/access"
)

const (
	// maxRefusedLogged bounds the lines about refused bearers, and what is remembered of
	// them, in any ten seconds: a caller that makes bearers up does not fill the log.
	maxRefusedLogged = 20

	maxReasonBytes = 300 // a JWT's claims are quoted in some
	minSecretBytes = 8   // nothing shorter is a secret, and "a" is in every reason
)

// noteRefused logs a bearer that was refused, with the reason, which the caller does
// not get: once in ten seconds for each caller's address and reason.
func (s *server) noteRefused(r *http.Request, bearer string, err error) {
	reason := strings.TrimPrefix(err.Error(), access.ErrUnauthenticated.Error()+": ")
	if len(bearer) >= minSecretBytes { // an Authenticator that is not ours may quote it
		reason = strings.ReplaceAll(reason, bearer, "REDACTED")
	}
	if len(reason) > maxReasonBytes {
		reason = strings.ToValidUTF8(reason[:maxReasonBytes], "") + "…"
	}
	from, _, splitErr := net.SplitHostPort(r.RemoteAddr)
	if splitErr != nil {
		from = r.RemoteAddr
	}
	missed, due := s.refused.Due(from+" "+reason, time.Now())
	if !due {
		return
	}
	s.log.LogAttrs(r.Context(), slog.LevelWarn, "bearer refused", slog.String("request_id", requestID(r.Context())), slog.String("remote", from),
		slog.String("token", access.TokenID(bearer)), slog.String("reason", reason), slog.Int("since_last_line", missed))
}
