package dispatcher

import "github.com/posthaste-dev/posthaste/internal/engine"

// Worker returns the name under which the dispatcher holds leases.
func (d *Dispatcher) Worker() string { return d.common.worker }

// Wake does what a commit of an attached producer does.
func (d *Dispatcher) Wake() { d.producerWake.Set() }

// Reserve does what the transaction of an attached producer does.
func (d *Dispatcher) Reserve(kind, queue string, id [16]byte) engine.Reservation {
	return d.reserve(kind, queue, id)
}

// SetClaimBytes sets how many bytes of payloads a claim should get; the reader keeps up to twice as many.
func (c *Config) SetClaimBytes(n int) { c.claimBytes = n }
