package api

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
)

// Key is how a key stands: the jobs that are limited or ordered by it.
type Key struct {
	Tenant       string    `json:"tenant" format:"uuid"`
	Queue        string    `json:"queue"`
	Key          string    `json:"key"`
	Waiting      int64     `json:"waiting" doc:"Jobs that are pending or retrying"`
	Blocked      int64     `json:"blocked" doc:"Jobs that are due, but the key is at its limit, its head is not finished, or it is parked"`
	Running      int64     `json:"running"`
	DeadLetters  int64     `json:"deadLetters"`
	BlockedSince time.Time `json:"blockedSince,omitzero" doc:"When the blocked job that was due first was due"`
	ParkedSince  time.Time `json:"parkedSince,omitzero" doc:"Nothing of it starts until it is unblocked"`
	ParkedFor    string    `json:"parkedFor,omitempty" format:"uuid" doc:"The dead letter because of which it is parked, or will be"`
	ParksAt      time.Time `json:"parksAt,omitzero" doc:"When a dead head will have held it up for long enough"`
}

func viewKey(k operator.Key) Key {
	v := Key{
		Tenant: k.Tenant.String(), Queue: k.Queue, Key: k.Key, Waiting: k.Waiting, Blocked: k.Blocked, Running: k.Running, DeadLetters: k.DeadLetters,
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
	Parked bool   `query:"parked" doc:"Only parked ones"`
	Limit  int    `query:"limit" minimum:"1" default:"50" doc:"More than 200 are 200"`
}

type keysOutput struct {
	Body struct {
		Keys []Key `json:"keys" nullable:"false" doc:"Those first that have waited longest"`
	}
}

func (s *server) listKeys(ctx context.Context, in *keysInput) (*keysOutput, error) {
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	keys, err := s.operator.Keys(ctx, operator.KeyFilter{Tenant: tenant, Queue: in.Queue, Parked: in.Parked, Limit: in.Limit})
	if err != nil {
		return nil, err
	}
	out := &keysOutput{}
	out.Body.Keys = make([]Key, len(keys))
	for i, k := range keys {
		out.Body.Keys[i] = viewKey(k)
	}
	return out, nil
}

type keyInput struct {
	OfTenant
	Queue string `path:"queue" maxLength:"128" pattern:"^[A-Za-z0-9][A-Za-z0-9_.:/-]*$"`
	Key   string `path:"key" maxLength:"512"`
}

func (in *keyInput) name(ctx context.Context) (operator.KeyName, error) {
	tenant, err := in.oneTenant(ctx)
	return operator.KeyName{Tenant: tenant, Queue: in.Queue, Key: in.Key}, err
}

type keyOutput struct{ Body Key }

func (s *server) getKey(ctx context.Context, in *keyInput) (*keyOutput, error) {
	name, err := in.name(ctx)
	if err != nil {
		return nil, err
	}
	key, err := s.operator.Key(ctx, name)
	if err != nil {
		return nil, err
	}
	return &keyOutput{Body: viewKey(key)}, nil
}

type unblockedOutput struct {
	Body struct {
		Queue   string `json:"queue"`
		Key     string `json:"key"`
		Retried int    `json:"retried" doc:"Dead letters that had held it up"`
	}
}

func (s *server) unblockKey(ctx context.Context, in *keyInput) (*unblockedOutput, error) {
	name, err := in.name(ctx)
	if err != nil {
		return nil, err
	}
	retried, err := s.by(ctx).Unblock(ctx, name)
	if err != nil {
		return nil, err
	}
	out := &unblockedOutput{}
	out.Body.Queue, out.Body.Key, out.Body.Retried = in.Queue, in.Key, retried
	return out, nil
}
