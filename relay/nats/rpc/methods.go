package rpc

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// method is one method of the service.
type method struct {
	name       string
	needs      []access.Capability // all of them
	everything bool                // it concerns data that all tenants share: only for tokens of all tenants
	answer     func(*Service, context.Context, *request) (any, error)
}

var methods = []method{
	{"Health", []access.Capability{access.AdminRead}, false, health},
	{"ListServices", []access.Capability{access.AdminRead}, true, listServices},
	{"List", []access.Capability{access.AdminRead, access.JobsRead}, false, list},
	{"Get", []access.Capability{access.AdminRead, access.JobsRead}, false, get},
	{"GetKey", []access.Capability{access.AdminRead}, false, getKey},
	{"Retry", []access.Capability{access.AdminMutate}, false, acting((*operator.Operator).Retry, outbox.Failed)},
	{"Cancel", []access.Capability{access.AdminMutate, access.JobsCancel}, false, acting(cancel)},
	{"ListDLQ", []access.Capability{access.AdminRead}, false, listDLQ},
	{"ReplayDLQ", []access.Capability{access.AdminMutate}, false, acting((*operator.Operator).Retry, outbox.Dead)},
	{"DismissDLQ", []access.Capability{access.AdminMutate}, false, acting((*operator.Operator).Dismiss, outbox.Dead)},
}

// ofTenant is for methods that find by a name, which several tenants may use, and for lists.
type ofTenant struct {
	Tenant string `json:"tenant"` // for tokens of all tenants
}

// tenant returns the tenant that the request is for; zero means any, and only a token of all tenants can ask for that.
func (in ofTenant) tenant(r *request) (outbox.ID, error) {
	own := r.tenant()
	if in.Tenant == "" {
		return own, nil
	}
	id, err := outbox.ParseID(in.Tenant)
	switch {
	case err != nil || id.IsZero(): // zero would mean any
		return id, invalid(issue{"/tenant", "is no tenant's id"})
	case !own.IsZero() && id != own:
		return id, forbidden("The token belongs to another tenant.")
	}
	return id, nil
}

type healthAnswer struct {
	Checks    []healthCheck `json:"checks"`
	Service   string        `json:"service"`
	Status    string        `json:"status"` // ok or failed
	Timestamp time.Time     `json:"timestamp"`
}

type healthCheck struct {
	Name   string `json:"name"`
	Status string `json:"status"`
}

// pingTimeout is shorter than clients wait.
const pingTimeout = 2 * time.Second

