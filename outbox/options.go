package outbox

import (
	"encoding/json"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// Options say how a job is to be run. The zero value is a job of the default
// queue that is due at once. Args that are a [Defaulter] fill in what is left to the
// zero value.
type Options struct {
	Queue    string        // "" is "default". 1 to 128 letters, digits and _ . : / -, first a letter or digit
	Priority int           // higher is more urgent; -32768 to 32767
	Delay    time.Duration // due this long after the insert, by the database's clock
	RunAt    time.Time     // due at this instant; excludes Delay. Zero is at once
	// MaxAttempts is how often the job is claimed at most; 0 is 25. The attempt that uses up the last one leaves the
	// job dead. One that waited for a worker in a process that was killed has used one up without having started.
	MaxAttempts int
	Timeout     time.Duration // of one attempt; 0 is what the kind's handler says, then 5 minutes
	Backoff     Backoff       // how long it waits between attempts; nil leaves it to the kind's back-off
	Key         KeyRules      // with a name, what the job may run beside; zero is a job without a key
	// IdempotencyKey is unique per tenant and kind, at most 512 bytes: a repeat returns the first job's id and changes
	// nothing.
	IdempotencyKey string
	Headers        map[string]string // trace context, correlation id …; handed to the handler. At most 64 KiB as JSON
	Tenant         ID                // zero is RootTenant
	Caller         Caller            // who asks for it; added to Headers, where they do not say otherwise
	Check          Checker           // refuses a payload that is not its kind's, before anything is sent; nil is none
	Protect        Protector         // seals the payload, and the result of its handler; nil stores them as they are

	// Deadline is the instant from which on the job may not start, run or succeed
	// any more, by the database's clock: it expires, whatever it is doing. One that
	// has passed when the job is stored has it expire at once. Zero is never.
	Deadline time.Time
	// Hold stores the job as created: it is not run before somebody releases it.
	Hold bool
	// Streamed has each change of the job stored as an event, in the transaction that makes it, for relays to publish
	// and package lifecycle to read.
	Streamed bool

	watched
}

// watched is whether somebody waits for the job: its end is announced. Package await sets it.
type watched = engine.Seam[engine.Watched]

func (o *Options) validate() []error {
	var errs []error
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if o.Queue != "" {
		add(validName("Options.Queue", o.Queue))
	}
	if o.Priority < math.MinInt16 || o.Priority > math.MaxInt16 {
		add(invalid("Options.Priority", "is %d, want -32768 to 32767", o.Priority))
	}
	if o.Delay < 0 || o.Delay > engine.MaxDuration {
		add(invalid("Options.Delay", "is %s, want 0 to 100 years", o.Delay))
	}
	if o.Delay != 0 && !o.RunAt.IsZero() {
		add(invalid("Options.RunAt", "excludes Options.Delay; set one of them"))
	}
	if !o.RunAt.IsZero() && (o.RunAt.UTC().Year() < 1970 || o.RunAt.UTC().Year() > 9999) {
		add(invalid("Options.RunAt", "is in the year %d, want 1970 to 9999", o.RunAt.UTC().Year()))
	}
	if !o.Deadline.IsZero() && (o.Deadline.UTC().Year() < 1970 || o.Deadline.UTC().Year() > 9999) {
		add(invalid("Options.Deadline", "is in the year %d, want 1970 to 9999", o.Deadline.UTC().Year()))
	} else if !o.Deadline.IsZero() && !o.RunAt.IsZero() && !o.Deadline.After(o.RunAt) {
		add(invalid("Options.Deadline", "is %s, want it after Options.RunAt, %s", o.Deadline.Format(time.RFC3339Nano), o.RunAt.Format(time.RFC3339Nano)))
	}
	if o.MaxAttempts < 0 || o.MaxAttempts > math.MaxInt16 {
		add(invalid("Options.MaxAttempts", "is %d, want 1 to 32767, or 0 for %d", o.MaxAttempts, engine.DefaultMaxAttempts))
	}
	if o.Timeout < 0 || o.Timeout > engine.MaxDuration {
		add(invalid("Options.Timeout", "is %s, want 0 to 100 years", o.Timeout))
	} else if o.Timeout != 0 && o.Timeout < time.Microsecond { // it would be stored as none
		add(invalid("Options.Timeout", "is %s, want at least 1µs, or 0 for what the kind's handler says", o.Timeout))
	}
	add(o.Backoff.validate())
	errs = append(errs, o.Key.validate(o.IdempotencyKey)...)
	add(validKey("Options.IdempotencyKey", o.IdempotencyKey))
	errs = append(errs, validHeaders("Options.Headers", o.Headers)...)
	if o.Caller != (Caller{}) {
		// With something between them: the two halves of a character are no text.
		add(validText("Options.Caller", o.Caller.Service+" "+o.Caller.User+" "+o.Caller.CorrelationID))
	}
	return errs
}

func validHeaders(field string, headers map[string]string) (errs []error) {
	for name, value := range headers {
		if name == "" { // brokers and HTTP have no such header
			errs = append(errs, invalid(field+" name", "is empty"))
		}
		for _, err := range []error{validText(field+" name", name), validText(field+"["+strings.ToValidUTF8(name, "?")+"]", value)} {
			if err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errs
}

// headersJSON is nil for no headers.
func headersJSON(field string, headers map[string]string) (*string, error) {
	if len(headers) == 0 {
		return nil, nil
	}
	b, err := json.Marshal(headers)
	if err != nil {
		return nil, invalid(field, "cannot be encoded: %v", err)
	}
	if len(b) > engine.MaxHeadersBytes {
		return nil, invalid(field, "are %d bytes as JSON, want at most %d", len(b), engine.MaxHeadersBytes)
	}
	text := string(b)
	return &text, nil
}

// validName accepts what can be the name of a kind or a queue.
func validName(field, name string) error {
	if fault := engine.NameFault(name); fault != "" {
		return &InvalidError{Field: field, Reason: fault}
	}
	return nil
}

func validKey(field, s string) error {
	if len(s) > engine.MaxKeyBytes {
		return invalid(field, "is %d bytes long, want at most %d", len(s), engine.MaxKeyBytes)
	}
	return validText(field, s)
}

// validText refuses what a Postgres text column cannot hold.
func validText(field, s string) error {
	if i := strings.IndexByte(s, 0); i >= 0 {
		return invalid(field, "has a NUL at byte %d, which Postgres text cannot hold", i)
	}
	if !utf8.ValidString(s) {
		return invalid(field, "is not valid UTF-8")
	}
	return nil
}
