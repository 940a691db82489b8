package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"time"
)

// costOfNotify is row C8: the yardstick's own workload, on the row's server.
func costOfNotify(ctx context.Context, r *Run) error {
	const most, lasts = 64, 15 * time.Second
	for clients := 1; clients <= most; clients *= 2 {
		r.Progress("clients", clients, most)
		cmd := exec.CommandContext(ctx, r.Program, "bench", "--json", "--database-url", r.Server.URL(),
			"--clients", fmt.Sprint(clients), "--duration", lasts.String(), "enqueue")
		cmd.Stderr = r.Log
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("measure %d clients: %w", clients, err)
		}
		var measured struct {
			Off           float64 `json:"tx_per_s_off"`
			Coalesced     float64 `json:"tx_per_s_coalesced"`
			Transactional float64 `json:"tx_per_s_transactional"`
		}
		if err := json.Unmarshal(out, &measured); err != nil {
			return fmt.Errorf("measure %d clients: %w", clients, err)
		}
		r.Figure(fmt.Sprintf("off_%d_tx_per_s", clients), measured.Off)
		r.Figure(fmt.Sprintf("coalesced_%d_tx_per_s", clients), measured.Coalesced)
		r.Figure(fmt.Sprintf("transactional_%d_tx_per_s", clients), measured.Transactional)
		r.Expect(fmt.Sprintf("commits a second at all, %d clients", clients), min(measured.Off, measured.Transactional), ">=", 1)
		if clients == most {
			r.Expect("commits a second, coalesced over off, 64 clients", measured.Coalesced/measured.Off, ">=", 0.95)
		}
	}
	return nil
}
