package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

// refusal is the answer in place of a page: a sentence, and what to do next.
type refusal struct {
	status int
	title  string
	next   string
}

func (r refusal) Error() string { return r.title + ". " + r.next }

// notAllowed returns the refusal for principals that lack a capability.
func notAllowed(capability string) refusal {
	return refusal{http.StatusForbidden, "You may not see this", "It needs the capability " + capability +
		", which your login does not have. " +
		"Ask the person who created it."}
}

// refusalOf returns what people read for an error. What they must not see goes only to the log.
func refusalOf(err error) refusal {
	if r, ok := errors.AsType[refusal](err); ok {
		return r
	}
	if bad, ok := errors.AsType[*outbox.InvalidError](err); ok {
		return refusal{http.StatusBadRequest, "That is not acceptable", bad.Error() + "."}
	}
	if found, ok := errors.AsType[*operator.StatusError](err); ok {
		return refusal{
			http.StatusConflict, "The job is " + string(found.Status),
			"It is in no status in which this can be done. Nothing was changed.",
		}
	}
	switch {
	case errors.Is(err, watch.ErrBody):
		return refusal{http.StatusBadRequest, "The request cannot be read", "It has a body, which is not taken here."}
	case errors.Is(err, access.ErrUnauthenticated):
		return refusal{http.StatusUnauthorized, "You are not signed in", "Sign in, and come back to this page."}
	case errors.Is(err, operator.ErrNotFound):
		return refusal{
			http.StatusNotFound, "There is no such job",
			"It never existed, its transaction has not committed, it was removed when its retention ended, " +
				"or it belongs to another tenant. Unless OUTBOX_KEEP is set otherwise, jobs are kept for 14 days " +
				"after they have succeeded, dead letters for 90 days, and other jobs for 30 days.",
		}
	case errors.Is(err, operator.ErrKeyNotFound):
		return refusal{http.StatusNotFound, "There is no such key", "No open job has it."}
	case errors.Is(err, operator.ErrScheduleNotFound):
		return refusal{
			http.StatusNotFound, "There is no such schedule",
			"It was deleted, or belongs to another tenant.",
		}
	case errors.Is(err, operator.ErrOperationNotFound):
		return refusal{
			http.StatusNotFound, "There is no such operation",
			"It ended more than 90 days ago, or belongs to another tenant.",
		}
	case errors.Is(err, operator.ErrTooManyOperations):
		return refusal{
			http.StatusConflict, "Too many operations are not finished",
			"At most 100 may be under way, and 1 000 unfinished. Wait for one to end, or stop or resume one. Nothing was done.",
		}
	case errors.Is(err, operator.ErrOldWriter):
		return refusal{
			http.StatusConflict, "The jobs cannot be counted just now",
			"A transaction has been writing for so long that too many others have begun since. " +
				"Try again when it has ended: “posthaste doctor” names it. Nothing was done.",
		}
	case errors.Is(err, operator.ErrSinkNotFound):
		return refusal{
			http.StatusNotFound, "There is no such sink",
			"No relay has ever published to a sink of the name.",
		}
	case errors.Is(err, operator.ErrPastDeadline):
		return refusal{http.StatusConflict, "Its deadline has passed", "It would only expire. Nothing was changed."}
	}
	return signInRefusal(err)
}

// signInRefusal returns what people read for an error of a sign-in, and for others.
func signInRefusal(err error) refusal {
	switch {
	case errors.Is(err, errTooLarge):
		return refusal{
			http.StatusUnprocessableEntity, "The login does not fit into a cookie",
			"It has too many claims, or they are too long. Sign in with a token of this instance, which begins with ph_.",
		}
	case errors.Is(err, access.ErrTooManyUnknown):
		return refusal{http.StatusTooManyRequests, "Too many people sign in at once", "Try again in a moment."}
	case errors.Is(err, access.ErrProviderAway):
		return refusal{
			http.StatusServiceUnavailable, "The sign-in provider does not answer",
			"Nothing is wrong with your login. Try again in a moment.",
		}
	}
	return databaseRefusal(err)
}

