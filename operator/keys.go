package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ErrKeyNotFound says that no open job bears the key and nothing is known of it.
var ErrKeyNotFound = errors.New("key not found")

// KeyName identifies a key: the same word in another queue is another key.
type KeyName struct {
	Tenant outbox.ID // zero is outbox.RootTenant
	Queue  string    // "" is engine.DefaultQueue
	Key    string
}

func (n KeyName) withDefaults() KeyName {
	if n.Tenant.IsZero() {
		n.Tenant = outbox.RootTenant
	}
	n.Queue = cmp.Or(n.Queue, engine.DefaultQueue)
	return n
}

func (n KeyName) validate() error {
	if n.Key == "" {
		return invalid.Field("KeyName.Key", "is empty")
	}
	return validTexts(map[string]string{"KeyName.Queue": n.Queue, "KeyName.Key": n.Key})
}

func (n KeyName) String() string { return fmt.Sprintf("%s of queue %s", n.Key, n.Queue) }

// Key is how a key stands.
type Key struct {
	KeyName
	Waiting     int64 // pending or retrying
	Blocked     int64 // due, but the key is at its limit, its head is not finished, or it is parked
	Running     int64
	DeadLetters int64

	BlockedSince time.Time // when the blocked job that was due first was due; zero if none is blocked
	ParkedSince  time.Time // zero unless it is parked: then nothing of it starts until Unblock
	ParkedFor    outbox.ID // the dead letter because of which it is parked, or will be; zero for none
	ParksAt      time.Time // when a dead head will have held it up for long enough; zero if none does
}

// KeyPlace is a key's place in the order of [Operator.Keys].
type KeyPlace struct {
	KeyName
	BlockedSince time.Time // zero is behind every other
}

// Place is where the key stands in the order of [Operator.Keys] now.
func (k Key) Place() KeyPlace { return KeyPlace{k.KeyName, k.BlockedSince} }

// KeyFilter says which keys to list. Its zero value is all that have blocked jobs
// or are parked.
type KeyFilter struct {
	Tenant outbox.ID // zero is any
	Queue  string    // "" is any
	Parked bool      // only parked ones
	Limit  int       // 0 is 50; more than 200 is 200
	After  KeyPlace  // only those behind it; zero is from the first on
}

func (f KeyFilter) params() sqlgen.ListKeysParams {
	p := sqlgen.ListKeysParams{
		Tenant: pgvalue.UUIDOrNull(f.Tenant), Queue: f.Queue, Parked: f.Parked, MaxKeys: int32(min(cmp.Or(f.Limit, DefaultLimit), MaxLimit)),
		AfterSince: from(time.Time{}), AfterTenantID: pgvalue.UUID(outbox.ID{}),
	}
	if f.After.Key != "" {
		p.AfterSince, p.AfterQueue, p.AfterKey, p.AfterTenantID = until(f.After.BlockedSince), f.After.Queue, f.After.Key, pgvalue.UUID(f.After.Tenant)
	}
	return p
}

// Keys lists keys with jobs that cannot run, those first that have waited longest. The
// next page begins with After as the last one's Place; a key that moves in this order
// between two pages, as what was blocked first of it runs, may be on both or on none. It
// reads the index of all open jobs with a key: of 200 000 that computes for some 50 ms.
func (o *Operator) Keys(ctx context.Context, f KeyFilter) ([]Key, error) {
	if f.Limit < 0 {
		return nil, invalid.Field("KeyFilter.Limit", "is %d, want 1 to %d, or 0 for %d", f.Limit, MaxLimit, DefaultLimit)
	}
	if err := validTexts(map[string]string{"KeyFilter.Queue": f.Queue, "KeyFilter.After.Queue": f.After.Queue, "KeyFilter.After.Key": f.After.Key}); err != nil {
		return nil, err
	}
	return o.keys(ctx, f.params())
}

// Key tells how one key stands, also if nothing of it is blocked; [ErrKeyNotFound]
// if no open job bears it.
func (o *Operator) Key(ctx context.Context, name KeyName) (Key, error) {
	name = name.withDefaults()
	if err := name.validate(); err != nil {
		return Key{}, err
	}
	params := KeyFilter{Tenant: name.Tenant, Queue: name.Queue, Limit: 1}.params()
	params.Key = name.Key
	found, err := o.keys(ctx, params)
	if err != nil {
		return Key{}, err
	}
	for _, k := range found {
		if k.KeyName == name {
			return k, nil
		}
	}
	return Key{}, fmt.Errorf("key %s: %w", name, ErrKeyNotFound)
}

func (o *Operator) keys(ctx context.Context, params sqlgen.ListKeysParams) ([]Key, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var rows []sqlgen.ListKeysRow
	err := o.byIndex(ctx, func(db *sqlgen.Queries) (err error) {
		rows, err = db.ListKeys(ctx, params)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	keys := make([]Key, len(rows))
	for i, row := range rows {
		keys[i] = Key{
			KeyName: KeyName{Tenant: row.TenantID.Bytes, Queue: row.Queue, Key: row.Key},
			Waiting: row.Waiting, Blocked: row.Blocked, Running: row.Running, DeadLetters: row.DeadLetters,
			BlockedSince: row.BlockedSince.Time, ParkedSince: row.ParkedAt.Time, ParkedFor: row.ParkedFor.Bytes, ParksAt: row.ParkAt.Time,
		}
	}
	return keys, nil
}

// Unblock takes a key up again that is parked or held up by a dead head: the dead
// letters that hold it up are retried with all their attempts, at their old places
// in the line, and the other jobs follow in order. It returns how many were
// retried. A key that nothing holds up is left as it is. [ErrKeyNotFound] if no
// open job bears it and nothing is known of it.
func (o *Operator) Unblock(ctx context.Context, name KeyName) (retried int, err error) {
	name = name.withDefaults()
	if err := name.validate(); err != nil {
		return 0, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	n, err := o.db.UnblockKey(ctx, sqlgen.UnblockKeyParams{
		TenantID: pgvalue.UUID(name.Tenant), Queue: name.Queue, Key: name.Key, Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("unblock key %s: %w", name, err)
	case n < 0:
		return 0, fmt.Errorf("unblock key %s: %w", name, ErrKeyNotFound)
	}
	return int(n), nil
}
