package dispatcher

import "github.com/posthaste-dev/posthaste/internal/engine"

// Worker is the name under which the dispatcher holds leases.
func (d *Dispatcher) Worker() string { return d.process.worker }

// Wake is what a commit of an attached producer calls.
func (d *Dispatcher) Wake() { d.wake() }

// Reserve is what the transaction of an attached producer calls.
func (d *Dispatcher) Reserve(kind, queue string, id [16]byte) engine.Reservation {
	return d.reserve(kind, queue, id)
}

// SetClaimBytes sets how much of payloads a claim is to have, and twice which it keeps.
func (c *Config) SetClaimBytes(n int) { c.claimBytes = n }
