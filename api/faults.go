package api

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/posthaste-dev/posthaste/outbox"
)

// place is where a request has a field of Go: in the body, and as a parameter of the query or the path. If it may be in
// both, the route decides, see [Problem.of].
type place struct{ pointer, parameter string }

// fieldPlaces maps the fields in [outbox.InvalidError]s to their places.
var fieldPlaces = map[string]place{
	"Args.Kind()": {"#/kind", ""}, "Args": {"#/payload", ""}, "Raw.Payload": {"#/payload", ""},
	"Options.Queue": {"#/queue", ""}, "Options.Priority": {"#/priority", ""}, "Options.Delay": {"#/delaySeconds", ""},
	"Options.RunAt": {"#/runAt", ""}, "Options.MaxAttempts": {"#/maxAttempts", ""},
	"Options.Timeout": {"#/timeoutSeconds", ""}, "Options.Backoff": {"#/backoffSeconds", ""},
	"Options.Key": {"#/key", ""}, "Options.IdempotencyKey": {"#/idempotencyKey", ""},
	"Options.Headers": {"#/headers", ""}, "Options.Headers name": {"#/headers", ""},
	"Options.Deadline": {"#/deadline", ""}, "Options.Key.MaxActive": {"#/maxActive", ""},
	"Options.Key.Ordered": {"#/ordered", ""}, "Options.Key.Sequence": {"#/sequence", ""},
	"Options.Key.OnDeath": {"#/onDeath", ""}, "Options.Key.ParkAfter": {"#/parkAfterSeconds", ""},
	"Options.Key.OnLapse": {"#/onLapse", ""}, "Options.Key.MaxQueued": {"#/maxQueued", ""},
	"Options.Key.WhenFull": {"#/whenFull", ""},

	"expression": {"#/cron", ""}, "expression.minute": {"#/cron", ""}, "expression.hour": {"#/cron", ""},
	"expression.day-of-month": {"#/cron", ""}, "expression.month": {"#/cron", ""},
	"expression.day-of-week": {"#/cron", ""}, "zone": {"#/timeZone", ""}, "interval": {"#/everySeconds", ""},
	"Options.Missed": {"#/missed", ""}, "Options.MissedLimit": {"#/missedLimit", ""},
	"SchedulesQuery.AfterName": {"", "cursor"}, "SchedulesQuery.Limit": {"", "limit"},

	"Filter.Kind": {"#/filter/kind", "kind"}, "Filter.Queue": {"#/filter/queue", "queue"},
	"Filter.Key": {"#/filter/key", "key"}, "Filter.Fingerprint": {"#/filter/errorFingerprint", "error_fingerprint"},
	"Filter.Statuses": {"#/filter/status", "status"}, "Filter.Worker": {"#/filter/worker", "worker"},
	"Filter.ErrorCode":  {"#/filter/errorCode", "error_code"},
	"Filter.MinAttempt": {"#/filter/minAttempt", "min_attempt"},
	"Filter.IDPrefix":   {"#/filter/idPrefix", "id_prefix"}, "Filter.Contains": {"#/filter/contains", "contains"},
	"Filter.Limit": {"", "limit"}, "Filter.Skip": {"", "offset"},

	"DeadLetterFilter.Kind":        {"#/filter/kind", "kind"},
	"DeadLetterFilter.Queue":       {"#/filter/queue", "queue"},
	"DeadLetterFilter.Key":         {"#/filter/key", "key"},
	"DeadLetterFilter.Status":      {"#/filter/status", "status"},
	"DeadLetterFilter.ErrorCode":   {"#/filter/errorCode", "error_code"},
	"DeadLetterFilter.Fingerprint": {"#/filter/errorFingerprint", "error_fingerprint"},

	"OpenFilter.Kind": {"#/jobs/kind", ""}, "OpenFilter.Queue": {"#/jobs/queue", ""},
	"OpenFilter.Key": {"#/jobs/key", ""}, "OpenFilter.Statuses": {"#/jobs/status", ""},
	"OpenFilter.AsOf":   {"#/jobs/asOf", ""},
	"OperationSpec.Act": {"#/act", ""}, "OperationSpec.PerSecond": {"#/ratePerSecond", ""},
	"OperationSpec.Edit": {"#/edit", ""}, "JobEdit.Queue": {"#/edit/queue", ""},
	"JobEdit.Priority": {"#/edit/priority", ""}, "JobEdit.RunAt": {"#/edit/runAt", ""},

	"AuditFilter.Actor": {"", "actor"}, "AuditFilter.Act": {"", "act"}, "AuditFilter.Queue": {"", "queue"},
	"AuditFilter.Target": {"", "target"}, "AuditFilter.RequestID": {"", "request_id"},
	"AuditFilter.Limit": {"", "limit"}, "AuditFilter.Before": {"", "cursor"},

	"KeyFilter.Queue": {"", "queue"}, "KeyFilter.Limit": {"", "limit"}, "KeyFilter.After.Queue": {"", "cursor"},
	"KeyFilter.After.Key": {"", "cursor"}, "KeyName.Queue": {"", "queue"}, "KeyName.Key": {"", "key"},

	"SeriesFilter.Queue": {"", "queue"}, "SeriesFilter.Kind": {"", "kind"}, "SeriesFilter.Since": {"", "since"},
	"SeriesFilter.Until": {"", "until"}, "SeriesFilter.Step": {"", "step"},

	"EventReplay.Topics": {"#/topics", ""}, "EventReplay.Until": {"#/until", ""}, "EventReplay.Key": {"#/key", ""},
	"EventReplay.PerSecond": {"#/ratePerSecond", ""},
	"JobReplay.Kind":        {"#/kind", ""}, "JobReplay.Until": {"#/until", ""}, "JobReplay.Key": {"#/key", ""},
	"JobReplay.PerSecond": {"#/ratePerSecond", ""},

	"Limits.MaxRunning": {"#/maxRunning", ""}, "Limits.Rate.Starts": {"#/rate/starts", ""},
	"Limits.Rate.Interval": {"#/rate/intervalSeconds", ""},

	// These are arguments of functions.
	"act": {"#/act", ""}, "limit": {"", "limit"}, "name": {"#/name", "name"}, "payload": {"#/payload", ""},
	"queue": {"", "queue"}, "rate": {"#/ratePerSecond", ""}, "sink": {"", "sink"},
}

