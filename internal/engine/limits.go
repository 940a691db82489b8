package engine

import "time"

// Limits of what is stored with a job. The public documentation says each where it applies.
const (
	MaxNameBytes    = 128      // a kind or a queue
	MaxKeyBytes     = 512      // a key and an idempotency key
	MaxKeyActive    = 1000     // the jobs of a key that may run at once
	MaxBackoffs     = 64       // the waits of a job's own back-off
	MaxHeadersBytes = 64 << 10 // all headers as JSON
	MaxPayloadBytes = 4 << 20  // as it is stored, sealed or not
	MaxResultBytes  = 4 << 20  // what a handler leaves with its job

	MaxFollowUps     = 100     // of one attempt
	MaxFollowUpBytes = 4 << 20 // all their payloads and headers

	MaxLogLines        = 200       // of a job, over all its attempts: the newest are kept
	MaxLogBytes        = 1000      // a line's; what is longer is cut
	MaxProgressBytes   = 500       // a progress message's; what is longer is cut
	MaxCheckpointBytes = 256 << 10 // as JSON
	MaxStepBytes       = 256 << 10 // a step's result as JSON
)

// MaxDuration is the longest time that may be given: with a wait or a timeout of it, every client can still represent
// the time when it is over.
const MaxDuration = 100 * 365 * 24 * time.Hour

// DefaultQueue is the queue of jobs whose options name none.
const DefaultQueue = "default"

// ContentJSON is the content type of arguments and results that are encoded as JSON.
const ContentJSON = "application/json"

// RootTenant is outbox.RootTenant.
var RootTenant = [16]byte{15: 1}

// DefaultMaxAttempts is how often a job is attempted whose options do not say.
const DefaultMaxAttempts = 25

// Channel is the NOTIFY channel that dispatchers listen to. Notifications carry no data: any role
// may read and forge them.
const Channel = "outbox_jobs"

// EventsChannel is the NOTIFY channel that relays listen to, in the same way.
const EventsChannel = "outbox_events"

// Headers of a job that hold who asked for it (outbox.Caller); those of its trace are traceparent
// and tracestate, as W3C has them.
const (
	HeaderService       = "caller-service"
	HeaderUser          = "caller-user"
	HeaderCorrelationID = "correlation-id"
)
