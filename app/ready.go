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

// State is the state of one component. The database is up, down or read-only; the schema current, ahead, behind,
// edited, too-new or unknown; dispatcher, reaper, scheduler and api are working, waiting (for the schema), degraded,
// failing, failed, stopped, off, or (without any handler) idle; the listener is listening, not listening, failed,
// stopped or off.
type State struct {
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"` // what is wrong, or what jobs wait for

	refused bool // of the database: it answers, and refuses the login
}

// Ready reports whether the process does its work. A degraded process does: it finds jobs by polling instead of at
// once, a component does only part of its work, or the process runs the API and the console alone and cannot reach its
// database, or can only read it.
func (r Report) Ready() bool { return r.Status == statusReady || r.Status == statusDegraded }

const (
	statusReady    = "ready"
	statusDegraded = "degraded"
	statusUnready  = "unready"
	statusDraining = "draining"
)

// These are the states of the components.
const (
	stateWorking      = "working"
	stateWaiting      = "waiting"
	stateDegraded     = "degraded" // works in part
	stateFailing      = "failing"  // and retrying
	stateFailed       = "failed"   // started again after a while
	stateStopped      = "stopped"
	stateListening    = "listening"
	stateNotListening = "not listening"
	stateOff          = "off"
	stateIdle         = "idle"
)

// lookInterval bounds the queries that any number of probes cause.
const lookInterval = time.Second

// readiness caches the latest look at the database.
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

// note stores a look made by the gate.
func (r *readiness) note(database, schema State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.database, r.schema, r.at = database, schema, time.Now()
}

// report collects the state of every component.
func (p *process) report(ctx context.Context) Report {
	database, schema := p.readiness.look(ctx, p)
	r := Report{Status: statusReady, Components: map[string]State{
		"database": database, "schema": schema,
		"dispatcher": off(p.config.NoDispatch), "reaper": off(p.config.NoReap), "scheduler": off(p.config.NoSchedule),
		"listener": off(true),
	}}
	unready := !schema.usable()
	if database.State != databaseUp && !database.refused && p.answersWithoutDatabase() {
		r.Status, unready = statusDegraded, false
	}
	for _, c := range p.components {
		state := c.state()
		r.Components[c.name] = state
		switch {
		case state.State == stateNotListening || state.State == stateDegraded:
			r.Status = statusDegraded
		case state.State != stateWorking && state.State != stateListening:
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

// answersWithoutDatabase reports whether the process only serves requests and has reached its database before. During
// an outage people can then read the reason, or the pages of a read-only database. A process that has never reached its
// database may be configured wrongly and must not replace one that works. A process whose login the database now
// refuses does not answer either: that is no outage.
func (p *process) answersWithoutDatabase() bool {
	return p.gate.isOpen() && !slices.ContainsFunc(p.components, func(c *component) bool { return c.needSchema })
}

// off returns the state of a component that was not made because it is switched off or has nothing to do.
func off(switched bool) State {
	if switched {
		return State{State: stateOff}
	}
	return State{State: stateIdle, Detail: noHandlers}
}
