package operator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ErrKeyNotFound reports that no open job bears the key and nothing is known about it.
var ErrKeyNotFound = errors.New("key not found")

// KeyName identifies a key: the same name in another queue is another key.
type KeyName struct {
	Tenant outbox.ID // zero means outbox.RootTenant
	Queue  string    // "" means "default"
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
	var err error
	if n.Key == "" {
		err = invalid.Field("KeyName.Key", "is empty")
	}
	return errors.Join(err, validTexts(map[string]string{"KeyName.Queue": n.Queue, "KeyName.Key": n.Key}))
}

func (n KeyName) String() string { return fmt.Sprintf("%s of queue %s", n.Key, n.Queue) }

// Key is the state of a key.
type Key struct {
	KeyName
	Waiting int64 // pending or retrying
	Blocked int64 // due, but the key is at its limit, its head is not finished, or it is parked
	Running int64
	// DeadLetters counts those that the others of the key pass over ([outbox.SkipDead]) only if they are among the
	// newest 10 000 dead letters of all, or the one for which it is parked: no index has them by key. A key that has
	// nothing else is then not found.
	DeadLetters int64

	BlockedSince time.Time // since when the blocked job that was due first has been due; zero if none is blocked
	ParkedSince  time.Time // zero unless it is parked: then no job of it starts until Unblock
	ParkedFor    outbox.ID // the dead letter for which it is parked, or will be; zero if none
	ParksAt      time.Time // when a dead head will have blocked it for long enough; zero if none does
}

// KeyPlace is a key's place in the order of [Operator.Keys].
type KeyPlace struct {
	KeyName
	BlockedSince time.Time // zero comes after all others
}

// Place returns where the key is now in the order of [Operator.Keys].
func (k Key) Place() KeyPlace { return KeyPlace{k.KeyName, k.BlockedSince} }

// KeyFilter selects keys. Its zero value selects all that have blocked jobs or are parked.
type KeyFilter struct {
	Tenant outbox.ID // zero means any
	Queue  string    // "" means any
	Parked bool      // only parked ones
	Limit  int       // 0 means 50; at most 200
	After  KeyPlace  // only those behind it; zero begins with the first
}

func (f KeyFilter) params() sqlgen.ListKeysParams {
	rows, _ := pageLimit("KeyFilter.Limit", f.Limit) // Keys has checked it
	p := sqlgen.ListKeysParams{
		Tenant: pgvalue.UUIDOrNull(f.Tenant), Queue: f.Queue, Parked: f.Parked,
		MaxKeys:    rows,
		AfterSince: from(time.Time{}), AfterTenantID: pgvalue.UUID(outbox.ID{}),
	}
	if f.After.Key != "" {
		p.AfterSince, p.AfterQueue, p.AfterKey, p.AfterTenantID = until(f.After.BlockedSince), f.After.Queue,
			f.After.Key, pgvalue.UUID(f.After.Tenant)
	}
	return p
}

// Keys lists keys with jobs that cannot run, those that have waited longest first. For the next page, set After to the
// last one's Place. A key may move in this order between two pages, when the job that was blocked first runs; it may
// then be on both or on none. Keys reads the index of all open jobs with a key: for 200 000 that takes some 50 ms.
func (o *Operator) Keys(ctx context.Context, f KeyFilter) ([]Key, error) {
	_, limit := pageLimit("KeyFilter.Limit", f.Limit)
	if err := errors.Join(limit, validTexts(map[string]string{
		"KeyFilter.Queue": f.Queue, "KeyFilter.After.Queue": f.After.Queue, "KeyFilter.After.Key": f.After.Key,
	})); err != nil {
		return nil, err
	}
	return o.keys(ctx, f.params())
}

// Key returns the state of one key, even if no job of it is blocked, or [ErrKeyNotFound] if no open job bears it.
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

// lettersOfKeys is how many dead letters a statement reads to find those that the others of a key pass over.
const lettersOfKeys = 10_000

func (o *Operator) keys(ctx context.Context, params sqlgen.ListKeysParams) ([]Key, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var rows []sqlgen.ListKeysRow
	err := o.byIndex(ctx, func(db *sqlgen.Queries) (err error) {
		reach, err := findReach(ctx, db, sqlgen.FindReachParams{
			Statuses: []string{string(outbox.Failed), string(outbox.Dead)}, Before: newest,
			After: pgvalue.UUID(outbox.ID{}), MaxRows: lettersOfKeys - 1,
		})
		if err != nil {
			return err
		}
		params.Reach = pgvalue.UUID(reach.Bytes) // zero, if it is NULL: there are not so many
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
			BlockedSince: row.BlockedSince.Time, ParkedSince: row.ParkedAt.Time, ParkedFor: row.ParkedFor.Bytes,
			ParksAt: row.ParkAt.Time,
		}
	}
	return keys, nil
}

// BlockingLetter is a dead letter that blocks a key.
type BlockingLetter struct {
	ID    outbox.ID
	Epoch int64
}

