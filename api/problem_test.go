package api

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/operator"
)

// Only a look is asked for again, and an act of which nothing was done: a commit may have gone through whose answer was
// lost. That a repeat with the same key is safe is said where a key is taken.
func TestAProblemSaysWhetherToAskAgain(t *testing.T) {
	t.Parallel()
	lost := fmt.Errorf("commit: %w", &net.OpError{Op: "read", Err: syscall.ECONNRESET})
	for _, c := range []struct {
		err     error
		path    string
		detail  string
		after   int
		outcome string
	}{
		{lost, "/jobs", "same idempotency key", 0, "unknown"},
		{lost, "/jobs/batch", "same idempotency key", 0, "unknown"},
		{lost, "/jobs/replay", "look before you ask again", 0, "unknown"},
		{lost, "GET /jobs", "connection to the database broke.", 1, "none"},
		{&pgconn.PgError{Code: "57P01"}, "/jobs/{id}/retry", "look before you ask again", 0, "unknown"},
		{&pgconn.PgError{Code: "40001"}, "/jobs/replay", "; try again.", 1, "none"},
		{&pgconn.PgError{Code: "53300"}, "/jobs", "; try again.", 1, "none"},
		{&pgconn.ConnectError{}, "/jobs", "; try again.", 1, "none"},
		{io.ErrUnexpectedEOF, "/jobs/{id}/retry", "look before you ask again", 0, "unknown"},
		{afterAct(&pgconn.ConnectError{}), "/jobs/{id}/retry", "do not ask for it again", 0, "done"},
		{afterAct(lost), "/sinks/{sink}/pause", "do not ask for it again", 0, "done"},
		{afterAct(operator.ErrNotFound), "/jobs/{id}/retry", "not exist", 0, "done"},
		{&lookAfterStore{&pgconn.ConnectError{}}, "/jobs", "same idempotency key", 0, "unknown"},
		{operator.ErrNotFound, "/jobs/{id}/retry", "not exist", 0, "none"},
		{fmt.Errorf("count: %w", operator.ErrOldWriter), "/operations", "try again when it has ended.", 60, "none"},
		{io.ErrShortWrite, "/jobs/{id}/retry", "", 0, "unknown"},
		{io.ErrShortWrite, "GET /jobs", "", 0, "none"},
		{context.DeadlineExceeded, "/jobs", "same idempotency key", 0, "unknown"},
		{context.DeadlineExceeded, "/sinks/{sink}/replays", "look before you ask again", 0, "unknown"},
		{context.DeadlineExceeded, "GET /audit", "gave up.", 0, "none"},
	} {
		op := huma.Operation{Method: "POST", Path: c.path}
		if path, get := strings.CutPrefix(c.path, "GET "); get {
			op.Method, op.Path = "GET", path
		}
		p := problemOf(c.err).of(&op)
		_, rest, said := strings.Cut(p.Detail, c.detail)
		if !said || op.Method == "GET" && rest != "" || p.retryAfter != c.after {
			t.Errorf("%s, %v: %q after %d s, want %q after %d s", c.path, c.err, p.Detail, p.retryAfter, c.detail, c.after)
		}
		if p.Outcome != c.outcome {
			t.Errorf("%s, %v: its outcome is %s, want %s", c.path, c.err, p.Outcome, c.outcome)
		}
	}
}
