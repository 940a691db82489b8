package console

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

const auditShown = 20 // entries of one job

// shownJob is a job with everything that is shown of it.
type shownJob struct {
	operator.Job
	reports operator.Reports
	payload content
	result  content
	saved   content // the checkpoint
	headers []field
	audit   []operator.AuditEntry
	after   []operator.Job // its newest follow-ups
	spans   []span
	why     []operator.Reason // why it does not run; the first is the one that applies
	reveal  bool
	noEdit  string // why its payload cannot be edited; "" if it can
}

type field struct{ name, value string }

// jobOf returns the job that the parameters name, of the viewer's tenant.
func (s *site) jobOf(v *visit) (j operator.Job, err error) {
	id, err := outbox.ParseID(v.param("id"))
	if err != nil {
		return j, refusal{
			http.StatusBadRequest, "That is no job’s id",
			"It has 36 characters, like 01976f0e-7a5c-7d3e-8f4b-0123456789ab.",
		}
	}
	j, err = v.operator.Job(v.ctx(), id) // tied to the tenant: a foreign job costs what an absent one does
	if tenant := v.tenant(); err == nil && !tenant.IsZero() && j.Tenant != tenant {
		return operator.Job{}, operator.ErrNotFound
	}
	return j, err
}

func (s *site) job(v *visit) (err error) {
	j, err := s.jobOf(v)
	if err != nil {
		return err
	}
	shown := shownJob{Job: j, spans: timeline(j, v.now), reveal: v.reveals()}
	if shown.reports, err = v.operator.Reports(v.ctx(), j.ID); err != nil {
		return err
	}
	if v.can(access.AdminRead) {
		if explained(j) {
			e, err := v.operator.Explain(v.ctx(), j.ID)
			if err != nil {
				return err
			}
			shown.why = e.Reasons
		}
		if shown.audit, err = v.operator.Audit(v.ctx(), operator.AuditFilter{
			JobID: j.ID, Tenant: v.tenant(),
			Limit: auditShown,
		}); err != nil {
			return err
		}
	}
	if j.Status.Closed() || deadLetter(j) {
		if shown.after, err = v.operator.Children(v.ctx(), j.ID, outbox.ID{}, sampleSize); err != nil {
			return err
		}
	}
	if deadLetter(j) {
		if shown.noEdit, err = v.whyNoEdit(); err != nil {
			return err
		}
	}
	if shown.reveal {
		if err := v.recordRead(j, "page"); err != nil {
			return err
		}
	}
	whole := v.param("whole") != ""
	shown.result = s.contentOf(j.Result, "application/json", shown.reveal, whole)
	if v.can(access.PayloadRead) {
		shown.payload = s.contentOf(j.Payload, j.ContentType, shown.reveal, whole)
		shown.saved = s.contentOf(shown.reports.Checkpoint.Data, "application/json", shown.reveal, whole)
		shown.headers = headersOf(j.Headers, s.mask(shown.reveal))
	}
	return v.render(jobPage(v, shown))
}

// reveals reports whether the viewer asks for masked values. Revealing is recorded as reading, so a link elsewhere, in
// a chat or on another site, must not do it: it takes a step from a page of the console, and readParameters removes the
// parameter otherwise.
func (v *visit) reveals() bool { return v.param("reveal") != "" && v.can(access.PayloadRead) }

// explained reports whether the page of a job says what it waits for, or what is known of its run.
func explained(j operator.Job) bool {
	switch j.Status {
	case outbox.Pending, outbox.Blocked, outbox.Retrying, outbox.Created, outbox.Running:
		return true
	}
	return false
}

// headersOf returns a job's headers by name.
func headersOf(stored json.RawMessage, hidden func([]string) bool) (all []field) {
	var values map[string]string
	if len(stored) == 0 || json.Unmarshal(stored, &values) != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if value := values[name]; hidden([]string{name}) {
			all = append(all, field{name, masked})
		} else {
			all = append(all, field{name, value})
		}
	}
	return all
}

func (s *site) payload(v *visit) error {
	j, err := s.jobOf(v)
	if err != nil {
		return err
	}
	if err := v.recordRead(j, "payload"); err != nil {
		return err
	}
	return v.download(j.ID.String()+"-payload", j.ContentType, j.Payload)
}

