package app

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Report is the body of /readyz.
type Report struct {
	Status     string           `json:"status"` // ready, degraded, unready or draining
	Components map[string]State `json:"components"`
}

// State is how one component is: database up, down or read-only; schema current,
// ahead, behind, edited, too-new or unknown; dispatcher, reaper, scheduler and api working, waiting (for the schema),
// degraded, failing, failed, stopped, off, or (without any handler) idle; listener hearing,
// deaf, failed, stopped or off.
type State struct {
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"` // what is wrong, or what jobs wait for

	refused bool // of the database: it answers, and does not let us in
}

// Ready reports whether the process does its work. A degraded one does: jobs are
// found by polling instead of at once, a component does without a part of its work, or
// the API and the console alone have lost their database, or can only read it.
func (r Report) Ready() bool { return r.Status == statusReady || r.Status == statusDegraded }

const (
	statusReady    = "ready"
	statusDegraded = "degraded"
	statusUnready  = "unready"
	statusDraining = "draining"
)

// States of the components.
const (
	stateWorking  = "working"
	stateWaiting  = "waiting"
	stateDegraded = "degraded" // works in part
	stateFailing  = "failing"  // and trying again by itself
	stateFailed   = "failed"   // started again after a while
	stateStopped  = "stopped"
	stateHearing  = "hearing"
	stateDeaf     = "deaf"
	stateOff      = "off"
	stateIdle     = "idle"
)

// lookInterval bounds the queries that any number of probes cause.
const lookInterval = time.Second

// readiness remembers the latest look at the database.
type readiness struct {
	mu               sync.Mutex
	at               time.Time
	database, schema State
}

func (r *readiness) look(ctx context.Context, p *process) (database, schema State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at.IsZero() || time.Since(r.at) > lookInterval {
		r.database, r.schema = look(context.WithoutCancel(ctx), p.pool)
		r.at = time.Now()
	}
	return r.database, r.schema
}

// note remembers a look of the gate's.
func (r *readiness) note(database, schema State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.database, r.schema, r.at = database, schema, time.Now()
}

// report asks every component.
func (p *process) report(ctx context.Context) Report {
	database, schema := p.readiness.look(ctx, p)
	r := Report{Status: statusReady, Components: map[string]State{
		"database": database, "schema": schema,
		"dispatcher": off(p.config.NoDispatch), "reaper": off(p.config.NoReap), "scheduler": off(p.config.NoSchedule), "listener": off(true),
	}}
	unready := !schema.usable()
	if database.State != databaseUp && !database.refused && p.answersWithoutDatabase() {
		r.Status, unready = statusDegraded, false
	}
	for _, c := range p.components {
		state := c.state()
		r.Components[c.name] = state
		switch {
		case state.State == stateDeaf || state.State == stateDegraded:
			r.Status = statusDegraded
		case state.State != stateWorking && state.State != stateHearing:
			unready = true
		}
	}
	if unready {
		r.Status = statusUnready
	}
	if p.draining.Load() {
		r.Status = statusDraining
	}
	return r
}

// answersWithoutDatabase reports whether the process only serves requests, and has reached its database before. People
// then read why it does not answer, or pages of one that is read-only. A process that has never reached its database
// may be configured wrongly, and must not replace one that works; nor does one that the database does not let in any
// more, which is no outage.
func (p *process) answersWithoutDatabase() bool {
	return p.gate.isOpen() && !slices.ContainsFunc(p.components, func(c *component) bool { return c.needSchema })
}

// off is a component that was not made: switched off, or nothing for it to do.
func off(switched bool) State {
	if switched {
		return State{State: stateOff}
	}
	return State{State: stateIdle, Detail: noHandlers}
}
