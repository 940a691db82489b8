package client

import (
	"context"
	"iter"
	"net/url"
	"time"
)

// Key is how a key stands: the jobs that are limited or ordered by it.
type Key struct {
	Tenant       string    `json:"tenant"`
	Queue        string    `json:"queue"`
	Key          string    `json:"key"`
	Waiting      int64     `json:"waiting"` // pending or retrying
	Blocked      int64     `json:"blocked"` // due, but the key does not let them
	Running      int64     `json:"running"`
	DeadLetters  int64     `json:"deadLetters"`
	BlockedSince time.Time `json:"blockedSince,omitzero"`
	ParkedSince  time.Time `json:"parkedSince,omitzero"` // nothing of it starts until it is unblocked
	ParkedFor    string    `json:"parkedFor,omitempty"`  // the dead letter because of which
	ParksAt      time.Time `json:"parksAt,omitzero"`
}

// KeyFilter says which keys: with blocked jobs, or parked.
type KeyFilter struct {
	Tenant string // for tokens of all tenants; "" is any
	Queue  string // "" is any
	Parked bool   // only parked ones
}

// KeyName identifies a key: the same word in another queue is another key.
type KeyName struct {
	Tenant string // for tokens of all tenants; "" is the root tenant, or the token's own
	Queue  string
	Key    string
}

// Unblocked is what came of unblocking a key.
type Unblocked struct {
	Queue   string `json:"queue"`
	Key     string `json:"key"`
	Retried int    `json:"retried"` // dead letters that had held it up
}

// KeyPage is a page of a list of keys.
type KeyPage struct {
	Keys []Key  `json:"keys"`
	Next string `json:"next,omitempty"` // the cursor of the next page; "" if there is none
}

func (f KeyFilter) query() url.Values {
	q := tenant(f.Tenant)
	set(q, "queue", f.Queue)
	if f.Parked {
		q.Set("parked", "true")
	}
	return q
}

// KeyPage lists keys with jobs that cannot run, those first that have waited longest; a
// limit of 0 is 50, more than 200 is 200, and the cursor "" is the first page.
func (c *Client) KeyPage(ctx context.Context, f KeyFilter, limit int, cursor string) (KeyPage, error) {
	return ask[KeyPage](ctx, c, get("/keys", Page{Limit: limit, Cursor: cursor}.add(f.query())))
}

// Keys yields the keys that the filter means, page after page, and an error at last if
// there is one. A key that moves in the order meanwhile may be yielded twice, or not at
// all.
func (c *Client) Keys(ctx context.Context, f KeyFilter) iter.Seq2[Key, error] {
	return pages(func(cursor string) ([]Key, string, error) {
		page, err := c.KeyPage(ctx, f, 200, cursor)
		return page.Keys, page.Next, err
	})
}

// Key tells how one key stands; a [*Problem] with [CodeKeyNotFound] if no open job
// bears it.
func (c *Client) Key(ctx context.Context, name KeyName) (Key, error) {
	return ask[Key](ctx, c, get("/keys", tenant(name.Tenant)).segment("queue", name.Queue, "").segment("key", name.Key, ""))
}

// Unblock takes a key up again that is parked or held up by dead letters: they are
// retried, at their old places in the line.
func (c *Client) Unblock(ctx context.Context, name KeyName) (Unblocked, error) {
	r := post("/keys", nil)
	r.query = tenant(name.Tenant)
	return ask[Unblocked](ctx, c, r.because(ctx).segment("queue", name.Queue, "").segment("key", name.Key, "/unblock"))
}

func tenant(id string) url.Values {
	q := url.Values{}
	set(q, "tenant", id)
	return q
}
