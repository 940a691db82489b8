package client

import (
	"context"
	"iter"
	"net/url"
	"time"
)

// Key is the state of a key: of the jobs that it limits or orders.
type Key struct {
	Tenant       string    `json:"tenant"`
	Queue        string    `json:"queue"`
	Key          string    `json:"key"`
	Waiting      int64     `json:"waiting"` // pending or retrying
	Blocked      int64     `json:"blocked"` // due, but held back by the key
	Running      int64     `json:"running"`
	DeadLetters  int64     `json:"deadLetters"`
	BlockedSince time.Time `json:"blockedSince,omitzero"`
	ParkedSince  time.Time `json:"parkedSince,omitzero"` // none of its jobs starts until it is unblocked
	ParkedFor    string    `json:"parkedFor,omitempty"`  // the dead letter that parked it
	ParksAt      time.Time `json:"parksAt,omitzero"`
	Blocks       string    `json:"blocks,omitempty"` // of one key, not of a list: stands for its dead letters
}

// KeyFilter selects keys with blocked jobs, or parked ones.
type KeyFilter struct {
	Tenant string // for tokens of all tenants; "" means any
	Queue  string // "" means any
	Parked bool   // only parked ones
}

// KeyName identifies a key: the same name in another queue is another key.
type KeyName struct {
	Tenant string // for tokens of all tenants; "" means the root tenant, or the token's own
	Queue  string
	Key    string
}

// Unblocked is the result of unblocking a key.
type Unblocked struct {
	Queue   string `json:"queue"`
	Key     string `json:"key"`
	Retried int    `json:"retried"` // dead letters that had blocked it
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

// KeyPage lists keys with jobs that cannot run, those that have waited longest first. A limit of 0 means 50, at most
// 200; the cursor "" begins with the first page.
func (c *Client) KeyPage(ctx context.Context, f KeyFilter, limit int, cursor string) (KeyPage, error) {
	return ask[KeyPage](ctx, c, get("/keys", PageRequest{Limit: limit, Cursor: cursor}.add(f.query())))
}

// Keys yields the keys that match the filter, page after page, and finally an error if there is one. A key that moves
// in the order meanwhile may be yielded twice, or not at all.
func (c *Client) Keys(ctx context.Context, f KeyFilter) iter.Seq2[Key, error] {
	return pages(func(cursor string) ([]Key, string, error) {
		page, err := c.KeyPage(ctx, f, 200, cursor)
		return page.Keys, page.Next, err
	})
}

// Key returns the state of one key, or a [*Problem] with [CodeKeyNotFound] if no open job bears it.
func (c *Client) Key(ctx context.Context, name KeyName) (Key, error) {
	return ask[Key](ctx, c, get("/keys", tenant(name.Tenant)).segment("queue", name.Queue, "").segment("key", name.Key,
		""))
}

// Unblock releases a key that is parked or blocked by dead letters: they are retried, at their old places in the line.
func (c *Client) Unblock(ctx context.Context, name KeyName) (Unblocked, error) {
	return c.UnblockIf(ctx, name, "")
}

// UnblockIf does what Unblock does, but returns a [*Problem] with [CodeBlocksChanged] if other dead letters block the
// key than those for which blocks stands, the Blocks of a Key; "" means any.
func (c *Client) UnblockIf(ctx context.Context, name KeyName, blocks string) (Unblocked, error) {
	r := post("/keys", nil)
	r.query = tenant(name.Tenant)
	set(r.query, "blocks", blocks)
	return ask[Unblocked](ctx, c, r.because(ctx).segment("queue", name.Queue, "").segment("key", name.Key, "/unblock"))
}

func tenant(id string) url.Values {
	q := url.Values{}
	set(q, "tenant", id)
	return q
}
