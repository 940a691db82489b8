package outbox

import (
	"encoding/json"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// Options set how a job is run. The zero value describes a job of the default queue that is due at once. If the Args
// are a [Defaulter], it supplies the fields left at the zero value.
type Options struct {
	Queue    string        // "" means "default". 1 to 128 letters, digits and _ . : / -, the first a letter or digit
	Priority int           // from -32768 to 32767; higher is more urgent
	Delay    time.Duration // due this long after the insert, by the database's clock; 0 to 100 years
	RunAt    time.Time     // due at this instant, of the years 1970 to 9999; excludes Delay. Zero means at once
	// MaxAttempts is the most times that the job is claimed, at most 32767; 0 means 25. If the last attempt fails, the
	// job is dead. Claims are counted, not starts: a process killed with a job in its buffer uses up an attempt.
	MaxAttempts int
	// Timeout is the time of one attempt, 1 µs to 100 years; 0 means that of the kind, or else Config.Timeout of the
	// process (5 min).
	Timeout time.Duration
	Backoff Backoff  // the waits between attempts; nil means the kind's backoff
	Key     KeyRules // limits which jobs it may run alongside; zero means a job without a key
	// IdempotencyKey is unique per tenant and kind, at most 512 bytes: a repeat changes nothing and returns the first
	// job's id.
	IdempotencyKey string
	Headers        map[string]string // trace context, correlation id …; handed to the handler. At most 64 KiB as JSON
	Tenant         ID                // zero means RootTenant
	Caller         Caller            // who asks for the job; added to Headers, which take precedence
	Check          Checker           // refuses an invalid payload before anything is sent; nil means no check
	Protect        Protector         // seals the payload and the handler's result; nil stores them unsealed

	// Deadline is the instant, by the database's clock, from which the job may no longer start, run or succeed: it
	// expires in whatever state it is. A deadline that has already passed when the job is stored expires the job at
	// once. It is after RunAt and in the years 1970 to 9999; zero means never.
	Deadline time.Time
	// Hold stores the job as created: it does not run until somebody releases it.
	Hold bool
	// Streamed stores each change of the job as an event, in the transaction that makes the change, for relays to
	// publish and package lifecycle to read.
	Streamed bool

	watched
}

// watched marks a job that somebody waits for: its end is announced. Package await sets it.
type watched = engine.Internal[engine.Watched]

func (o *Options) validate() []error {
	var errs []error
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	if fault := engine.QueueFault(o.Queue); o.Queue != "" && fault != "" {
		add(invalid("Options.Queue", "%s", fault))
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
		add(invalid("Options.Deadline", "is %s, want it after Options.RunAt, %s", o.Deadline.Format(time.RFC3339Nano),
			o.RunAt.Format(time.RFC3339Nano)))
	}
	if o.MaxAttempts < 0 || o.MaxAttempts > math.MaxInt16 {
		add(invalid("Options.MaxAttempts", "is %d, want 1 to 32767, or 0 for %d", o.MaxAttempts,
			engine.DefaultMaxAttempts))
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
		// The separator keeps two halves of one character from forming valid text together.
		add(validText("Options.Caller", o.Caller.Service+" "+o.Caller.User+" "+o.Caller.CorrelationID))
	}
	return errs
}

func validHeaders(field string, headers map[string]string) (errs []error) {
	for name, value := range headers {
		if name == "" { // brokers and HTTP have no header without a name
			errs = append(errs, invalid(field+" name", "is empty"))
		}
		for _, err := range []error{
			validText(field+" name", name),
			validText(field+"["+strings.ToValidUTF8(name, "?")+"]", value),
		} {
			if err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errs
}

// headersJSON returns the headers as JSON, or nil for none.
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

// validName accepts a valid name of a kind or a queue.
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

// validText refuses text that a Postgres text column cannot store.
func validText(field, s string) error {
	if i := strings.IndexByte(s, 0); i >= 0 {
		return invalid(field, "has a NUL at byte %d, which Postgres text cannot hold", i)
	}
	if !utf8.ValidString(s) {
		return invalid(field, "is not valid UTF-8")
	}
	return nil
}