// wireReasons replaces the fields that a reason names likewise: the longest first, because some are prefixes of others.
var wireReasons = func() *strings.Replacer {
	var fields []string
	for field := range fieldPlaces {
		if strings.HasPrefix(field, "Options.") {
			fields = append(fields, field)
		}
	}
	slices.SortFunc(fields, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	words := []string{
		"MaxActive, Ordered, OnLapse and MaxQueued", "maxActive, ordered, onLapse and maxQueued",
		"and so is an interval", "and so is everySeconds",
	}
	for _, field := range fields {
		words = append(words, field, strings.TrimPrefix(fieldPlaces[field].pointer, "#/"))
	}
	return strings.NewReplacer(words...)
}()

// faultsOf returns all the outbox.InvalidErrors that err joins.
func faultsOf(err error) []Fault {
	var faults []Fault
	switch e := err.(type) {
	case *outbox.InvalidError:
		at, fault := fieldPlaces[e.Field], Fault{Detail: wireReasons.Replace(e.Reason)}
		switch pointer, inPayload := strings.CutPrefix(e.Field, "Args/"); {
		case inPayload:
			fault.Pointer = "#/payload/" + pointer
		case strings.HasPrefix(e.Field, "Options.Headers["):
			fault.Pointer, fault.Detail = "#/headers", e.Error()
		default:
			fault.Pointer, fault.Parameter = at.pointer, at.parameter
		}
		faults = append(faults, fault)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			faults = append(faults, faultsOf(inner)...)
		}
	case interface{ Unwrap() error }:
		faults = faultsOf(e.Unwrap())
	}
	return faults
}

// fromHuma returns the problem for what huma finds in parameters and bodies.
func fromHuma(e *huma.ErrorModel) *Problem {
	kind := invalidInput
	for _, c := range []code{malformed, requestTimeout, bodyTooLarge, mediaType, invalidInput} {
		if c.status == e.Status {
			kind = c
		}
	}
	if e.Status >= http.StatusInternalServerError {
		return internalError.because("")
	}
	var faults []Fault
	for _, d := range e.Errors {
		faults = append(faults, faultAt(d.Location, d.Message))
	}
	detail := e.Detail
	if len(faults) > 0 {
		detail = ""
	}
	return kind.because(detail, faults...)
}

// faultAt parses a place as huma writes it: body.ids[3], query.limit, path.id.
func faultAt(location, detail string) Fault {
	where, name, _ := strings.Cut(location, ".")
	switch where {
	case "query", "path":
		return Fault{Parameter: name, Detail: detail}
	case "header":
		return Fault{Header: name, Detail: detail}
	case "body":
		pointer := "#"
		if name != "" {
			pointer += "/" + strings.NewReplacer(".", "/", "[", "/", "]", "").Replace(name)
		}
		return Fault{Pointer: pointer, Detail: detail}
	}
	return Fault{Detail: detail}
}
