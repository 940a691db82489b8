package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

// OnSuccess registers a hook that runs at least once for each job of T's kind that succeeds in a process with this
// hook, whatever crashes. The hook runs as a job of its own, of the kind "<T's kind>:on_success", which the settling
// statement stores in the same queue. It is retried like any other job. Its job.Args.Epoch and job.Args.ID identify
// repeats.
//
// The mux must also have the handler of T's kind; otherwise [New] returns an [*outbox.InvalidError]. A second hook
// panics, as a second handler does.
func OnSuccess[T outbox.Args](m *Mux, hook func(ctx context.Context, job *outbox.Job[Ended[T]]) error,
	config ...KindConfig,
) {
	onSuccess[T](m, false, hook, config)
}

// OnResult registers a hook as [OnSuccess] does, for a kind whose handler returns a result, and passes the result to
// the hook. It does not pass on a sealed result: the hook of such a job fails permanently, with the error code
// undecodable_result. Use [OnSuccess] and package await for such kinds.
func OnResult[T outbox.ResultArgs[R], R any](m *Mux,
	hook func(ctx context.Context, job *outbox.Job[Ended[T]], result R) error, config ...KindConfig,
) {
	if hook == nil {
		onSuccess[T](m, true, nil, config) // panics
	}
	onSuccess[T](m, true, func(ctx context.Context, job *outbox.Job[Ended[T]]) error {
		result, sealed, err := engine.DecodeResult[R](job.Args.Result)
		if sealed != nil {
			err = fmt.Errorf("it is sealed (%s)", *sealed)
		}
		if err != nil {
			err = fmt.Errorf("decode the result of job %s: %w", job.Args.ID, err)
			return Discard(outcome.WithCode(codes.UndecodableResult, err))
		}
		return hook(ctx, job, result)
	}, config)
}

func onSuccess[T outbox.Args](m *Mux, withResult bool, hook func(context.Context, *outbox.Job[Ended[T]]) error,
	config []KindConfig,
) {
	var zero T
	by := "OnSuccess"
	if withResult {
		by = "OnResult"
	}
	h := &successHook{zero.Kind() + successSuffix, withResult}
	handleHook(m, h.kind, hook, config)
	m.hooks = append(m.hooks, endHook{zero.Kind(), by, h})
}

// OnDeath registers a hook that runs at least once each time a job of T's kind becomes a dead letter, failed or dead,
// whether its worker settles it or the reaper ends a job that keeps killing its workers. The hook runs as a job of its
// own, of the kind "<T's kind>:on_death" and in the same queue, which the database stores together with that move. If
// an operator runs the job again and it dies again, the hook runs again. Jobs that were cancelled, expired or dismissed
// have not died.
//
// The dispatcher registers the hook in outbox.death_hooks before it claims anything, and never removes it: delete the
// row of a hook that you give up.
//
// The mux must also have the handler of T's kind; otherwise [New] returns an [*outbox.InvalidError]. A second hook
// panics, as a second handler does.
func OnDeath[T outbox.Args](m *Mux, hook func(ctx context.Context, job *outbox.Job[Ended[T]]) error,
	config ...KindConfig,
) {
	var zero T
	handleHook(m, zero.Kind()+deathSuffix, hook, config)
	m.hooks = append(m.hooks, endHook{zero.Kind(), "OnDeath", nil})
}

func handleHook[T any](m *Mux, kind string, hook func(context.Context, *outbox.Job[Ended[T]]) error,
	config []KindConfig,
) {
	if len(kind) > engine.MaxNameBytes {
		panic(fmt.Errorf("dispatcher: %w", invalid.Field("kind", "of the hook, %q, is %d bytes long, want at most %d",
			kind, len(kind), engine.MaxNameBytes)))
	}
	handleAs(m, kind, hook, config)
}

func (m *Mux) deathHooks() map[string]string {
	hooks := map[string]string{}
	for name, kind := range m.names() {
		if _, dies := m.hooksOf(kind); dies {
			hooks[name] = kind + deathSuffix
		}
	}
	return hooks
}

