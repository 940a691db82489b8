package console

import (
	"cmp"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

const jobsParams = "q kind queue status key tenant error payload since until parent before limit"

// listed is a page of jobs.
type listed struct {
	search search
	typed  string // content of the search field
	fault  string // of what was typed
	before outbox.ID
	limit  int
	page   operator.JobPage
	tenant bool     // the tenants are shown
	picked []string // the acts on selected jobs; nil if jobs cannot be selected
	views  []savedView
	acted  acted
}

// groups are the statuses as the filter groups them: open, waiting for a person, closed.
var groups = [][]outbox.Status{
	{outbox.Created, outbox.Pending, outbox.Blocked, outbox.Running, outbox.Retrying},
	{outbox.Failed, outbox.Dead},
	{outbox.Succeeded, outbox.Cancelled, outbox.Expired, outbox.Skipped, outbox.Stale, outbox.Dismissed},
}

func statusWords() (words []string) {
	for _, group := range groups {
		for _, s := range group {
			words = append(words, string(s))
		}
	}
	return words
}

// jobs lists jobs. It turns what was typed into parameters of the URL, so that the URL describes the page.
func (s *site) jobs(v *visit) (err error) {
	l := listed{limit: operator.DefaultLimit}
	if v.params.Has("q") {
		typed := v.param("q")
		if l.search, err = parseSearch(typed, v.now); err == nil {
			return v.redirect(l.search.link())
		}
		l.typed, l.fault, v.status = typed, upperFirst(err.Error())+".", http.StatusBadRequest
		return v.render(jobsPage(v, l))
	}
	if l.search, err = v.searchOf(); err != nil {
		return err
	}
	filter, err := v.filter(l.search)
	if err != nil {
		return err
	}
	if before := v.param("before"); before != "" {
		if filter.Before, err = outbox.ParseID(before); err != nil {
			return refusal{http.StatusBadRequest, "The address cannot be read", "Its “before” is no job’s id."}
		}
	}
	if limit := v.param("limit"); limit != "" {
		if l.limit, err = strconv.Atoi(limit); err != nil || l.limit < 1 || l.limit > operator.MaxLimit {
			return refusal{http.StatusBadRequest, "The address cannot be read", "Its “limit” is not 1 to " +
				strconv.Itoa(operator.MaxLimit) + "."}
		}
	}
	filter.Limit, l.before, l.typed = l.limit, filter.Before, l.search.text()
	if l.page, err = v.operator.Page(v.ctx(), filter); err != nil {
		return err
	}
	if l.views, err = v.views(); err != nil {
		return err
	}
	l.acted, l.picked = v.justActed(), v.selectedActs(l.search.statuses)
	for _, j := range l.page.Jobs {
		l.tenant = l.tenant || v.who.AllTenants && j.Tenant != outbox.RootTenant
	}
	return v.render(jobsPage(v, l))
}

// older returns the URL of the next page.
func (l listed) older() (more []string) {
	more = []string{"before", l.page.Next.String()}
	if l.limit != operator.DefaultLimit {
		more = append(more, "limit", strconv.Itoa(l.limit))
	}
	return more
}

// find redirects to a job by its id, or to the jobs that the words match.
func (s *site) find(v *visit) error {
	text := strings.TrimSpace(v.param("q"))
	if id, err := outbox.ParseID(text); err == nil {
		return v.redirect(link("job", "id", id.String()))
	}
	if idPart.MatchString(text) {
		return refusal{
			http.StatusBadRequest, "That is a shortened id",
			"A job’s id has 36 characters, like 01976f0e-7a5c-7d3e-8f4b-0123456789ab. In a list, an id is a link to its job.",
		}
	}
	return v.redirect(link("jobs", "q", text))
}

// idPart matches an id as lists show it, see shortID, and the beginning of one.
var idPart = regexp.MustCompile(`^(?i:[0-9a-f]{8}…[0-9a-f]{0,4}|0[0-9a-f]{7}(-[0-9a-f]{0,4}){0,3}(-[0-9a-f]{0,11})?)$`)

// ran returns how long the latest attempt of a closed job took; zero if there was none.
func ran(j operator.Job) time.Duration {
	if !j.Status.Closed() || j.StartedAt.IsZero() {
		return 0
	}
	return j.FinishedAt.Sub(j.StartedAt)
}

// mistake returns the error of a job, as far as the viewer may see it.
func (v *visit) mistake(j operator.Job) string {
	if !v.can(access.AdminRead) || j.ErrorMessage == "" {
		return j.ErrorCode
	}
	return cmp.Or(j.ErrorCode, "error") + ": " + j.ErrorMessage
}

// tenantName returns the name of a tenant in a list.
func tenantName(id outbox.ID) string {
	if id == outbox.RootTenant {
		return "root"
	}
	return shortID(id)
}