func (s *site) result(v *visit) error {
	j, err := s.jobOf(v)
	if err != nil {
		return err
	}
	if j.Result == nil {
		return refusal{
			http.StatusNotFound, "The job has no result",
			"Its handler returned none, or it has not succeeded yet.",
		}
	}
	if err := v.recordRead(j, "result"); err != nil {
		return err
	}
	return v.download(j.ID.String()+"-result", "application/json", j.Result)
}

// recordRead records that a person reads the masked values of a job, if reads are audited: on its page, in the form
// that edits its payload, or by downloading its payload or result.
func (v *visit) recordRead(j operator.Job, where string) error {
	if !v.site.config.AuditReads {
		return nil
	}
	err := v.operator.RecordRead(v.ctx(), j, where)
	if pgsession.State(err) == pgsession.ReadOnly {
		return refusal{
			http.StatusServiceUnavailable, "This cannot be shown now",
			"Who reads it is recorded in the audit, and the database accepts no writes at the moment.",
		}
	}
	return err
}

// download makes the browser save bytes as they are stored, without interpreting them.
func (v *visit) download(name, contentType string, stored []byte) error {
	kind, _, _ := mime.ParseMediaType(contentType)
	switch {
	case strings.HasSuffix(kind, "json"):
		name += ".json"
	case strings.HasPrefix(kind, "text/"):
		name += ".txt"
	default:
		name += ".bin"
	}
	h := v.w.Header()
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": name}))
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	return v.send("application/octet-stream", stored)
}

// levelClass returns the CSS class of a log line.
func levelClass(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "is-error"
	case l >= slog.LevelWarn:
		return "is-warn"
	case l < slog.LevelInfo:
		return "is-debug"
	}
	return ""
}

// late returns how long a job has waited beyond its due time; zero if it has not.
func late(j operator.Job, now time.Time) time.Duration {
	if j.Status != outbox.Pending && j.Status != outbox.Retrying && j.Status != outbox.Blocked {
		return 0
	}
	return max(now.Sub(j.RunAt), 0)
}

// visible returns an act as far as the principal may see it.
func (v *visit) visible(e operator.AuditEntry) operator.AuditEntry {
	if !v.can(access.PayloadRead) {
		e = e.WithoutPayload()
	}
	return e
}

// changes describes what an act changed, as far as the principal may see it: "paused false → true".
func (v *visit) changes(e operator.AuditEntry) (words []string) {
	e = v.visible(e)
	var before, after map[string]json.RawMessage
	_ = json.Unmarshal(e.Before, &before) // another form is not described
	_ = json.Unmarshal(e.After, &after)
	names := map[string]bool{}
	for name := range before {
		names[name] = true
	}
	for name := range after {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, became := shorten(before[name]), shorten(after[name])
		of, isHash := strings.CutSuffix(name, "_sha256")
		switch {
		case name == "payload_base64" || was == "" && became == "": // null is as good as absent
		case bytes.Equal(before[name], after[name]): // the database wrote both
		case isHash && was != "" && became != "":
			words = append(words, of+" changed")
		case isHash: // of what was not there before, or is no longer: its value says nothing
		case became == "":
			words = append(words, name+" "+was+" → removed")
		case was == "":
			words = append(words, name+" "+became)
		default:
			words = append(words, name+" "+was+" → "+became)
		}
	}
	return words
}

// shorten returns a JSON value on one line.
func shorten(value json.RawMessage) string {
	var text string
	var list []string
	switch {
	case json.Unmarshal(value, &text) == nil:
	case json.Unmarshal(value, &list) == nil:
		text = strings.Join(list, ", ")
	default:
		text = string(value)
	}
	if text == "null" {
		text = "–"
	}
	if len(text) > 60 {
		text = strings.ToValidUTF8(text[:60], "") + "…"
	}
	return text
}

// backoffs returns the waits between a job's attempts.
func backoffs(b outbox.Backoff) string {
	words := make([]string, len(b))
	for i, wait := range b {
		words[i] = took(wait)
	}
	return strings.Join(words, ", ")
}
