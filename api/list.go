package api

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Filter selects jobs.
type Filter struct {
	OfTenant
	Kind           string    `query:"kind" json:"kind,omitempty" maxLength:"128"`
	Queue          string    `query:"queue" json:"queue,omitempty" maxLength:"128"`
	Key            string    `query:"key" json:"key,omitempty" maxLength:"512"`
	Fingerprint    string    `query:"error_fingerprint" json:"errorFingerprint,omitempty" maxLength:"128" doc:"Fingerprint of the error of dead letters, from GET /dead-letters/groups"`
	Status         []string  `query:"status" json:"status,omitempty" nullable:"false" enum:"created,pending,blocked,running,retrying,failed,dead,succeeded,cancelled,expired,skipped,stale,dismissed" doc:"Jobs in one of these statuses, separated by commas; dead letters are failed,dead"`
	Worker         string    `query:"worker" json:"worker,omitempty" maxLength:"256" doc:"Worker that holds the lease, or closed the job. For admin.read only"`
	ErrorCode      string    `query:"error_code" json:"errorCode,omitempty" maxLength:"128" doc:"Code of the latest failed attempt"`
	MinAttempt     int       `query:"min_attempt" json:"minAttempt,omitempty" minimum:"0" maximum:"2147483647" doc:"Jobs that have reached this attempt. For admin.read only"`
	Parent         string    `query:"parent" json:"parent,omitempty" format:"uuid" doc:"Jobs that the end of this job stored"`
	IDPrefix       string    `query:"id_prefix" json:"idPrefix,omitempty" maxLength:"36" doc:"Prefix of the id" example:"01976f0e-7a5c"`
	Contains       string    `query:"contains" json:"contains,omitempty" maxLength:"200" doc:"Text in the first 64 KiB of the payload, or in the headers, as they are stored. For payload.read only"`
	FinishedAfter  time.Time `query:"finished_after" json:"finishedAfter,omitzero" doc:"Closed at this time or later; excludes open jobs"`
	FinishedBefore time.Time `query:"finished_before" json:"finishedBefore,omitzero" doc:"Closed before this time"`
	CreatedAfter   time.Time `query:"created_after" json:"createdAfter,omitzero" doc:"Created at this time or later"`
	CreatedBefore  time.Time `query:"created_before" json:"createdBefore,omitzero" doc:"Created before this time"`
}

func (f Filter) isZero() bool {
	return f.Tenant == "" && f.Kind == "" && f.Queue == "" && f.Key == "" && f.Fingerprint == "" && len(f.Status) == 0 && f.Worker == "" && f.ErrorCode == "" && f.MinAttempt == 0 && f.Parent == "" &&
		f.IDPrefix == "" && f.Contains == "" && f.FinishedAfter.IsZero() && f.FinishedBefore.IsZero() && f.CreatedAfter.IsZero() && f.CreatedBefore.IsZero()
}

// operators returns the operator's filter, restricted to the principal's tenant.
func (f Filter) operators(ctx context.Context, place Fault) (of operator.Filter, err error) {
	of = operator.Filter{
		Kind: f.Kind, Queue: f.Queue, Key: f.Key, Fingerprint: f.Fingerprint, CreatedAfter: f.CreatedAfter, CreatedBefore: f.CreatedBefore,
		Worker: f.Worker, ErrorCode: f.ErrorCode, MinAttempt: f.MinAttempt, IDPrefix: f.IDPrefix, Contains: f.Contains, FinishedAfter: f.FinishedAfter, FinishedBefore: f.FinishedBefore,
	}
	if (f.Worker != "" || f.MinAttempt > 0) && !principal(ctx).Can(access.AdminRead) {
		return of, forbidden.because("To ask for a worker or an attempt takes the capability " + string(access.AdminRead) + ".")
	}
	if f.Contains != "" && !principal(ctx).Can(access.PayloadRead) {
		return of, forbidden.because("To search payloads takes the capability " + string(access.PayloadRead) + ".")
	}
	if f.Parent != "" {
		if of.Parent, err = outbox.ParseID(f.Parent); err != nil {
			return of, invalidInput.because("", Fault{Parameter: "parent", Detail: "is no id"})
		}
	}
	for _, status := range f.Status {
		of.Statuses = append(of.Statuses, outbox.Status(status))
	}
	of.Tenant, err = f.tenantAt(ctx, place)
	return of, err
}

type listInput struct {
	Filter
	Limit  int    `query:"limit" minimum:"1" default:"50" doc:"Jobs per page; at most 200"`
	Offset int    `query:"offset" minimum:"0" maximum:"10000" doc:"Skip this many of the newest jobs; a cursor is cheaper, and misses none"`
	Cursor string `query:"cursor" maxLength:"64" doc:"Cursor of the page: next in the body of the previous page, or its Link with rel=next"`
}

