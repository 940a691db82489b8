package dispatcher

import (
	"cmp"
	"context"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// presenceInterval is how often a dispatcher says that it is there.
const presenceInterval = time.Minute

// present keeps the dispatcher's row in outbox.workers until ctx ends, and then
// takes it away. A failure is not told: that of claims is, and nothing but what
// people see depends on this.
func (d *Dispatcher) present(ctx context.Context) {
	row := sqlgen.ShowWorkerParams{Worker: d.worker, Version: version(), Kinds: d.kinds, Queues: slices.Sorted(maps.Keys(d.config.Queues))}
	for _, name := range row.Queues {
		row.Concurrency = append(row.Concurrency, int32(cmp.Or(d.config.Queues[name].Concurrency, defaultConcurrency)))
	}
	tick := time.NewTicker(presenceInterval)
	defer tick.Stop()
	for {
		row.Hearing = d.config.Hearing()
		bound, cancel := bounded(ctx)
		_ = d.db.ShowWorker(bound, row)
		cancel()
		select {
		case <-tick.C:
		case <-ctx.Done():
			bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second) // the stop does not wait for a database that is away
			defer cancel()
			_ = d.db.RemoveWorker(bound, d.worker)
			return
		}
	}
}

// version is that of the program, as the go command stamped it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 11 && info.Main.Version == "(devel)" {
			return s.Value[:11]
		}
	}
	return info.Main.Version
}