type hookStatement interface {
	RegisterDeathHooks(context.Context, sqlgen.RegisterDeathHooksParams) error
}

// registerHooks stores the death hooks, however long the database is unavailable. It reports false if ctx ended first:
// then nothing may be claimed.
func registerHooks(ctx context.Context, p *common, db hookStatement, hooks map[string]string) bool {
	if len(hooks) == 0 {
		return true
	}
	row := sqlgen.RegisterDeathHooksParams{Worker: p.worker}
	for _, kind := range slices.Sorted(maps.Keys(hooks)) {
		row.Kinds, row.HookKinds = append(row.Kinds, kind), append(row.HookKinds, hooks[kind])
	}
	err := p.untilAnswered(ctx, "death hooks not registered", func(bound context.Context) error {
		return db.RegisterDeathHooks(bound, row)
	})
	if err == nil {
		p.health.OK()
	}
	return err == nil
}

// Ended describes a job that has ended to its hook: see [OnSuccess] and [OnDeath].
type Ended[T any] struct { // the tags name its stored form, which migrations/functions/store_death_hook.sql writes, too
	ID      outbox.ID     `json:"id"`
	Kind    string        `json:"kind"`
	Queue   string        `json:"queue"`
	Status  outbox.Status `json:"status"`  // Succeeded, Failed or Dead
	Attempt int           `json:"attempt"` // attempts that it took, or spent
	// Epoch identifies this end together with ID: a job that was run again may die again.
	Epoch        int64  `json:"epoch"`
	ErrorCode    string `json:"error_code"` // of the attempt that failed last; "" after a success
	ErrorMessage string `json:"error_message"`

	Args T `json:"args,omitempty"`
	// Payload is the job's payload if it is not a T as JSON; then Args is zero. Both are empty beyond 16 MiB.
	Payload []byte          `json:"payload,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"` // only for [OnResult]
}

// stored is an Ended whose args are not decoded.
type stored Ended[json.RawMessage]

// UnmarshalJSON reads the stored form. A payload that is not a T is no error: the job may have died of it, and its hook
// should run all the same.
func (e *Ended[T]) UnmarshalJSON(text []byte) error {
	type plain Ended[T] // without this method
	in := struct {
		*plain
		Args json.RawMessage `json:"args"` // hides that of plain
	}{plain: new(plain)}
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	if *e = Ended[T](*in.plain); e.Payload != nil {
		return nil
	}
	var args T
	if json.Unmarshal(in.Args, &args) != nil {
		e.Payload = in.Args
	} else {
		e.Args = args
	}
	return nil
}

// hookRow builds the job that calls the hook of a job that succeeds.
func hookRow(job *outbox.Claimed, kind string, withResult bool) engine.Row {
	end := stored{
		ID: job.ID, Kind: job.Kind, Queue: job.Queue, Status: outbox.Succeeded, Attempt: job.Attempt, Epoch: job.Epoch,
	}
	switch {
	case engine.InternalOf(job).Seal != nil: // what was sealed is not stored in the clear
	case job.ContentType == engine.ContentJSON && json.Valid(job.Payload):
		end.Args = job.Payload
	default:
		end.Payload = job.Payload
	}
	if withResult && json.Valid(job.Result) {
		end.Result = job.Result
	}
	payload, err := json.Marshal(end)
	if err != nil { // two raw messages that are valid, and plain types
		panic(fmt.Sprintf("dispatcher: encode the end of job %s: %v", job.ID, err))
	}
	row := engine.Row{
		ID: pgvalue.UUID(outbox.NewID()), TenantID: pgvalue.UUID(job.Tenant), Queue: job.Queue, Kind: kind,
		Priority:    int16(job.Priority),
		MaxAttempts: engine.DefaultMaxAttempts, Payload: payload, ContentType: engine.ContentJSON,
	}
	row.Headers = engine.InheritedHeaders(job.RawHeaders)
	return row
}
