package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/protect"
)

// jobColumns are the columns of a job in a listing; the first of them fit on a screen.
var jobColumns = []string{
	"id", "status", "kind", "queue", "attempt", "max_attempts", "created_at", "run_at", "error_code",
	"finished_at", "started_at", "lease_expires_at", "worker", "priority", "key", "lost_leases", "epoch", "tenant",
	"timeout", "backoff",
	"error_message", "content_type", "payload_bytes", "deadline", "cancel_requested_at", "parent", "streamed",
}

const jobColumnsOnScreen = 9

// jobValues returns a job's values, nil for those that the API left out: every stored job has attempts and a content
// type.
func jobValues(j operator.Job) []any {
	timeout := ""
	if j.Timeout != 0 {
		timeout = j.Timeout.String()
	}
	known := func(v any) any { return orNull(j.MaxAttempts != 0, v) }
	return []any{
		j.ID, j.Status, j.Kind, j.Queue, known(j.Attempt), known(j.MaxAttempts), instant(j.CreatedAt), instant(j.RunAt),
		j.ErrorCode,
		instant(j.FinishedAt), instant(j.StartedAt), instant(j.LeaseExpiresAt), known(j.Worker), j.Priority, j.Key,
		known(j.LostLeases), known(j.Epoch), known(j.Tenant), known(timeout), known(backoffText(j.Backoff)),
		known(j.ErrorMessage), textOrNull(j.ContentType), known(j.PayloadBytes), instant(j.Deadline),
		instant(j.CancelRequestedAt), parentOf(j), known(j.Streamed),
	}
}

// orNull returns nil for what is not known.
func orNull(known bool, v any) any {
	if !known {
		return nil
	}
	return v
}

func textOrNull(s string) any { return orNull(s != "", s) }

// parentOf returns nil for a job that has none.
func parentOf(j operator.Job) any {
	if j.Parent.IsZero() {
		return nil
	}
	return j.Parent
}

// backoffText returns a backoff in the form that --backoff accepts.
func backoffText(b outbox.Backoff) string {
	waits := make([]string, len(b))
	for i, wait := range b {
		waits[i] = wait.String()
	}
	return strings.Join(waits, ",")
}

// instant returns nil for a time that does not apply. Others are in UTC, wherever this machine is, because the API
// returns them so.
func instant(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return operator.Presentable(t)
}

func listJobs(jobs []operator.Job) listing {
	l := listing{header: jobColumns, onScreen: jobColumnsOnScreen}
	for _, j := range jobs {
		l.add(jobValues(j)...)
	}
	return l
}

// printJob prints one job: an object for machines, and lines of a name and a value for people.
func (p *program) printJob(c *cli.Command, j operator.Job, r jobReports) error {
	names := append(append([]string{}, jobColumns...), "headers", "payload", "result", "attempts")
	names = append(names, reportColumns...)
	if c.String("output") == "json" {
		values := append(jobValues(j), rawJSON(j.Headers), content(j.ContentType, j.Payload), resultObject(j.Result),
			attemptObjects(j.Attempts))
		values = append(values, r.objects()...)
		object, err := listing{header: names}.object(values)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(p.stdout, string(object))
		return err
	}
	l := listing{header: []string{"field", "value"}}
	values := append(jobValues(j), string(j.Headers), readable(j.Payload), readableResult(j.Result), len(j.Attempts))
	values = append(values, r.readable()...)
	for i, name := range names {
		if name == "attempts" {
			name = "failed_attempts"
		}
		l.add(name, values[i])
	}
	for _, a := range j.Attempts {
		l.add(fmt.Sprintf("attempt %d", a.Attempt),
			fmt.Sprintf("%s by %s: %s: %s", a.FinishedAt.Local().Format(time.RFC3339), a.Worker, a.ErrorCode,
				a.ErrorMessage))
	}
	for _, s := range r.steps {
		l.add("step "+s.Name, fmt.Sprintf("%s in %s: %s", s.FinishedAt.Local().Format(time.RFC3339), s.Took, s.Result))
	}
	return p.print(c, l)
}

func attemptObjects(attempts []operator.Attempt) []map[string]any {
	objects := []map[string]any{}
	for _, a := range attempts {
		objects = append(objects, map[string]any{
			"attempt": a.Attempt, "epoch": a.Epoch, "worker": a.Worker, "started_at": instant(a.StartedAt),
			"finished_at": instant(a.FinishedAt),
			"error_code":  a.ErrorCode, "error_message": a.ErrorMessage, "stack": a.Stack,
		})
	}
	return objects
}

// content returns bytes in JSON: unchanged if they are JSON themselves, as a string if they are text, otherwise in
// base64 under a name that tells so.
func content(contentType string, b []byte) any {
	switch {
	case b == nil:
		return nil
	case (contentType == "" || contentType == "application/json") && json.Valid(b):
		return json.RawMessage(b)
	case utf8.Valid(b):
		return string(b)
	}
	return map[string][]byte{"base64": b}
}

func rawJSON(b json.RawMessage) any {
	if b == nil {
		return nil
	}
	return b
}

// readable returns bytes in readable form.
func readable(b []byte) string {
	if !utf8.Valid(b) {
		return fmt.Sprintf("%d bytes that are not text", len(b))
	}
	return string(b)
}

// resultObject returns a result as content does. It marks a sealed result: with the key, protect.OpenResult opens the
// base64.
func resultObject(b []byte) any {
	if sealed := protect.SealedResult(b); sealed != "" {
		return map[string]any{"sealed": sealed, "base64": b}
	}
	return content("", b)
}

// readableResult returns a result in readable form as readable does, but of a sealed one only the length and the
// content type.
func readableResult(b []byte) string {
	if sealed := protect.SealedResult(b); sealed != "" {
		return fmt.Sprintf("%d bytes, sealed: %s", len(b), sealed)
	}
	return readable(b)
}

// newJob replaces the previous status of a new job.
const newJob = "new"

// printChange prints that a job has gone from a status, newJob or "" if unknown, to its present one. A job from an
// event has no MaxAttempts.
func (p *program) printChange(c *cli.Command, from string, j operator.Job) error {
	seen := time.Now()
	if c.String("output") == "json" {
		known := j.MaxAttempts == 0
		object, err := listing{header: []string{
			"seen_at", "id", "from", "status", "kind", "queue", "attempt", "max_attempts", "worker", "error_code",
			"run_at", "finished_at", "epoch", "tenant",
		}}.object([]any{
			instant(seen), j.ID, orNull(from != "" && from != newJob, from), j.Status, j.Kind, j.Queue, j.Attempt,
			orNull(!known, j.MaxAttempts), orNull(!known, j.Worker),
			j.ErrorCode, instant(j.RunAt), instant(j.FinishedAt), j.Epoch, orNull(!j.Tenant.IsZero(), j.Tenant),
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(p.stdout, string(object))
		return err
	}
	change := "→ " + string(j.Status)
	if from != "" {
		change = from + " " + change
	}
	line := fmt.Sprintf("%s  %s  %-22s %s in %s, attempt %d", seen.Format("15:04:05.000"), j.ID, change, j.Kind,
		j.Queue, j.Attempt)
	if j.MaxAttempts > 0 {
		line += fmt.Sprintf(" of %d", j.MaxAttempts)
	}
	if j.ErrorCode != "" && j.Status != outbox.Succeeded {
		line += ", " + j.ErrorCode
	}
	_, err := fmt.Fprintln(p.stdout, oneLine(line))
	return err
}
