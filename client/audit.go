package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/url"
	"time"
)

// Act is an act of an operator.
type Act struct {
	ID        int64           `json:"id"` // rises from act to act
	At        time.Time       `json:"at"`
	Actor     string          `json:"actor"` // a person, or a token's name
	Act       string          `json:"act"`
	Tenant    string          `json:"tenant,omitempty"` // "" if it concerned no single tenant
	JobID     string          `json:"jobId,omitempty"`
	Queue     string          `json:"queue,omitempty"`
	Target    string          `json:"target,omitempty"` // any other object of the act: a key, a schedule
	Before    json.RawMessage `json:"before,omitempty"` // the previous state of what it changed
	After     json.RawMessage `json:"after,omitempty"`  // the new state
	Reason    string          `json:"reason,omitempty"`
	RequestID string          `json:"requestId,omitempty"`
}

// AuditFilter selects acts. Its zero value selects all.
type AuditFilter struct {
	Tenant    string // for tokens of all tenants; "" means any
	Actor     string
	Act       string
	JobID     string
	Queue     string
	Target    string
	RequestID string
	Since     time.Time // at this time or later
	Until     time.Time // before it
}

func (f AuditFilter) query() url.Values {
	q := tenant(f.Tenant)
	set(q, "actor", f.Actor)
	set(q, "act", f.Act)
	set(q, "job_id", f.JobID)
	set(q, "queue", f.Queue)
	set(q, "target", f.Target)
	set(q, "request_id", f.RequestID)
	set(q, "since", instant(f.Since))
	set(q, "until", instant(f.Until))
	return q
}

// AuditPage is a page of the audit.
type AuditPage struct {
	Acts []Act  `json:"acts"`           // newest first
	Next string `json:"next,omitempty"` // the cursor of the next page; "" if there is none
}

// AuditPage lists acts of operators. A limit of 0 means 50, at most 200; the cursor "" begins with the first page.
func (c *Client) AuditPage(ctx context.Context, f AuditFilter, limit int, cursor string) (AuditPage, error) {
	return ask[AuditPage](ctx, c, get("/audit", PageRequest{Limit: limit, Cursor: cursor}.add(f.query())))
}

// Audit yields the acts of operators, newest first, page after page, and finally an error if there is one.
func (c *Client) Audit(ctx context.Context, f AuditFilter) iter.Seq2[Act, error] {
	return pages(func(cursor string) ([]Act, string, error) {
		page, err := c.AuditPage(ctx, f, 200, cursor)
		return page.Acts, page.Next, err
	})
}
