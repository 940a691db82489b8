package main

import (
	"errors"
	"strings"

	"github.com/posthaste-dev/posthaste/outbox"
)

// flagOf maps fields in the errors of package operator to our flags and arguments.
var flagOf = map[string]string{
	"Filter.Kind": "--kind", "Filter.Queue": "--queue", "Filter.Key": "--key", "Filter.Statuses": "--status",
	"Filter.Fingerprint": "--fingerprint", "Filter.Worker": "--worker", "Filter.ErrorCode": "--error-code",
	"Filter.MinAttempt": "--min-attempt", "Filter.IDPrefix": "--id-prefix", "Filter.Limit": "--limit",

	"DeadLetterFilter.Kind": "--kind", "DeadLetterFilter.Queue": "--queue", "DeadLetterFilter.Key": "--key",
	"DeadLetterFilter.Status": "--status", "DeadLetterFilter.ErrorCode": "--error-code",
	"DeadLetterFilter.Fingerprint": "--fingerprint",

	"OpenFilter.Kind": "--kind", "OpenFilter.Queue": "--queue", "OpenFilter.Key": "--key",
	"OpenFilter.Statuses": "--status", "OpenFilter.AsOf": "--as-of", "OperationSpec.Act": "ACT",
	"OperationSpec.PerSecond": "--rate", "OperationSpec.Edit": "the edit", "JobEdit.Queue": "--set-queue",
	"JobEdit.Priority": "--set-priority", "JobEdit.RunAt": "--set-run-at",

	"AuditFilter.Actor": "--actor", "AuditFilter.Act": "--act", "AuditFilter.Queue": "--queue",
	"AuditFilter.Target": "--target", "AuditFilter.RequestID": "--request", "AuditFilter.Limit": "--limit",
	"AuditFilter.Before": "--before", "AuditHead": "--from",

	"KeyFilter.Queue": "--queue", "KeyFilter.Limit": "--limit", "KeyName.Queue": "--queue", "KeyName.Key": "KEY",

	"EventReplay.Topics": "--topic", "EventReplay.Key": "--key", "EventReplay.Until": "--until",
	"EventReplay.PerSecond": "--rate", "JobReplay.Kind": "--kind", "JobReplay.Key": "--key",
	"JobReplay.Until": "--until", "JobReplay.PerSecond": "--rate",

	"Limits.MaxRunning": "--max-running", "Limits.Rate.Starts": "--rate", "Limits.Rate.Interval": "--rate",

	"SinkTarget": "the destination", "SinkTarget.Position": "--to", "SinkMove.To": "--to",

	"act": "ACT", "limit": "--limit", "name": "NAME", "payload": "--payload", "queue": "QUEUE",
	"rate": "--rate", "sink": "SINK",
}

// inFlagWords returns a usage error for a request that is not acceptable.
func inFlagWords(err error) error {
	if _, ok := errors.AsType[*outbox.InvalidError](err); ok {
		return usagef("%s", inWords(err))
	}
	return err
}

// inWords returns the text of an error, in which each refused field is named by its flag.
func inWords(err error) string {
	text := err.Error()
	switch e := err.(type) {
	case *outbox.InvalidError:
		if flag := flagOf[e.Field]; flag != "" {
			return flag + " " + e.Reason
		}
		return flagWords.Replace(text) // of package outbox, whose reasons have fields in them, too
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			text = strings.Replace(text, inner.Error(), inWords(inner), 1)
		}
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			text = strings.Replace(text, inner.Error(), inWords(inner), 1)
		}
	}
	return text
}