// databaseRefusal returns what people read for an error of the database, and for one that is none of ours.
func databaseRefusal(err error) refusal {
	switch {
	case errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err), pgsession.State(err) == pgsession.QueryCanceled,
		pgsession.State(err) == pgsession.LockNotAvailable:
		return refusal{
			http.StatusGatewayTimeout, "The database took too long",
			"The page was given up, to keep the database free for jobs. Ask for less, or try again.",
		}
	case pgsession.State(err) == pgsession.UndefinedTable, pgsession.State(err) == pgsession.InvalidSchema:
		return refusal{
			http.StatusServiceUnavailable, "The database is not migrated",
			"Run “posthaste migrate up” with this build, and reload.",
		}
	case pgsession.State(err) == pgsession.ReadOnly:
		return refusal{
			http.StatusForbidden, "The database takes no changes now",
			"It is a standby, or was made read-only. Nothing was changed.",
		}
	case pgsession.IsAway(err):
		return refusal{
			http.StatusServiceUnavailable, databaseAway,
			"Nothing is wrong with the request. This page tries again in 4 seconds.",
		}
	}
	return refusal{
		http.StatusInternalServerError, "Something went wrong here",
		"The server’s log has the cause, with the id of the request.",
	}
}

const databaseAway = "The database cannot be reached"

// refuse answers with the page for an error.
func (v *visit) refuse(err error) {
	if errors.Is(err, context.Canceled) {
		return // nobody reads it
	}
	r := refusalOf(err)
	if r.status == http.StatusUnauthorized && v.sendToLogin() {
		return
	}
	v.log(r, err)
	h := v.w.Header()
	switch {
	case r.title == databaseAway && v.r.Method == http.MethodGet:
		h.Set("Refresh", "4")
		fallthrough
	case r.status == http.StatusTooManyRequests, r.status == http.StatusServiceUnavailable:
		h.Set("Retry-After", "4")
	}
	v.status = r.status
	if v.ctx().Err() != nil { // the page's time is over, and the answer is about that
		v.r = v.r.WithContext(context.WithoutCancel(v.ctx()))
	}
	defer v.keepForm(r.status)()
	if err := v.render(refused(v, r)); err != nil {
		http.Error(v.w, r.Error(), r.status)
	}
}

// keepForm keeps what was sent with a form that can be sent again, because it was refused for a reason that passes.
// Forms that need no login are not kept: one of them has a token.
func (v *visit) keepForm(status int) (leave func()) {
	leave = func() {}
	switch status {
	case http.StatusUnauthorized, http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
	default:
		return leave
	}
	if v.r.Method != http.MethodPost || v.route == nil || v.route.gate.anyone {
		return leave
	}
	if v.params == nil { // it was refused before it was read
		of, err := v.site.takeForm(v)
		if err != nil {
			return leave
		}
		if leave = of; v.readParameters() != nil {
			return leave
		}
	}
	for _, name := range v.route.names() {
		for _, value := range v.params[name] {
			v.form = append(v.form, field{name, value})
		}
	}
	return leave
}

// sendToLogin leads people to the login and then back, if there is one and they have not sent a form.
func (v *visit) sendToLogin() bool {
	if !v.site.hasLogin() || v.r.Method != http.MethodGet || v.route == nil {
		return false
	}
	if v.r.Header.Get("Sec-Fetch-Mode") != "" && v.r.Header.Get("Sec-Fetch-Mode") != "navigate" ||
		v.r.Header.Get("Accept") == "text/event-stream" {
		return false // a script asks, and reads the status
	}
	v.params = v.r.URL.Query()
	v.params.Del("reveal") // the login leads back from a page of the console, and what led here may not be one
	_ = v.redirect(link("login", "back", v.here()))
	return true
}

// complain logs errors outside any page, once in ten seconds.
func (s *site) complain(ctx context.Context, err error) {
	if missed, due := s.complaints.Due("watch", time.Now()); due {
		s.log.LogAttrs(ctx, slog.LevelWarn, "look failed", slog.String("err", err.Error()),
			slog.Int("since_last_line", missed))
	}
}

// log logs errors that are not the viewer's mistake; an outage once in ten seconds.
func (v *visit) log(r refusal, err error) {
	level := slog.LevelWarn
	switch r.status {
	case http.StatusInternalServerError:
		level = slog.LevelError
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout:
	default:
		return
	}
	missed, due := 0, true
	if level == slog.LevelWarn {
		missed, due = v.site.complaints.Due(r.title, time.Now())
	}
	if due {
		v.site.log.LogAttrs(v.ctx(), level, "page failed", slog.String("request_id", v.id),
			slog.String("path", v.r.URL.Path),
			slog.String("err", err.Error()), slog.Int("since_last_line", missed))
	}
}