// health pings the database. While the database is unavailable, a caller whose token was not seen in the last seconds
// gets an error instead, because the token cannot be checked.
func health(s *Service, ctx context.Context, r *request) (any, error) {
	if err := r.read(&struct{}{}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	status := "ok"
	if err := s.config.Pool.Ping(ctx); err != nil {
		status = "failed"
	}
	return healthAnswer{
		Checks: []healthCheck{{"database", status}}, Service: serviceName, Status: status,
		Timestamp: time.Now().UTC(),
	}, nil
}

// service is a queue with its workers.
type service struct {
	Name    string   `json:"name"`
	Healthy bool     `json:"healthy"`
	Workers []worker `json:"workers"`
}

// worker is a process that runs jobs of a kind, as it last reported itself to the database.
type worker struct {
	Service     string    `json:"service"`
	JobType     string    `json:"jobType"`
	InstanceID  string    `json:"instanceId"`
	Concurrency int       `json:"concurrency"`
	Version     string    `json:"version,omitempty"`
	Timestamp   time.Time `json:"timestamp"`
}

func listServices(s *Service, ctx context.Context, r *request) (any, error) {
	var in paging
	if err := r.read(&in); err != nil {
		return nil, err
	}
	offset, limit, wrong := in.read()
	if len(wrong) > 0 {
		return nil, invalid(wrong...)
	}
	workers, err := s.operator.Workers(ctx)
	if err != nil {
		return nil, err
	}
	all := servicesOf(workers)
	some := all[min(offset, len(all)):min(offset+limit, len(all))]
	p, err := fill(r, some, offset, limit, offset+len(some) < len(all))
	if p != nil {
		p.Count = len(all)
	}
	return p, err
}

// servicesOf returns the queues that workers run, by name. A queue whose workers were not seen recently is not healthy.
func servicesOf(workers []operator.Worker) (all []service) {
	byName := map[string]*service{}
	for _, w := range workers {
		for queue, n := range w.Queues {
			if byName[queue] == nil {
				byName[queue] = &service{Name: queue, Workers: []worker{}}
			}
			if w.Missing {
				continue
			}
			of := byName[queue]
			of.Healthy = true
			for _, kind := range w.Kinds {
				of.Workers = append(of.Workers, worker{queue, kind, w.Name, n, w.Version, utc(w.SeenAt)})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		slices.SortFunc(byName[name].Workers, func(a, b worker) int {
			return cmp.Or(strings.Compare(a.JobType, b.JobType), strings.Compare(a.InstanceID, b.InstanceID))
		})
		all = append(all, *byName[name])
	}
	return all
}

type jobRequest struct {
	ID string `json:"id"`
}

type actRequest struct {
	jobRequest
	Reason string `json:"reason"` // for the audit
}

type jobAnswer struct {
	Job job `json:"job"`
}

// findJob returns the job with the id if the caller may know that it exists. Every method that takes an id calls it
// first.
func findJob(ctx context.Context, o *operator.Operator, r *request, text string) (operator.Job, error) {
	id, err := outbox.ParseID(text)
	if err != nil {
		return operator.Job{},
			invalid(issue{"/id", "is no id, want 36 characters like 01976f0e-7a5c-7d3e-8f4b-0123456789ab"})
	}
	found, err := o.Find(ctx, []operator.Wanted{{ID: id, Tenant: r.tenant()}})
	if err != nil {
		return operator.Job{}, err
	}
	if found[0].ID.IsZero() {
		return operator.Job{}, noJob(text)
	}
	return found[0], nil
}

func get(s *Service, ctx context.Context, r *request) (any, error) {
	var in jobRequest
	if err := r.read(&in); err != nil {
		return nil, err
	}
	j, err := findJob(ctx, s.operator, r, in.ID)
	if err != nil {
		return nil, err
	}
	if j, err = s.operator.Job(ctx, j.ID); err != nil {
		return nil, trimmed(err, in.ID)
	}
	v := view(r.who, j)
	if len(j.Result) > 0 {
		v.Result = document(j.Result, "application/json")
	}
	p, err := s.operator.Progress(ctx, j.ID)
	if err != nil {
		return nil, trimmed(err, in.ID)
	}
	if !p.ReportedAt.IsZero() {
		v.Progress = &progress{Message: p.Message, Current: p.Current, Total: p.Total}
		if at := utc(p.ReportedAt); at.After(v.UpdatedAt) {
			v.UpdatedAt = at
		}
	}
	lines, err := s.operator.Logs(ctx, j.ID, operator.LogPosition{})
	if err != nil {
		return nil, trimmed(err, in.ID)
	}
	for _, l := range lines {
		v.Logs = append(v.Logs, logEntry{utc(l.At), levelOf(l), l.Message})
	}
	return jobAnswer{v}, nil
}

// levelOf returns info, warn or error; the protocol has no other levels.
func levelOf(l operator.LogLine) string {
	switch {
	case l.Level >= 8:
		return "error"
	case l.Level >= 4:
		return "warn"
	}
	return "info"
}

// trimmed turns the error that a job no longer exists into its fault.
func trimmed(err error, id string) error {
	if errors.Is(err, operator.ErrNotFound) {
		return noJob(id)
	}
	return err
}

func cancel(o *operator.Operator, ctx context.Context, id outbox.ID) error {
	_, err := o.Cancel(ctx, id)
	return err
}

// acting returns a method that acts on one job in one of these statuses, or in any that the act allows, and answers
// with the job's state afterwards. A job's tenant never changes, so checking it first leaves no gap.
func acting(do func(*operator.Operator, context.Context, outbox.ID) error,
	in ...outbox.Status,
) func(*Service, context.Context, *request) (any, error) {
	return func(s *Service, ctx context.Context, r *request) (any, error) {
		var asked actRequest
		if err := r.read(&asked); err != nil {
			return nil, err
		}
		j, err := findJob(ctx, s.operator, r, asked.ID)
		if err != nil {
			return nil, err
		}
		by := s.operator.As(operator.Actor{Name: r.who.Name, RequestID: r.id}).Because(asked.Reason).Only(in...)
		if err := do(by, ctx, j.ID); err != nil {
			return nil, trimmed(err, asked.ID)
		}
		if j, err = findJob(ctx, s.operator, r, asked.ID); err != nil {
			return nil, err
		}
		return jobAnswer{view(r.who, j)}, nil
	}
}
