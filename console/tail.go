package console

import (
	"fmt"
	"net/http"
	"slices"
)

const tailParams = "q kind queue status tenant"

// tailConditions are the conditions that can be checked on a change.
var tailConditions = []string{"kind", "queue", "status", "tenant"}

// tailed is the page that lists changes of jobs as they come.
type tailed struct {
	search search
	typed  string // content of the search field
	fault  string // of what was typed
}

// tail shows no jobs itself: tail.js lists the changes that it receives.
func (s *site) tail(v *visit) (err error) {
	var t tailed
	if v.params.Has("q") {
		t.typed = v.param("q")
		if t.search, err = parseSearch(t.typed, v.now.In(v.zone)); err == nil {
			err = t.search.followed()
		}
		t.search.page = "live"
		if err == nil {
			return v.redirect(t.search.link())
		}
		t.fault, v.status = upperFirst(err.Error())+".", http.StatusBadRequest
		return v.render(tailPage(v, t))
	}
	if t.search, err = v.searchOf(); err != nil {
		return err
	}
	t.search.page, t.typed = "live", t.search.text()
	if _, err := v.filter(t.search); err != nil {
		return err
	}
	return v.render(tailPage(v, t))
}

// followed returns an error for a condition that changes cannot be compared with. The error is a sentence for the
// person who wrote it.
func (f search) followed() error {
	for _, name := range names {
		if f.get(name) != "" && !slices.Contains(tailConditions, name) {
			return fmt.Errorf("a change does not say its job’s %s: here the conditions are kind, queue, status and tenant", name)
		}
	}
	return nil
}
