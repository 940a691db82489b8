// Package callers limits how much one caller may ask of a process, over HTTP or NATS.
package callers

import (
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/outbox"
)

// burst is how many seconds' worth of requests a principal may make at once.
const burst = time.Second

// maxPrincipals bounds the remembered principals: beyond it, those without recent requests are forgotten.
const maxPrincipals = 10_000

// Limits limits the requests of each principal, by the generic cell rate algorithm. For each principal it keeps one
// instant, at which all its requests so far would have been made at the allowed rate. The instant may be ahead of now
// by the burst.
type Limits struct {
	interval time.Duration // between two requests at the rate that is allowed
	now      func() time.Time

	mu     sync.Mutex
	ahead  map[Caller]time.Time
	pruned time.Time
}

// Caller identifies who has one share of a process's resources: of its concurrent requests, streams, memory and pages.
type Caller struct {
	Tenant outbox.ID
	Name   string
}

// Of returns the caller to whose share a principal's requests count. All names of a tenant share one: with four names a
// tenant gets no more of the process than with one. Names of the root tenant, and names that act for all tenants, are
// the installation's own programs and people: each has a share of its own.
func Of(who access.Principal) Caller {
	if !who.AllTenants && who.Tenant != outbox.RootTenant {
		return Caller{Tenant: who.Tenant}
	}
	return Caller{who.Tenant, who.Name}
}

// NewLimits returns limits that admit the given number of requests per second of each principal.
func NewLimits(perSecond float64) *Limits {
	return &Limits{
		interval: time.Duration(float64(time.Second) / perSecond), now: time.Now,
		ahead: map[Caller]time.Time{},
	}
}

// Take counts a request. It returns 0 if the request is admitted, and otherwise after how many seconds the next one
// will be. A nil Limits admits all.
func (l *Limits) Take(who access.Principal) (wait int) {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	key := Caller{who.Tenant, who.Name}
	at := l.ahead[key]
	if at.Before(now) {
		at = now
	}
	if early := at.Add(l.interval).Sub(now) - max(burst, l.interval); early > 0 {
		return int((early + time.Second - 1) / time.Second)
	}
	l.ahead[key] = at.Add(l.interval)
	if len(l.ahead) > maxPrincipals && now.Sub(l.pruned) > burst {
		l.pruned = now
		for key, at := range l.ahead {
			if at.Before(now) {
				delete(l.ahead, key)
			}
		}
	}
	return 0
}
