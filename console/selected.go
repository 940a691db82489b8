package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// mostSelected is how many jobs a person can select: a proxy in front of the console may accept only 8 KiB of a URL.
const mostSelected = 100

// onSelected are the parameters that name the selected jobs, and the list from which they were selected.
const onSelected = "id from " + onJobs + " error code worker attempt id_prefix payload finished_since finished_until parent"

// actedParams are the parameters by which a list reports what has become of them.
const actedParams = " acted of refused unknown ended request"

// selectedActs returns the acts on jobs that were selected from a list, if its statuses allow any, with the first one
// that the viewer may do at the front; nil if there is none.
func (v *visit) selectedActs(listed []outbox.Status) (paths []string) {
	may := false
	for _, one := range []struct {
		path     string
		statuses []outbox.Status
	}{
		{"selected-retry", []outbox.Status{outbox.Pending, outbox.Retrying, outbox.Failed, outbox.Dead}},
		{"selected-cancel", []outbox.Status{
			outbox.Created, outbox.Pending, outbox.Blocked, outbox.Running,
			outbox.Retrying,
		}},
		{"selected-release", []outbox.Status{outbox.Created}},
		{"selected-dismiss", []outbox.Status{outbox.Failed, outbox.Dead}},
	} {
		if len(listed) > 0 && !slices.ContainsFunc(one.statuses, func(s outbox.Status) bool {
			return slices.Contains(listed, s)
		}) {
			continue
		}
		paths = append(paths, one.path)
		if _, _, why := v.actOn(one.path); why == "" && !may { // what a form without a button does
			may = true
			paths[0], paths[len(paths)-1] = paths[len(paths)-1], paths[0]
		}
	}
	if !may {
		return nil
	}
	return paths
}

// listOf returns the list from which the jobs were selected.
func (v *visit) listOf() (f search, err error) {
	if f, err = v.searchOf(); err == nil && v.param("from") == "letters" {
		f.page = "letters"
	}
	return f, err
}

// selected returns the ids of the selected jobs.
func (v *visit) selected() (ids []outbox.ID, err error) {
	for _, text := range v.params["id"] {
		id, err := outbox.ParseID(text)
		if err != nil {
			return nil, unreadable("id", "is no job’s id")
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	switch {
	case len(ids) == 0:
		return nil, refusal{http.StatusBadRequest, "No job is selected", "Go back and select some in the list."}
	case len(ids) > mostSelected:
		return nil, refusal{
			http.StatusBadRequest, plural(len(ids), "job") + " are selected",
			fmt.Sprintf("Select %d at most, or act on all that match.", mostSelected),
		}
	}
	return ids, nil
}

// askSelected returns the first step of an act on selected jobs. words describes the act on one of them.
func askSelected(verb string, words func(operator.Job, *confirmation) error) func(*visit) (confirmation, error) {
	return func(v *visit) (c confirmation, err error) {
		f, err := v.listOf()
		if err != nil {
			return c, err
		}
		ids, err := v.selected()
		if err != nil {
			return c, err
		}
		c = confirmation{
			back:  f.link(),
			crumb: map[bool]string{true: "Dead letters", false: "Jobs"}[f.page == "letters"], reason: true,
		}
		if v.r.Method == http.MethodPost {
			return c, nil
		}
		found, err := v.find(ids)
		if err != nil {
			return c, err
		}
		pairs := append(f.pairs(), "from", f.page)
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i+1] != "" {
				c.hidden = append(c.hidden, field{pairs[i], pairs[i+1]})
			}
		}
		var line strings.Builder
		for _, j := range found {
			one := confirmation{}
			if j.ID.IsZero() || words(j, &one) != nil {
				continue
			}
			c.sample, c.danger = append(c.sample, j), one.danger
			c.hidden = append(c.hidden, field{"id", j.ID.String()}, field{"while", seenOf(j).String()})
			line.WriteString(" " + j.ID.String())
			for _, sentence := range one.will {
				if !slices.Contains(c.will, sentence) {
					c.will = append(c.will, sentence)
				}
			}
		}
		if len(c.sample) == 0 {
			return c, refusal{
				http.StatusConflict, "Nothing to " + verb,
				"None of the selected jobs is in a status in which this can be done.",
			}
		}
		c.matched = int64(len(c.sample))
		c.title = upperFirst(verb) + " " + plural(len(c.sample), "job")
		if left := len(ids) - len(c.sample); left > 0 {
			c.will = append(c.will,
				fmt.Sprintf("The other %d of the selected are left alone: it cannot be done in their status.", left))
		}
		c.will = append(c.will, "A job to which something happens before you confirm is left alone.")
		c.command = "posthaste jobs " + verb + line.String()
		return c, nil
	}
}

// These limit an act on one of the jobs, because a handler's transaction may lock its row for long. The server gives up
// waiting for a lock before the console gives up waiting for the server, so that a job that is locked is known to be.
const (
	eachAct  = time.Second
	lockWait = 500 * time.Millisecond
)

