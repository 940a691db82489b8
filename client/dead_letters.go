package client

import (
	"context"
	"iter"
	"net/url"
	"strings"
	"time"
)

// DeadLetterFilter selects dead letters. Its zero value selects all.
type DeadLetterFilter struct {
	Tenant       string    `json:"tenant,omitempty"` // for tokens of all tenants; "" means any
	Kind         string    `json:"kind,omitempty"`
	Queue        string    `json:"queue,omitempty"`
	Key          string    `json:"key,omitempty"`
	Status       []string  `json:"status,omitempty"` // failed, dead; empty means both
	ErrorCode    string    `json:"errorCode,omitempty"`
	Fingerprint  string    `json:"errorFingerprint,omitempty"` // the same for dead letters that failed alike
	CreatedSince time.Time `json:"createdSince,omitzero"`      // at this time or later
	CreatedUntil time.Time `json:"createdUntil,omitzero"`
	FailedSince  time.Time `json:"failedSince,omitzero"` // became one at this time or later
	FailedUntil  time.Time `json:"failedUntil,omitzero"`
}

func (f DeadLetterFilter) query() url.Values {
	q := tenant(f.Tenant)
	set(q, "kind", f.Kind)
	set(q, "queue", f.Queue)
	set(q, "key", f.Key)
	set(q, "status", strings.Join(f.Status, ","))
	set(q, "error_code", f.ErrorCode)
	set(q, "error_fingerprint", f.Fingerprint)
	set(q, "created_since", instant(f.CreatedSince))
	set(q, "created_until", instant(f.CreatedUntil))
	set(q, "failed_since", instant(f.FailedSince))
	set(q, "failed_until", instant(f.FailedUntil))
	return q
}

// DeadLetter is a job that waits for a person.
type DeadLetter struct {
	Job
	FailedAt    time.Time `json:"failedAt"` // when it became one
	Fingerprint string    `json:"errorFingerprint,omitempty"`
}

// DeadLetterPage is a page of a list of dead letters.
type DeadLetterPage struct {
	DeadLetters []DeadLetter `json:"deadLetters"`
	Next        string       `json:"next,omitempty"` // the cursor of the next page; "" if there is none
}

// DeadLetterGroup is a group of dead letters that failed alike.
type DeadLetterGroup struct {
	Fingerprint string    `json:"errorFingerprint,omitempty"`
	Kind        string    `json:"kind"`
	ErrorCode   string    `json:"errorCode,omitempty"`
	Message     string    `json:"message,omitempty"` // of an example
	Example     string    `json:"example"`           // the newest of them
	Jobs        int64     `json:"jobs"`
	Oldest      time.Time `json:"oldest"` // when the first of them became a dead letter
	Newest      time.Time `json:"newest"` // and the last
}

type groupsAnswer struct {
	Groups []DeadLetterGroup `json:"groups"`
}

// DeadLetterPage lists dead letters, newest first by when they were enqueued. A limit of 0 means 50, at most 200; the
// cursor "" begins with the first page.
func (c *Client) DeadLetterPage(ctx context.Context, f DeadLetterFilter, limit int,
	cursor string,
) (DeadLetterPage, error) {
	return ask[DeadLetterPage](ctx, c, get("/dead-letters", PageRequest{Limit: limit, Cursor: cursor}.add(f.query())))
}

// DeadLetters yields the dead letters that match the filter, page after page, and finally an error if there is one.
func (c *Client) DeadLetters(ctx context.Context, f DeadLetterFilter) iter.Seq2[DeadLetter, error] {
	return pages(func(cursor string) ([]DeadLetter, string, error) {
		page, err := c.DeadLetterPage(ctx, f, 200, cursor)
		return page.DeadLetters, page.Next, err
	})
}

// DeadLetterGroups counts the dead letters that failed alike, the largest groups first. A limit of 0 means 50, at most
// 200.
func (c *Client) DeadLetterGroups(ctx context.Context, f DeadLetterFilter, limit int) ([]DeadLetterGroup, error) {
	answer, err := ask[groupsAnswer](ctx, c, get("/dead-letters/groups", PageRequest{Limit: limit}.add(f.query())))
	return answer.Groups, err
}