type listOutput struct {
	Link string `header:"Link" doc:"The next page, if there may be one: <?…>; rel=\"next\""`
	Body struct {
		Jobs []Job  `json:"jobs" nullable:"false"`
		Next string `json:"next,omitempty" doc:"The cursor of the next page; omitted on the last. A page that is not full may have one, because a filter that matches few of many jobs is answered in parts"`
	}
}

// listJobs returns a page. A page that is not full may have a successor, too, because each takes bounded time.
func (s *server) listJobs(ctx context.Context, in *listInput) (*listOutput, error) {
	filter, err := in.operators(ctx, inQuery)
	if err != nil {
		return nil, err
	}
	filter.Limit, filter.Skip = min(in.Limit, operator.MaxLimit), in.Offset
	if in.Cursor != "" {
		if in.Offset > 0 {
			return nil, invalidInput.because("", Fault{Parameter: "offset", Detail: "excludes cursor; set one of them"})
		}
		if filter.Before, filter.Skip, err = readJobsCursor(in.Cursor); err != nil {
			return nil, invalidInput.because("", Fault{Parameter: "cursor", Detail: "is not a cursor returned by this API"})
		}
	}
	page, err := s.operator.Page(ctx, filter)
	if err != nil {
		return nil, err
	}
	out := &listOutput{}
	out.Body.Jobs = make([]Job, len(page.Jobs))
	for i, job := range page.Jobs {
		out.Body.Jobs[i] = view(principal(ctx), job)
	}
	if !page.Next.IsZero() {
		out.Body.Next = makeJobsCursor(page)
		out.Link = "<?" + in.next(out.Body.Next) + `>; rel="next"`
	}
	return out, nil
}

// next returns the query of the next page.
func (in *listInput) next(cursor string) string {
	return nextPage(in.Limit, cursor, map[string]string{
		"tenant": in.Tenant, "kind": in.Kind, "queue": in.Queue, "key": in.Key, "error_fingerprint": in.Fingerprint, "status": strings.Join(in.Status, ","),
		"created_after": text(in.CreatedAfter), "created_before": text(in.CreatedBefore), "worker": in.Worker, "error_code": in.ErrorCode,
		"min_attempt": number(in.MinAttempt), "parent": in.Parent, "id_prefix": in.IDPrefix, "contains": in.Contains,
		"finished_after": text(in.FinishedAfter), "finished_before": text(in.FinishedBefore),
	})
}

// nextPage returns the query of a list's next page.
func nextPage(limit int, cursor string, filters map[string]string) string {
	q := url.Values{"limit": {strconv.Itoa(limit)}, "cursor": {cursor}}
	for name, value := range filters {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q.Encode()
}

// number returns "" for 0.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// text returns "" for the zero time.
func text(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

// A cursor is a version, followed by the id from which on all jobs were on this page or an earlier one.
const cursorVersion = 1

func makeCursor(id outbox.ID) string {
	return base64.RawURLEncoding.EncodeToString(append([]byte{cursorVersion}, id[:]...))
}

func readCursor(s string) (outbox.ID, error) {
	b, err := decodeCursor(s, cursorVersion, 16)
	if err != nil {
		return outbox.ID{}, err
	}
	id := outbox.ID(b)
	if id.IsZero() {
		return id, errors.New("names no job")
	}
	return id, nil
}

// A cursor with jobs that are still to be skipped, because of offset, has their number after the id: the time of a page
// may be over before they are skipped.
const skipCursorVersion = 2

func makeJobsCursor(page operator.Page) string {
	if page.Skip == 0 {
		return makeCursor(page.Next)
	}
	b := append([]byte{skipCursorVersion}, page.Next[:]...)
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint16(b, uint16(page.Skip)))
}

func readJobsCursor(s string) (before outbox.ID, skip int, err error) {
	b, err := decodeCursor(s, skipCursorVersion, 18)
	if err != nil {
		before, err = readCursor(s)
		return before, 0, err
	}
	before, skip = outbox.ID(b[:16]), int(binary.BigEndian.Uint16(b[16:]))
	if before.IsZero() || skip == 0 || skip > operator.MaxSkip {
		return before, skip, errors.New("names no job")
	}
	return before, skip, nil
}

// decodeCursor returns what follows the version of a cursor of the given length.
func decodeCursor(s string, version byte, size int) ([]byte, error) {
	b, err := openCursor(s, version)
	if err == nil && len(b) != size {
		err = errors.New("not of this size")
	}
	return b, err
}

// openCursor returns what follows the version of a cursor of any list. It accepts a single spelling: base64 alone
// ignores line ends.
func openCursor(s string, version byte) ([]byte, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) == 0 || b[0] != version || len(s) != base64.RawURLEncoding.EncodedLen(len(b)) {
		return nil, cmp.Or(err, errors.New("not of this version"))
	}
	return b[1:], nil
}