// BlockingLetters returns the dead letters that [Operator.Unblock] would retry now, in the order of their ids: those
// that block the key. Others of the key, and those whose deadline has passed, are left out. It returns
// [ErrKeyNotFound] as [Operator.Key] does.
func (o *Operator) BlockingLetters(ctx context.Context, name KeyName) ([]BlockingLetter, error) {
	letters, err := o.blockingLetters(ctx, name)
	if err == nil && len(letters) == 0 {
		_, err = o.Key(ctx, name)
	}
	return letters, err
}

func (o *Operator) blockingLetters(ctx context.Context, name KeyName) ([]BlockingLetter, error) {
	name = name.withDefaults()
	if err := name.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	var rows []sqlgen.ListBlockingLettersRow
	err := o.byIndex(ctx, func(db *sqlgen.Queries) (err error) {
		rows, err = db.ListBlockingLetters(ctx, sqlgen.ListBlockingLettersParams{
			TenantID: pgvalue.UUID(name.Tenant), Queue: name.Queue, Key: name.Key,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list what blocks key %s: %w", name, err)
	}
	letters := make([]BlockingLetter, len(rows))
	for i, row := range rows {
		letters[i] = BlockingLetter{row.ID.Bytes, row.Epoch}
	}
	return letters, nil
}

// BlocksOf returns a short text that stands for the dead letters that block a key: it is another one as soon as one of
// them has run or been acted on, or another has come.
func BlocksOf(letters []BlockingLetter) string {
	h := sha256.New()
	for _, l := range letters {
		fmt.Fprintf(h, "%s@%d ", l.ID, l.Epoch)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Blocks returns [BlocksOf] the key's [Operator.BlockingLetters].
func (o *Operator) Blocks(ctx context.Context, name KeyName) (string, error) {
	letters, err := o.BlockingLetters(ctx, name)
	if err != nil {
		return "", err
	}
	return BlocksOf(letters), nil
}

// ErrBlocksChanged reports that other dead letters block a key than those that a person has seen. Nothing was changed.
var ErrBlocksChanged = errors.New("other dead letters block it by now")

// UnblockIf does what [Operator.Unblock] does if exactly those dead letters block the key for which blocks stands, see
// [BlocksOf], and returns [ErrBlocksChanged] otherwise: a person who confirms some dead letters confirms no others.
//
// Each of its statements has a snapshot of its own, because decisions about a key depend on that (see
// functions/claim_keyed.sql): what comes between the comparison and the act is found afterwards, and the act rolled
// back.
func (o *Operator) UnblockIf(ctx context.Context, name KeyName, blocks string) (retried int, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	err = pgx.BeginFunc(ctx, o.txs, func(tx pgx.Tx) error {
		within := o.WithTx(tx)
		letters, err := within.blockingLetters(ctx, name)
		if err != nil {
			return err
		}
		same := BlocksOf(letters) == blocks
		if same { // a letter that is locked is retried by nobody else
			if same, err = within.areAt(ctx, letters, 0); err != nil {
				return err
			}
		}
		if same {
			if retried, err = within.Unblock(ctx, name); err != nil {
				return err
			}
			if same, err = within.areAt(ctx, letters, 1); err != nil {
				return err
			}
		}
		if !same || retried != len(letters) {
			return fmt.Errorf("unblock key %s: %w", name.withDefaults(), ErrBlocksChanged)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return retried, nil
}

// areAt locks the jobs of the letters, in the order of their ids, and reports whether the epoch of each has risen by so
// many.
func (o *Operator) areAt(ctx context.Context, letters []BlockingLetter, risen int64) (all bool, err error) {
	ids, epochs := make([]outbox.ID, len(letters)), map[outbox.ID]int64{}
	for i, l := range letters {
		ids[i], epochs[l.ID] = l.ID, l.Epoch+risen
	}
	err = pgx.BeginFunc(ctx, o.txs, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, scanIndexes); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT id, epoch FROM outbox.jobs WHERE id = ANY ($1) ORDER BY id FOR UPDATE`, ids)
		if err != nil {
			return err
		}
		var id outbox.ID
		var epoch int64
		_, err = pgx.ForEachRow(rows, []any{&id, &epoch}, func() error {
			if epochs[id] == epoch {
				delete(epochs, id)
			}
			return nil
		})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("lock what blocks a key: %w", err)
	}
	return len(epochs) == 0, nil
}

// Unblock releases a key that is parked or blocked by a dead head: the dead letters that block it are retried with all
// their attempts, at their old places in the line, and the other jobs follow in order. It returns how many were
// retried. It does not change a key that nothing blocks. It returns [ErrKeyNotFound] if no open job bears the key and
// nothing is known about it.
func (o *Operator) Unblock(ctx context.Context, name KeyName) (retried int, err error) {
	name = name.withDefaults()
	if err := name.validate(); err != nil {
		return 0, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	n, err := o.db.UnblockKey(ctx, sqlgen.UnblockKeyParams{
		TenantID: pgvalue.UUID(name.Tenant), Queue: name.Queue, Key: name.Key, Actor: o.by.actor,
		RequestID: o.by.requestID, Reason: o.by.reason,
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("unblock key %s: %w", name, err)
	case n < 0:
		return 0, fmt.Errorf("unblock key %s: %w", name, ErrKeyNotFound)
	}
	return int(n), nil
}
