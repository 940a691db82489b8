package console

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

var jobsParams = "q " + strings.Join(names, " ") + " before limit"

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
	kinds  []string // that the viewer knows, where a word that was found nowhere may be an idempotency key
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
		typed, err := v.wholeParent(v.param("q"))
		if err != nil {
			return err
		}
		if l.search, err = parseSearch(typed, v.now.In(v.zone)); err == nil {
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
	if l.maybeKey() && table["kinds"]["GET"].gate.admits(v.who) {
		known, err := s.knownKinds(v)
		if err != nil {
			return err
		}
		l.kinds = slices.Sorted(maps.Keys(known))
	}
	return v.render(jobsPage(v, l))
}

// maybeKey reports whether the search is a word that no job has for its kind: it may be an idempotency key.
func (l listed) maybeKey() bool {
	return len(l.page.Jobs) == 0 && l.page.Next.IsZero() && l.search.kind != "" &&
		!l.search.hasOther([]string{"kind", "tenant"})
}

// older returns the URL of the next page.
func (l listed) older() (more []string) {
	more = []string{"before", l.page.Next.String()}
	if l.limit != operator.DefaultLimit {
		more = append(more, "limit", strconv.Itoa(l.limit))
	}
	return more
}

// find redirects to a job by its id or its idempotency key, or to the jobs that the words match.
func (s *site) find(v *visit) error {
	if key := v.param("idempotency"); key != "" {
		return v.findByIdempotencyKey(key)
	}
	text := strings.TrimSpace(v.param("q"))
	if id, err := outbox.ParseID(text); err == nil {
		return v.redirect(link("job", "id", id.String()))
	}
	if idPart.MatchString(text) {
		id, err := v.wholeID(text)
		if err != nil {
			return err
		}
		if !id.IsZero() {
			return v.redirect(link("job", "id", id.String()))
		}
		return v.redirect(link("jobs", "q", "id:"+text))
	}
	return v.redirect(link("jobs", "q", text))
}

// wholeID returns the id that lists show as this, of a job that the viewer may see; zero if there is none, or several
// that may be meant.
func (v *visit) wholeID(shortened string) (id outbox.ID, err error) {
	_, end, _ := strings.Cut(strings.ToLower(shortened), "…")
	var f search
	if f.idPrefix, err = readIDPrefix(shortened); err != nil {
		return id, unreadable("q", "is no id")
	}
	filter, err := v.filter(f)
	if err != nil {
		return id, err
	}
	filter.Limit = operator.MaxLimit
	page, err := v.operator.Page(v.ctx(), filter)
	for _, j := range page.Jobs {
		if strings.HasSuffix(j.ID.String(), end) {
			if !id.IsZero() {
				return outbox.ID{}, nil
			}
			id = j.ID
		}
	}
	if err != nil || !page.Next.IsZero() { // others may be beyond the page
		return outbox.ID{}, err
	}
	return id, nil
}

var typedParent = regexp.MustCompile(`(^|\s)parent:([0-9a-fA-F]{8}…[0-9a-fA-F]{4})(\s|$)`)

// wholeParent returns what was typed, with the whole id of a parent that was written as lists show it.
func (v *visit) wholeParent(typed string) (string, error) {
	at := typedParent.FindStringSubmatchIndex(typed)
	if at == nil {
		return typed, nil
	}
	id, err := v.wholeID(typed[at[4]:at[5]])
	if err != nil || id.IsZero() {
		return typed, err
	}
	return typed[:at[4]] + id.String() + typed[at[5]:], nil
}

func (v *visit) findByIdempotencyKey(key string) (err error) {
	tenant := v.tenant()
	if text := v.param("tenant"); text != "" {
		if tenant, err = v.tenantParam(text); err != nil {
			return err
		}
	}
	id, err := v.operator.FindByIdempotencyKey(v.ctx(), tenant, v.param("kind"), key)
	if errors.Is(err, operator.ErrNotFound) {
		return refusal{
			http.StatusNotFound, "No job has this idempotency key",
			"No job of the kind " + quoted(v.param("kind")) + " and the tenant " + tenantName(cmp.Or(tenant, outbox.RootTenant)) +
				" was stored with " + quoted(key) + ", or it is no longer kept.",
		}
	}
	if err != nil {
		return err
	}
	return v.redirect(link("job", "id", id.String()))
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
