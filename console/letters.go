package console

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// The dead letters are shown as groups of those that failed alike; with an error in the URL, as the letters of one
// group.
const (
	lettersParams = "error kind queue status code key tenant since until before"
	maxGroups     = 100
)

// letters is the list of groups, or of the letters in one of them.
type letters struct {
	filter  operator.DeadLetterFilter
	groups  []operator.DeadLetterGroup
	asOf    time.Time // when the groups were counted; zero: there was no time for it
	jobs    []operator.DeadLetter
	before  outbox.ID
	next    outbox.ID // before of the next page; zero if this is the last one
	tenants bool      // the tenants are shown
	acted   acted
	picked  []string // the acts on selected letters; nil if letters cannot be selected
	list    search   // the page of a group, from which its letters are selected
}

// total returns how many dead letters the shown groups have: there may be more in others if there are maxGroups.
func (l letters) total() string {
	var n int64
	for _, g := range l.groups {
		n += g.Jobs
	}
	text := number(n) + " in " + plural(len(l.groups), "group")
	if len(l.groups) == maxGroups {
		return "at least " + text
	}
	return text
}

// group returns the group of the page. If the groups are not known, it is what the page was asked for, with the error
// of the first letter and without a count.
func (l letters) group() operator.DeadLetterGroup {
	if len(l.groups) > 0 {
		return l.groups[0]
	}
	g := operator.DeadLetterGroup{Fingerprint: l.filter.Fingerprint, Kind: l.filter.Kind}
	if len(l.jobs) > 0 {
		j := l.jobs[0]
		g.Kind, g.ErrorCode, g.Message = j.Kind, j.ErrorCode, j.ErrorMessage
	}
	return g
}

// none reports whether no letter is left on this page of the group or on those behind it. The list is newer than the
// groups, and knows.
func (l letters) none() bool { return len(l.jobs) == 0 && l.next.IsZero() }

// known reports whether there is a letter, or was when the groups were counted: without one there is nothing to act on.
func (l letters) known() bool { return len(l.jobs)+len(l.groups) > 0 }

func (s *site) letters(v *visit) (err error) {
	l := letters{}
	if l.filter, err = v.letterFilter(); err != nil {
		return err
	}
	if before := v.param("before"); before != "" {
		if l.before, err = outbox.ParseID(before); err != nil {
			return unreadable("before", "is no job’s id")
		}
	}
	// All dead letters are read for the groups. A list of letters comes without them if there is no time for that.
	patience := s.config.Timeout
	if l.filter.Fingerprint != "" {
		patience /= 2
	}
	// The look goes on if the person goes away: so does the place of this page.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.ctx()), patience)
	defer cancel()
	counted, err := s.watch.LetterGroups.Look(ctx, l.filter, maxGroups)
	if err == nil {
		l.groups, l.asOf = counted.Groups, counted.AsOf
	}
	switch {
	case err != nil && l.filter.Fingerprint == "":
		return err
	case err != nil:
		s.complain(v.ctx(), err)
	case l.filter.Fingerprint == "":
		return v.render(lettersPage(v, l))
	}
	page, err := v.operator.DeadLetterPage(v.ctx(), l.filter, l.before, 0)
	if err != nil {
		return err
	}
	l.jobs, l.next = page.DeadLetters, page.Next
	if l.list, err = v.searchOf(); err != nil {
		return err
	}
	l.list.page, l.acted = "letters", v.justActed()
	l.picked = v.selectedActs(groups[1])
	for _, j := range l.jobs {
		l.tenants = l.tenants || v.who.AllTenants && j.Tenant != outbox.RootTenant
	}
	return v.render(groupPage(v, l))
}

// groupLink returns the URL of the letters of a group. Those without a fingerprint, which a bridge or an old build has
// stored, have no page of their own: they are among the dead letters of their kind in the list of jobs.
func (v *visit) groupLink(g operator.DeadLetterGroup) templ.SafeURL {
	if g.Fingerprint != "" {
		return link("letters", v.narrowed("error", g.Fingerprint, "kind", g.Kind)...)
	}
	f := search{kind: g.Kind, queue: v.param("queue"), key: v.param("key")}
	f.statuses = []outbox.Status{outbox.Failed, outbox.Dead}
	if status := outbox.Status(v.param("status")); status != "" {
		f.statuses = []outbox.Status{status}
	}
	return f.link("tenant", v.param("tenant"))
}

