package console

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
)

// verifyFor limits how long a page verifies the audit: some hundred thousand acts. The command has no such limit.
const verifyFor = 10 * time.Second

// verified is the result of verifying the audit.
type verified struct {
	operator.AuditCheck
	noted string // the head to find, as typed
	whole bool   // it reached the end
}

// verifyAudit verifies the audit's chain from its beginning, for one person at a time.
func (s *site) verifyAudit(v *visit) (err error) {
	var noted operator.AuditHead
	if text := v.param("head"); text != "" {
		if noted, err = operator.ParseAuditHead(text); err != nil {
			return unreadable("head", "is not what a check of the audit has called its head, such as 1204:5f1c…")
		}
	}
	if !s.verifying.TryLock() {
		return refusal{
			http.StatusTooManyRequests, "The audit is being verified for somebody else",
			"Try again in ten seconds.",
		}
	}
	defer s.verifying.Unlock()
	ctx, cancel := context.WithTimeout(v.ctx(), min(verifyFor, s.config.Timeout*2/3))
	defer cancel()
	found := verified{noted: v.param("head"), whole: true}
	if found.AuditCheck, err = v.operator.VerifyAudit(ctx, noted); err != nil {
		if ctx.Err() == nil || v.ctx().Err() != nil || errors.Is(err, operator.ErrNoAuditChain) {
			return err
		}
		found.whole = false
	}
	return v.render(verifyPage(v, found))
}
