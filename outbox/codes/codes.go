// Package codes names the error codes that Posthaste itself gives to failed attempts: the codes in operator.Job,
// await.JobError and dispatcher.Ended. A handler sets its own with any error that has a method Code() string, or with
// dispatcher.WithCode; the senders of package relay document theirs. docs/guides/retries.md explains what to do about
// each.
package codes

// The error codes of failed attempts.
const (
	Error                = "error"                  // the handler returned an error without a code
	Timeout              = "job_timeout"            // the attempt took longer than its timeout
	Panic                = "panic"                  // the handler panicked; the attempt's record has the stack
	Goexit               = "goexit"                 // the handler ended its goroutine with runtime.Goexit
	Deadline             = "deadline"               // the job's deadline passed while it ran; it has expired
	Cancelled            = "cancelled"              // the job was cancelled while it ran
	UnreadablePayload    = "unreadable_payload"     // the payload is sealed, and a key or dispatcher.Protect is absent
	OutcomeCount         = "outcome_count"          // a handler of a batch returned too few or too many outcomes
	UndecodableResult    = "undecodable_result"     // the result does not match the hook's type; fails permanently
	LeaseLost            = "lease_lost"             // the worker died, stalled, or could not reach the database
	UndecodablePayload   = "undecodable_payload"    // the payload does not match the handler's type; fails permanently
	ResultTooLarge       = "result_too_large"       // the handler's result is larger than 4 MiB; fails permanently
	ResultNotStored      = "result_not_stored"      // the database refuses the result; fails permanently
	FollowUpsNotStored   = "follow_ups_not_stored"  // the database refuses a follow-up or the result; fails permanently
	UndecodableStep      = "undecodable_step"       // a step's stored result has another type; fails permanently
	StepNotStorable      = "step_not_storable"      // a step's result is not JSON, or too large; fails permanently
	CompleteNotCommitted = "complete_not_committed" // Complete was called, but its transaction did not commit
)

// All returns the codes, in the order of docs/guides/retries.md.
func All() []string {
	return []string{
		Error, Timeout, Panic, Goexit, Deadline, Cancelled, UnreadablePayload, OutcomeCount, UndecodableResult,
		LeaseLost, UndecodablePayload, ResultTooLarge, ResultNotStored, FollowUpsNotStored, UndecodableStep,
		StepNotStorable, CompleteNotCommitted,
	}
}
