package api

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
)

// Key is the state of a key: of the jobs that it limits or orders.
type Key struct {
	Tenant       string    `json:"tenant" format:"uuid"`
	Queue        string    `json:"queue"`
	Key          string    `json:"key"`
	Waiting      int64     `json:"waiting" doc:"Jobs that are pending or retrying"`
	Blocked      int64     `json:"blocked" doc:"Due jobs that wait because the key is at its limit, because its head is not finished, or because it is parked"`
	Running      int64     `json:"running"`
	DeadLetters  int64     `json:"deadLetters" doc:"Those that the others pass over are counted only if they are among the newest 10 000 dead letters of all, or the one of parkedFor"`
	BlockedSince time.Time `json:"blockedSince,omitzero" doc:"When the earliest of the blocked jobs was due"`
	ParkedSince  time.Time `json:"parkedSince,omitzero" doc:"When it was parked: none of its jobs starts until it is unblocked"`
	ParkedFor    string    `json:"parkedFor,omitempty" format:"uuid" doc:"The dead letter for which it is parked, or will be"`
	ParksAt      time.Time `json:"parksAt,omitzero" doc:"When it will be parked, because a dead letter has held it up for long enough"`
	Blocks       string    `json:"blocks,omitempty" doc:"Only where one key is read: stands for the dead letters that block it, and is another text as soon as one of them has run or another has come"`
}

func viewKey(k operator.Key) Key {
	v := Key{
		Tenant: k.Tenant.String(), Queue: k.Queue, Key: k.Key, Waiting: k.Waiting, Blocked: k.Blocked,
		Running: k.Running, DeadLetters: k.DeadLetters,
		BlockedSince: utc(k.BlockedSince), ParkedSince: utc(k.ParkedSince), ParksAt: utc(k.ParksAt),
	}
	if !k.ParkedFor.IsZero() {
		v.ParkedFor = k.ParkedFor.String()
	}
	return v
}

type keysInput struct {
	OfTenant
	Queue  string `query:"queue" maxLength:"128"`
	Parked bool   `query:"parked" doc:"Only parked keys"`
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Keys per page"`
	Cursor string `query:"cursor" maxLength:"900" doc:"Cursor of the page: next in the body of the previous page, or its Link with rel=next"`
}

type keysOutput struct {
	Link string `header:"Link" doc:"The next page, if there may be one: <?…>; rel=\"next\""`
	Body struct {
		Keys []Key  `json:"keys" nullable:"false" doc:"Ordered by waiting time, the longest first"`
		Next string `json:"next,omitempty" doc:"The cursor of the next page; omitted on the last. A key whose place in the order changes meanwhile may be on both pages, or on neither"`
	}
}

func (s *server) listKeys(ctx context.Context, in *keysInput) (*keysOutput, error) {
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	filter := operator.KeyFilter{
		Tenant: tenant, Queue: in.Queue, Parked: in.Parked,
		Limit: in.Limit,
	}
	if filter.After, err = fromCursor(in.Cursor, readKeyCursor); err != nil {
		return nil, err
	}
	keys, err := s.operator.Keys(ctx, filter)
	if err != nil {
		return nil, err
	}
	out := &keysOutput{}
	out.Body.Keys = make([]Key, len(keys))
	for i, k := range keys {
		out.Body.Keys[i] = viewKey(k)
	}
	if len(keys) == filter.Limit {
		out.Body.Next = makeKeyCursor(keys[len(keys)-1].Place())
		out.Link = in.next(out.Body.Next)
	}
	return out, nil
}

func (in *keysInput) next(cursor string) string {
	parked := ""
	if in.Parked {
		parked = "true"
	}
	return nextLink(in.Limit, cursor, map[string]string{"tenant": in.Tenant, "queue": in.Queue, "parked": parked})
}

// OfKey is for routes about one key.
type OfKey struct {
	OfTenant
	Queue string `path:"queue" maxLength:"128" pattern:"^[A-Za-z0-9][A-Za-z0-9_.:/-]*$"`
	Key   string `path:"key" maxLength:"512"`
}

func (in *OfKey) name(ctx context.Context) (operator.KeyName, error) {
	tenant, err := in.oneTenant(ctx)
	return operator.KeyName{Tenant: tenant, Queue: in.Queue, Key: in.Key}, err
}

type keyOutput struct{ Body Key }

func (s *server) getKey(ctx context.Context, in *OfKey) (*keyOutput, error) {
	name, err := in.name(ctx)
	if err != nil {
		return nil, err
	}
	blocks, err := s.operator.Blocks(ctx, name) // first, so that it stands for nothing that the answer does not count
	if err != nil {
		return nil, err
	}
	key, err := s.operator.Key(ctx, name)
	if err != nil {
		return nil, err
	}
	out := &keyOutput{Body: viewKey(key)}
	out.Body.Blocks = blocks
	return out, nil
}

type unblockInput struct {
	ForAudit
	OfKey
	Blocks string `query:"blocks" maxLength:"64" doc:"blocks of the key, as GET returned it: unblock the key only if the same dead letters block it"`
}

type unblockedOutput struct {
	Body struct {
		Queue   string `json:"queue"`
		Key     string `json:"key"`
		Retried int    `json:"retried" doc:"Number of dead letters retried"`
	}
}

func (s *server) unblockKey(ctx context.Context, in *unblockInput) (*unblockedOutput, error) {
	name, err := in.name(ctx)
	if err != nil {
		return nil, err
	}
	by, retried := s.by(ctx).Because(in.Reason), 0
	if in.Blocks == "" {
		retried, err = by.Unblock(ctx, name)
	} else {
		retried, err = by.UnblockIf(ctx, name, in.Blocks)
	}
	if err != nil {
		return nil, err
	}
	out := &unblockedOutput{}
	out.Body.Queue, out.Body.Key, out.Body.Retried = in.Queue, in.Key, retried
	return out, nil
}
