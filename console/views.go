package console

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// savedView is a view above the list of jobs.
type savedView struct {
	operator.View
	search search
	fault  string // why it cannot be shown any more; "" if it can
}

// saving is the page on which a search gets a name.
type saving struct {
	search search
	name   string
	shared bool
	fault  string
	whyNot string // why this viewer may not share it; "" if they may
	// replaces is the query of another person's shared view of the name, as this page has shown it; "" for none.
	replaces string
}

// sharing is what sharing a view, and deleting a shared one, requires.
var sharing = needs(access.JobsRead, access.AdminMutate)

// query returns the search in stored form: the parameters of its page.
func (f search) query() string {
	q := url.Values{}
	for _, name := range names {
		if value := f.get(name); value != "" {
			q.Set(name, value)
		}
	}
	return q.Encode()
}

// parseQuery parses what query writes. A relative time counts from now.
func parseQuery(text string, now time.Time) (f search, err error) {
	q, err := url.ParseQuery(text)
	if err != nil {
		return f, errors.New("it is no list of conditions")
	}
	for name, values := range q {
		if err := f.set(name, values[0], now); err != nil {
			return f, err
		}
	}
	return f, nil
}

// views returns the views of the viewer and of their tenant.
func (v *visit) views() (views []savedView, err error) {
	found, err := v.operator.Views(v.ctx(), v.tenant())
	for _, view := range found {
		saved := savedView{View: view}
		var unreadable error
		if saved.search, unreadable = parseQuery(view.Query, v.now.In(v.zone)); unreadable != nil {
			saved.fault = upperFirst(unreadable.Error()) + "."
		}
		views = append(views, saved)
	}
	return views, err
}

// searchToSave returns the search that is to get a name.
func (v *visit) searchToSave() (search, error) {
	f, err := parseQuery(v.param("search"), v.now.In(v.zone))
	if err != nil || f.query() == "" {
		return f, unreadable("search", "is no search of jobs")
	}
	_, err = v.filter(f)
	return f, err
}

func (s *site) askView(v *visit) error {
	f, err := v.searchToSave()
	if err != nil {
		return err
	}
	return v.render(saveViewPage(v, saving{search: f, whyNot: v.whyNot(sharing)}))
}

func (s *site) saveView(v *visit) error {
	f, err := v.searchToSave()
	if err != nil {
		return err
	}
	view := operator.View{Name: strings.TrimSpace(v.param("name")), Query: f.query(), Shared: v.param("shared") != ""}
	if missing := sharing.missing(v.who); view.Shared && missing != "" {
		return notAllowed(string(missing))
	}
	p := saving{search: f, name: view.Name, shared: view.Shared, whyNot: v.whyNot(sharing)}
	v.status = http.StatusBadRequest
	switch err := v.operator.SaveView(v.ctx(), v.tenant(), view, v.param("replaces")); {
	case err == nil:
		return v.redirect(f.link())
	case errors.Is(err, operator.ErrViewChanged):
		there, err := v.viewNamed(view.Name, true)
		if err != nil {
			return err
		}
		v.status, p.replaces = http.StatusConflict, there.Query
		p.fault = fmt.Sprintf("%s has shared %s already, for %s. Save this to replace it, or choose another name.",
			there.SavedBy, there.Name, there.meaning())
	case errors.Is(err, operator.ErrTooManyViews):
		p.fault = fmt.Sprintf("There are %d views already: delete one first.", operator.MaxViews)
	default:
		bad, ok := errors.AsType[*outbox.InvalidError](err)
		if !ok || bad.Field != "View.Name" {
			return err
		}
		p.fault = "A name has 1 to 100 bytes; a letter beyond a to z may take several."
	}
	return v.render(saveViewPage(v, p))
}

// viewNamed returns a view of the viewer, or one that is shared in their tenant.
func (v *visit) viewNamed(name string, shared bool) (savedView, error) {
	views, err := v.views()
	if err != nil {
		return savedView{}, err
	}
	at := slices.IndexFunc(views, func(w savedView) bool { return w.Name == name && w.Shared == shared })
	if at < 0 {
		return savedView{}, refusalOfView(operator.ErrViewNotFound)
	}
	return views[at], nil
}

// meaning returns the conditions of a view in words, or as they are stored if they cannot be shown any more.
func (w savedView) meaning() string {
	if w.fault != "" {
		return w.Query
	}
	return w.search.text()
}

// askDeleteView shows the first step of the act that deletes a view.
func askDeleteView(v *visit) (c confirmation, err error) {
	name, shared := v.param("name"), v.param("shared") != ""
	if missing := sharing.missing(v.who); shared && missing != "" {
		return c, notAllowed(string(missing))
	}
	view, err := v.viewNamed(name, shared)
	if err != nil {
		return c, err
	}
	c = confirmation{
		title: "Delete view " + name, back: link("jobs"), crumb: "Jobs", danger: true,
		will: []string{"The view is deleted: its name, and that it stood for " + view.meaning() +
			". No job changes."},
		hidden: []field{{"name", name}, {"shown", view.Query}},
	}
	if shared {
		c.hidden = append(c.hidden, field{"shared", "1"})
		c.will = append(c.will, view.SavedBy+" has shared it: nobody of your team sees it any more.")
	}
	return c, nil
}

func doDeleteView(v *visit, o *operator.Operator) error {
	if v.param("shown") == "" {
		return unreadable("shown", "is missing")
	}
	return refusalOfView(o.DeleteView(v.ctx(), v.tenant(), operator.View{
		Name: v.param("name"), Query: v.param("shown"), Shared: v.param("shared") != "",
	}))
}

// refusalOfView returns what people read for an error of a view, and others unchanged.
func refusalOfView(err error) error {
	switch {
	case errors.Is(err, operator.ErrViewNotFound):
		return refusal{
			http.StatusNotFound, "There is no such view",
			"Somebody may have deleted it. Go back to the jobs.",
		}
	case errors.Is(err, operator.ErrViewChanged):
		return refusal{
			http.StatusConflict, "The view stands for other jobs by now",
			"Somebody has saved another search by its name. Nothing was changed.",
		}
	}
	return err
}

// deletion returns where a view is deleted, and why this viewer may not; "" if they may.
func (v *visit) deletion(w savedView) (to []string, why string) {
	to = []string{"name", w.Name}
	if !w.Shared {
		return to, v.readOnly()
	}
	return append(to, "shared", "1"), v.whyNot(sharing)
}

// isSaved reports whether a search has a name.
func isSaved(views []savedView, f search) bool {
	return slices.ContainsFunc(views, func(w savedView) bool { return w.Query == f.query() })
}
