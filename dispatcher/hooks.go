package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/outcome"
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
// the hook. It does not pass on a sealed result: the hook of such a job fails for good, with the error code
// undecodable_result. Use [OnSuccess] and package await for such kinds.
func OnResult[T outbox.ResultArgs[R], R any](m *Mux,
	hook func(ctx context.Context, job *outbox.Job[Ended[T]], result R) error, config ...KindConfig,
) {
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
	h := &successHook{zero.Kind() + successSuffix, withResult}
	handleHook(m, h.kind, hook, config)
	if m.hooks.success == nil {
		m.hooks.success = map[string]*successHook{}
	}
	m.hooks.success[zero.Kind()] = h
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
	if m.hooks.death == nil {
		m.hooks.death = map[string]bool{}
	}
	m.hooks.death[zero.Kind()] = true
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

// deathHooks maps each kind that has a death hook to the kind of the hook.
func (m *Mux) deathHooks() map[string]string {
	hooks := map[string]string{}
	for name, kind := range m.names() {
		if m.hooks.death[kind] {
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
func registerHooks(ctx context.Context, p *process, db hookStatement, hooks map[string]string) bool {
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
