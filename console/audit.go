package console

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

const auditParams = "actor act queue target request job tenant since until before"

// listedActs is a page of the audit.
type listedActs struct {
	filter operator.AuditFilter
	page   operator.AuditPage
	// undoable marks the acts that can be undone. It is known only for the newest acts, and only if no condition hides
	// later ones on the same thing.
	undoable map[int64]bool
}

// older returns the address of the next page.
func (l listedActs) older(v *visit) templ.SafeURL {
	return v.with("before", strconv.FormatInt(l.page.Next, 10))
}

func (s *site) audit(v *visit) (err error) {
	var l listedActs
	if l.filter, err = v.auditFilter(); err != nil {
		return err
	}
	if l.page, err = v.operator.AuditPage(v.ctx(), l.filter); err != nil {
		return err
	}
	ofThings := []string{"queue", "target", "tenant", "since"}
	hides := func(name string) bool { return !slices.Contains(ofThings, name) }
	if !slices.ContainsFunc(v.conditions(), hides) && l.filter.Before == 0 {
		l.undoable = v.undoable(l.page.Entries)
	}
	return v.render(auditPage(v, l))
}

func (v *visit) auditFilter() (f operator.AuditFilter, err error) {
	f = operator.AuditFilter{
		Actor: v.param("actor"), Act: v.param("act"), Queue: v.param("queue"), Target: v.param("target"),
		RequestID: v.param("request"), Tenant: v.tenant(), Limit: operator.DefaultLimit,
	}
	if text := v.param("job"); text != "" {
		if f.JobID, err = outbox.ParseID(text); err != nil {
			return f, unreadable("job", "is no job’s id")
		}
	}
	if text := v.param("tenant"); text != "" {
		if f.Tenant, err = v.tenantParam(text); err != nil {
			return f, err
		}
	}
	if text := v.param("before"); text != "" {
		if f.Before, err = strconv.ParseInt(text, 10, 64); err != nil || f.Before < 1 {
			return f, unreadable("before", "is no number of an act")
		}
	}
	for name, to := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		if text := v.param(name); text != "" {
			at, err := parsePast(text, v.now.In(v.zone))
			if err != nil {
				return f, refusal{http.StatusBadRequest, "The address cannot be read", upperFirst(err.Error()) + "."}
			}
			*to = at.at
		}
	}
	return f, nil
}

// placeParams are the parameters that say where a page of a list begins. In another list they mean nothing.
var placeParams = strings.Fields("before after_since after_tenant after_queue after_key after_name")

var notConditions = append(strings.Fields(actedParams), placeParams...)

// conditions returns the conditions of the URL, in the order of the parameters; the page's place and the act that was
// just done are not conditions.
func (v *visit) conditions() (names []string) {
	for _, name := range v.route.names() {
		if !slices.Contains(notConditions, name) && v.param(name) != "" {
			names = append(names, name)
		}
	}
	return names
}

// names returns the parameters of a row.
func (r *route) names() []string { return strings.Fields(r.params) }

// firstOf returns the beginning of a text.
func firstOf(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n]) + "…"
	}
	return s
}

// targetPage returns the page of what an act was done to, if it is no job; "" if it has none, or if this viewer may not
// see it.
func (v *visit) targetPage(e operator.AuditEntry) templ.SafeURL {
	noun, verb, _ := strings.Cut(e.Act, ".")
	tenant := exportedID(e.Tenant)
	pages := map[string][]string{
		"queue": {"queue", e.Queue}, "sink": {"name", e.Target}, "operation": {"id", e.Target},
		"schedule": {"tenant", tenant, "name", e.Target}, "key": {"tenant", tenant, "queue", e.Queue, "key", e.Target},
	}
	pairs := pages[noun]
	if pairs == nil || pairs[len(pairs)-1] == "" || verb == "delete" || verb == "remove" ||
		!table[noun]["GET"].gate.admits(v.who) {
		return ""
	}
	return link(noun, pairs...)
}