// letterFilter returns the filter given by the URL, restricted to what the viewer may see. A time ago counts from the
// beginning of the minute: all who look within it share the groups.
func (v *visit) letterFilter() (f operator.DeadLetterFilter, err error) {
	f = operator.DeadLetterFilter{
		Fingerprint: v.param("error"), Kind: v.param("kind"), Queue: v.param("queue"),
		Status: outbox.Status(v.param("status")), ErrorCode: v.param("code"), Key: v.param("key"), Tenant: v.tenant(),
	}
	if f.Status != "" && f.Status != outbox.Failed && f.Status != outbox.Dead {
		return f, unreadable("status", "is neither failed nor dead")
	}
	if tenant := v.param("tenant"); tenant != "" {
		if f.Tenant, err = v.tenantParam(tenant); err != nil {
			return f, err
		}
	}
	for name, to := range map[string]*time.Time{"since": &f.FailedSince, "until": &f.FailedUntil} {
		if text := v.param(name); text != "" {
			at, err := parsePast(text, v.now.Truncate(time.Minute).In(v.zone))
			if err != nil {
				return f, refusal{http.StatusBadRequest, "The address cannot be read", upperFirst(err.Error()) + "."}
			}
			*to = at.at.UTC()
		}
	}
	return f, nil
}

// tenantParam returns a tenant given in the URL, if the viewer may see it.
func (v *visit) tenantParam(text string) (outbox.ID, error) {
	id, err := outbox.RootTenant, error(nil)
	if text != tenantName(outbox.RootTenant) {
		id, err = outbox.ParseID(text)
	}
	if err != nil {
		return id, unreadable("tenant", "is no tenant’s id")
	}
	if !v.who.AllTenants && id != v.who.Tenant {
		return id, refusal{http.StatusForbidden, "You may not see this", "It belongs to another tenant."}
	}
	return id, nil
}

// unreadable returns the refusal of a parameter of the URL.
func unreadable(name, why string) refusal {
	return refusal{http.StatusBadRequest, "The address cannot be read", "Its “" + name + "” " + why + "."}
}

// command returns the command line that replays the letters of the page's group.
func (l letters) command(g operator.DeadLetterGroup, v *visit) string {
	f := l.filter
	f.Fingerprint, f.Kind = g.Fingerprint, g.Kind
	until := f.FailedUntil
	if until.IsZero() {
		until = v.now
	}
	return lettersCommand("replay", f, until.UTC().Format(time.RFC3339)) + " --rate 10 --dry-run"
}

// errorName returns the name of a group: its code and its message.
func errorName(g operator.DeadLetterGroup) string {
	return cmp.Or(g.Message, g.ErrorCode, "no error was recorded")
}

// lasting returns this page's parameters, without those that report what was just done.
func (v *visit) lasting() url.Values {
	q := maps.Clone(v.params)
	for _, name := range strings.Fields(actedParams) {
		q.Del(name)
	}
	return q
}

// begun returns the same for the first page.
func (v *visit) begun() url.Values {
	q := v.lasting()
	for _, name := range placeParams {
		q.Del(name)
	}
	return q
}

// narrowed returns pairs, and those conditions of this page that they do not name: a link from a narrowed list stays
// within that list.
func (v *visit) narrowed(pairs ...string) []string {
	named := len(pairs)
	for _, name := range v.conditions() {
		if !slices.Contains(pairs[:named], name) {
			pairs = append(pairs, name, v.param(name))
		}
	}
	return pairs
}

// without returns this page's URL without a parameter, beginning with the first page.
func (v *visit) without(name string) templ.SafeURL {
	q := v.begun()
	q.Del(name)
	return pageURL(v.route.path, q)
}

// with returns this page's URL with a parameter: another part of the list, or the first one of another list.
func (v *visit) with(name, value string) templ.SafeURL {
	q := v.begun()
	q.Set(name, value)
	return pageURL(v.route.path, q)
}

func pageURL(path string, q url.Values) templ.SafeURL {
	if len(q) == 0 {
		return templ.SafeURL(path)
	}
	return templ.SafeURL(path + "?" + q.Encode())
}
