package outbox

// Error codes that Posthaste itself gives to failed attempts. A handler gives its
// own with any error that has a method Code() string, or with dispatcher.WithCode;
// the senders of package relay document theirs. docs/jobs.md says what to do about
// each.
const (
	CodeError                = "error"                  // the handler returned an error without a code
	CodeTimeout              = "job_timeout"            // the attempt took longer than its timeout
	CodePanic                = "panic"                  // the handler panicked; the attempt's record has the stack
	CodeGoexit               = "goexit"                 // the handler ended its goroutine with runtime.Goexit
	CodeDeadline             = "deadline"               // the job's deadline came while it ran; it has expired
	CodeCancelled            = "cancelled"              // the job was cancelled while it ran
	CodeUnreadablePayload    = "unreadable_payload"     // the payload is sealed, and there is no key or no dispatcher.Opens
	CodeUndecodableResult    = "undecodable_result"     // a hook's type is not that of the result; fails for good
	CodeLeaseLost            = "lease_lost"             // the worker died, stalled, or could not reach the database
	CodeUndecodablePayload   = "undecodable_payload"    // the payload is not what the handler's type says; fails for good
	CodeResultTooLarge       = "result_too_large"       // the handler's result exceeds MaxResultBytes; fails for good
	CodeResultNotStored      = "result_not_stored"      // the database refuses the result; fails for good
	CodeFollowUpsNotStored   = "follow_ups_not_stored"  // the database refuses a follow-up or the result; fails for good
	CodeCompleteNotCommitted = "complete_not_committed" // Complete was called, but its transaction did not commit
)

// ErrorCodes returns all of them.
func ErrorCodes() []string {
	return []string{
		CodeError, CodeTimeout, CodePanic, CodeGoexit, CodeDeadline, CodeCancelled, CodeUnreadablePayload, CodeUndecodableResult, CodeLeaseLost,
		CodeUndecodablePayload, CodeResultTooLarge, CodeResultNotStored, CodeFollowUpsNotStored, CodeCompleteNotCommitted,
	}
}
