package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/url"
	"time"
)

// Act is what an operator did.
type Act struct {
	ID        int64           `json:"id"` // rises from act to act
	At        time.Time       `json:"at"`
	Actor     string          `json:"actor"` // a person, or a token's name
	Act       string          `json:"act"`
	Tenant    string          `json:"tenant,omitempty"` // "": it concerned no one tenant
	JobID     string          `json:"jobId,omitempty"`
	Queue     string          `json:"queue,omitempty"`
	Target    string          `json:"target,omitempty"` // what else it was done to: a key, a schedule
	Before    json.RawMessage `json:"before,omitempty"` // what it changed, as it was
	After     json.RawMessage `json:"after,omitempty"`  // and as it became
	Reason    string          `json:"reason,omitempty"`
	RequestID string          `json:"requestId,omitempty"`
}

// AuditFilter says which acts. Its zero value is all.
type AuditFilter struct {
	Tenant    string // for tokens of all tenants; "" is any
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

// AuditPage lists what operators did; a limit of 0 is 50, more than 200 is 200, and
// the cursor "" is the first page.
func (c *Client) AuditPage(ctx context.Context, f AuditFilter, limit int, cursor string) (AuditPage, error) {
	return ask[AuditPage](ctx, c, get("/audit", Page{Limit: limit, Cursor: cursor}.add(f.query())))
}

// Audit yields what operators did, newest first, page after page, and an error at
// last if there is one.
func (c *Client) Audit(ctx context.Context, f AuditFilter) iter.Seq2[Act, error] {
	return pages(func(cursor string) ([]Act, string, error) {
		page, err := c.AuditPage(ctx, f, 200, cursor)
		return page.Acts, page.Next, err
	})
}
