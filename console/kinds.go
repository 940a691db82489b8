package console

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// shownKind is a kind of job, with its payload's schema and its workers.
type shownKind struct {
	name    string
	schema  json.RawMessage // nil if there is none
	workers []operator.Worker
	jobs    []operator.Job // the newest
	groups  []operator.DeadLetterGroup
	counted time.Time // when the groups were
	chart   charted
}

// present returns how many of the workers are present.
func (k shownKind) present() (n int) {
	for _, w := range k.workers {
		if !w.Missing {
			n++
		}
	}
	return n
}

// knownKinds returns the kinds with a schema and those with a handler, by name. Workers are shown only to viewers of
// all tenants.
func (s *site) knownKinds(v *visit) (known map[string]*shownKind, err error) {
	known = map[string]*shownKind{}
	named := func(name string) *shownKind {
		if known[name] == nil {
			known[name] = &shownKind{name: name}
		}
		return known[name]
	}
	for name, schema := range s.config.Kinds.All() {
		named(name).schema = schema
	}
	if !v.who.AllTenants {
		return known, nil
	}
	workers, err := v.operator.Workers(v.ctx())
	if err != nil {
		return nil, err
	}
	for _, w := range workers {
		for _, name := range w.Kinds {
			named(name).workers = append(named(name).workers, w)
		}
	}
	return known, nil
}

func (s *site) kinds(v *visit) error {
	known, err := s.knownKinds(v)
	if err != nil {
		return err
	}
	lines, err := v.sparks(true)
	if err != nil {
		return err
	}
	for name := range lines {
		if known[name] == nil {
			known[name] = &shownKind{name: name}
		}
	}
	all := make([]*shownKind, 0, len(known))
	for _, name := range slices.Sorted(maps.Keys(known)) {
		all = append(all, known[name])
	}
	return v.render(kindsPage(v, all, lines))
}

const (
	kindJobs   = 10
	kindGroups = 5
	lettersOf  = 7 * 24 * time.Hour // the maximum age of dead letters in groups: all must be read to be grouped
)

func (s *site) kind(v *visit) error {
	name := v.param("kind")
	if name == "" {
		return refusal{http.StatusBadRequest, "Which kind?", "The address names none."}
	}
	known, err := s.knownKinds(v)
	if err != nil {
		return err
	}
	k := shownKind{name: name}
	if found := known[name]; found != nil {
		k = *found
	}
	page, err := v.operator.Page(v.ctx(), operator.Filter{Kind: name, Tenant: v.tenant(), Limit: kindJobs})
	if err != nil {
		return err
	}
	k.jobs = page.Jobs
	since := v.now.Add(-lettersOf).Truncate(time.Minute) // the same for all viewers
	letters := operator.DeadLetterFilter{Kind: name, Tenant: v.tenant(), CreatedSince: since}
	// The look goes on if the person goes away: so does the place of this page.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.ctx()), s.config.Timeout)
	defer cancel()
	counted, err := s.watch.LetterGroups.Look(ctx, letters, kindGroups)
	if err != nil {
		return err
	}
	k.groups, k.counted = counted.Groups, counted.AsOf
	if k.chart, err = v.chart("", name); err != nil {
		return err
	}
	return v.render(kindPage(v, k))
}

// schemaOf returns the schema, indented.
func (s *site) schemaOf(k shownKind) content {
	return s.contentOf(k.schema, "application/json", true, true)
}

// lettersIn returns the search for the dead letters of a kind in one group of errors.
func lettersIn(kind string, g operator.DeadLetterGroup) search {
	return search{kind: kind, fingerprint: g.Fingerprint, statuses: []outbox.Status{outbox.Failed, outbox.Dead}}
}
