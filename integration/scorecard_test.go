package integration

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify"
)

// Every row of the scorecard passes at tier P, run by the binary with the race
// detector. `posthaste verify ROW --seed N` repeats one that does not.
func TestScorecard(t *testing.T) {
	seed := uint64(time.Now().UnixNano()) % (1 << 32)
	rows, err := verify.Find(verify.TierP)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			heavy(t)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, programs.worker, "verify", row.Name, "--seed", strconv.FormatUint(seed, 10), "--out", t.ArtifactDir())
			cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it takes its children along
			cmd.WaitDelay = time.Minute
			out, err := cmd.CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Error(err)
			}
			records, err := verify.ReadRecords(t.ArtifactDir())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				if r.Skipped != "" {
					t.Skip(r.Skipped)
				}
			}
		})
	}
}