// actOnOne acts on a job in a transaction of its own, and reports whether an error leaves unknown if it has been done:
// until it has been asked to commit, nothing has.
func (v *visit) actOnOne(o *operator.Operator, id outbox.ID,
	do func(*operator.Operator, context.Context, outbox.ID) error,
) (unknown bool, err error) {
	ctx, cancel := context.WithTimeout(v.ctx(), eachAct)
	defer cancel()
	tenant := engine.AllTenants
	if one := v.tenant(); !one.IsZero() {
		tenant = one.String()
	}
	commits := false
	err = pgx.BeginTxFunc(ctx, v.site.config.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, bindAct, tenant, lockWait.String()); err != nil {
			return err
		}
		err := do(o.WithTx(tx), ctx, id)
		commits = err == nil
		return err
	})
	return commits && mayBeDone(err), err
}

const bindAct = `SELECT set_config('app.tenant_id', $1, true), set_config('lock_timeout', $2, true)`

// doSelected acts on each of the jobs while it is as it was previewed, as far as the viewer may see them. A job that
// has moved, or on which the database refuses the act, does not keep it from the other jobs. Any other error ends it;
// if something is done by then, the next page says so.
func doSelected(do func(*operator.Operator, context.Context, outbox.ID) error) func(*visit, *operator.Operator) error {
	return func(v *visit, o *operator.Operator) error {
		ids, err := v.selected()
		if err != nil {
			return err
		}
		while := v.params["while"]
		if len(while) != len(ids) || len(v.params["id"]) != len(ids) {
			return unreadable("while", "is not there once for each job")
		}
		shown := make([]seen, len(ids)) // all of them are read before anything is done
		for i, word := range while {
			if shown[i], err = parseSeen(word); err != nil {
				return err
			}
		}
		found, err := v.find(ids)
		if err != nil {
			return err
		}
		v.acted = acted{of: len(ids), request: v.id}
		for i, j := range found {
			if j.ID.IsZero() {
				continue
			}
			unknown, err := v.actOnOne(shown[i].only(o), j.ID, do)
			switch {
			case err == nil:
				v.acted.done++
			case unknown:
				v.log(refusalOf(err), err)
				if v.acted.unknown++; v.ctx().Err() != nil {
					v.acted.ended = len(found) - i - 1
					return nil
				}
			case passedBy(err):
			case pgsession.IsRefusal(err):
				v.log(refusalOf(err), err)
				v.acted.refused++
			case v.acted.done+v.acted.unknown > 0:
				v.log(refusalOf(err), err)
				v.acted.ended = len(found) - i
				return nil
			default:
				return err
			}
		}
		return nil
	}
}

// mayBeDone reports whether an act whose commit failed may be done all the same: the console did not wait for its end,
// or the connection broke. A commit that waits for a standby is completed when its client gives up.
func mayBeDone(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || pgsession.IsAway(err) && !pgsession.ChangedNothing(err) &&
		!pgsession.IsLockedOut(err)
}

// passedBy reports whether an act was not done because its job has moved, is gone or is locked.
func passedBy(err error) bool {
	_, moved := errors.AsType[*operator.StatusError](err)
	return moved || errors.Is(err, operator.ErrNotFound) || errors.Is(err, operator.ErrPastDeadline) ||
		pgsession.IsLockedOut(err)
}

// find returns the jobs that the viewer may see, in the order of the ids; the zero Job for others.
func (v *visit) find(ids []outbox.ID) ([]operator.Job, error) {
	wanted := make([]operator.Wanted, len(ids))
	for i, id := range ids {
		wanted[i] = operator.Wanted{ID: id, Tenant: v.tenant()}
	}
	return v.operator.Find(v.ctx(), wanted)
}

// acted is the result of an act on selected jobs.
type acted struct {
	done, of int
	refused  int    // of which the database has refused the act
	unknown  int    // to which it may have been done
	ended    int    // that were not tried, or of which the first has failed, because of an error that ended it
	request  string // of the acts in the audit
}

// passed returns the number of the jobs that something else kept from being acted on.
func (a acted) passed() int { return a.of - a.done - a.refused - a.unknown - a.ended }

// at returns the URL of a page that reports it.
func (a acted) at(page templ.SafeURL) templ.SafeURL {
	values := url.Values{"acted": {strconv.Itoa(a.done)}, "of": {strconv.Itoa(a.of)}, "request": {a.request}}
	for name, n := range map[string]int{"refused": a.refused, "unknown": a.unknown, "ended": a.ended} {
		if n > 0 {
			values.Set(name, strconv.Itoa(n))
		}
	}
	q := values.Encode()
	if strings.Contains(string(page), "?") {
		return page + templ.SafeURL("&"+q)
	}
	return page + templ.SafeURL("?"+q)
}

// justActed returns the result given by the parameters.
func (v *visit) justActed() (a acted) {
	a.request = v.param("request")
	for name, to := range map[string]*int{
		"acted": &a.done, "of": &a.of, "refused": &a.refused, "unknown": &a.unknown, "ended": &a.ended,
	} {
		text := v.param(name)
		if text == "" && name != "acted" && name != "of" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > mostSelected {
			return acted{}
		}
		*to = n
	}
	if a.passed() < 0 {
		return acted{}
	}
	return a
}

// link returns the URL of the part of the audit that contains it.
func (a acted) link() templ.SafeURL { return link("audit", "request", a.request) }
