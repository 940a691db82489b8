package verify

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/posthaste-dev/posthaste/internal/bench"
)

// costOfNotify runs row C8: the benchmark "enqueue" on the row's server.
func costOfNotify(ctx context.Context, r *Run) error {
	const most, lasts = 64, 15 * time.Second
	for clients := 1; clients <= most; clients *= 2 {
		r.Progress("clients", clients, most)
		measured, err := bench.Run(ctx, "enqueue", bench.Options{
			DatabaseURL: r.Server.URL(), Clients: clients, Duration: lasts,
			Logger: slog.New(slog.NewTextHandler(r.Log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		if err != nil {
			return fmt.Errorf("measure %d clients: %w", clients, err)
		}
		perSecond := map[string]float64{}
		for _, f := range measured.Figures {
			perSecond[f.Name] = f.Value
		}
		off, coalesced, transactional := perSecond["tx_per_s_off"], perSecond["tx_per_s_coalesced"],
			perSecond["tx_per_s_transactional"]
		r.Figure(fmt.Sprintf("off_%d_tx_per_s", clients), off)
		r.Figure(fmt.Sprintf("coalesced_%d_tx_per_s", clients), coalesced)
		r.Figure(fmt.Sprintf("transactional_%d_tx_per_s", clients), transactional)
		r.Expect(fmt.Sprintf("commits per second, the lower of off and transactional, %d clients", clients),
			min(off, transactional), ">=", 1)
		if clients == most {
			r.Expect("commits per second at 64 clients: coalesced divided by off", coalesced/off, ">=", 0.95)
		}
	}
	return nil
}
