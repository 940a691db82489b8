package engine

import "time"

// Limits of what is stored with a job. The public documentation states each where it applies.
const (
	MaxNameBytes    = 128      // a kind or a queue
	MaxKeyBytes     = 512      // a key and an idempotency key
	MaxKeyActive    = 1000     // the jobs of a key that may run at once
	MaxBackoffs     = 64       // the waits of a job's own backoff
	MaxHeadersBytes = 64 << 10 // all headers as JSON
	MaxPayloadBytes = 4 << 20  // in stored form, sealed or not
	MaxResultBytes  = 4 << 20  // of a handler

	MaxFollowUps     = 100     // of one attempt
	MaxFollowUpBytes = 4 << 20 // of all payloads and headers together

	MaxLogLines        = 200       // of a job, over all its attempts: the newest are kept
	MaxLogBytes        = 1000      // of a line; longer ones are cut
	MaxProgressBytes   = 500       // of a progress message; longer ones are cut
	MaxCheckpointBytes = 256 << 10 // as JSON
	MaxStepBytes       = 256 << 10 // of a step's result as JSON
	MaxSteps           = 1000      // of an attempt
	MaxStreamedResult  = 1 << 20   // of a result that fits into an event in any encoding
)

// Limits of what a program may configure for a kind.
const (
	MaxBatch     = 1000             // the jobs of a batch for one handler call
	MaxBatchWait = time.Minute      // for the rest of a batch
	MinTimeout   = time.Millisecond // of an attempt: less is a number that lacks its unit
)

// MaxDuration is the longest duration that may be given: after a wait or a timeout of this length, every client can
// still represent the time at its end.
const MaxDuration = 100 * 365 * 24 * time.Hour

// DefaultQueue is the queue of jobs whose options name none.
const DefaultQueue = "default"

// ContentJSON is the content type of arguments and results that are encoded as JSON.
const ContentJSON = "application/json"

// RootTenant is outbox.RootTenant.
var RootTenant = [16]byte{15: 1}

// DefaultMaxAttempts is the number of attempts of a job whose options do not set it.
const DefaultMaxAttempts = 25
