package rpc

import (
	"context"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

type keyRequest struct {
	Service string `json:"service"`
	Type    string `json:"type"`
	Key     string `json:"key"`
	ofTenant
}

// keyAnswer is the state of a key. A key belongs to a queue: jobs of all kinds share it.
type keyAnswer struct {
	Service     string      `json:"service"`
	Type        string      `json:"type"` // as requested
	Key         string      `json:"key"`
	KeyHash     string      `json:"keyHash"`
	Active      []keyActive `json:"active"`
	Queued      []keyQueued `json:"queued"`      // oldest first, up to maxKeyJobs
	QueuedDepth int64       `json:"queuedDepth"` // how many there are in all
	// StaleTakeoverCount is how many leases of the key's open jobs have lapsed.
	StaleTakeoverCount int `json:"staleTakeoverCount"`
}

type keyActive struct {
	JobID          string    `json:"jobId"`
	InstanceID     string    `json:"instanceId"`
	StartedAt      time.Time `json:"startedAt"`
	LeaseExpiresAt time.Time `json:"leaseExpiresAt"`
	Tries          int       `json:"tries"`
}

type keyQueued struct {
	JobID     string    `json:"jobId"`
	CreatedAt time.Time `json:"createdAt"`
}

// maxKeyJobs limits the jobs listed for a key.
const maxKeyJobs = operator.MaxLimit

func getKey(s *Service, ctx context.Context, r *request) (any, error) {
	var in keyRequest
	if err := r.read(&in); err != nil {
		return nil, err
	}
	var wrong []issue
	for path, value := range map[string]string{"/service": in.Service, "/type": in.Type, "/key": in.Key} {
		if value == "" {
			wrong = append(wrong, issue{path, "is missing"})
		}
	}
	if len(wrong) > 0 {
		return nil, invalid(wrong...)
	}
	tenant, err := in.tenant(r)
	if err != nil {
		return nil, err
	}
	if tenant.IsZero() {
		tenant = outbox.RootTenant
	}
	key, err := s.operator.Key(ctx, operator.KeyName{Tenant: tenant, Queue: in.Service, Key: in.Key})
	if err != nil {
		return nil, err
	}
	out := keyAnswer{
		Service: in.Service, Type: in.Type, Key: in.Key, KeyHash: engine.KeyHash(in.Key),
		Active: []keyActive{}, Queued: []keyQueued{}, QueuedDepth: key.Waiting + key.Blocked,
	}
	jobs, _, err := find(ctx, s.operator, operator.Filter{
		Tenant: tenant, Queue: in.Service, Key: in.Key,
		Statuses: []outbox.Status{
			outbox.Pending, outbox.Blocked, outbox.Running, outbox.Retrying,
		},
	}, maxKeyJobs)
	if err != nil {
		return nil, err
	}
	slices.Reverse(jobs)
	for _, j := range jobs {
		out.StaleTakeoverCount += j.LostLeases
		if j.Status == outbox.Running {
			out.Active = append(out.Active, keyActive{
				j.ID.String(), j.Worker, utc(j.StartedAt), utc(j.LeaseExpiresAt),
				j.Attempt,
			})
		} else {
			out.Queued = append(out.Queued, keyQueued{j.ID.String(), utc(j.CreatedAt)})
		}
	}
	return out, nil
}
