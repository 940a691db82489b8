package integration

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify"
)

// Every row of the scorecard passes at tier P. `posthaste verify ROW --seed N`
// repeats one that does not. Rows about times run the binary as it is shipped, the
// others one with the race detector. A row has a second try with the same seed, with
// the machine for itself, and the first one's verdict is logged: a machine that stood
// still for a moment is no fault of ours. `make verify` gives none.
func TestScorecard(t *testing.T) {
	seed := uint64(time.Now().UnixNano()) % (1 << 32)
	scorecard, err := verify.Find(verify.TierP)
	if err != nil {
		t.Fatal(err)
	}
	places := make(chan struct{}, 3) // rows wait more than they work
	var machine sync.RWMutex         // held by whoever needs all of it
	for _, row := range scorecard {
		if row.Test != "" {
			continue
		}
		t.Run(row.Name, func(t *testing.T) {
			if !row.Alone { // those that wait here begin when the others are through
				t.Parallel()
				places <- struct{}{}
				defer func() { <-places }()
			}
			machine.RLock()
			out, err := runRow(t, row, seed)
			machine.RUnlock()
			if err != nil {
				t.Logf("the first try:\n%s", out)
				machine.Lock()
				out, err = runRow(t, row, seed)
				machine.Unlock()
			}
			t.Logf("%s", out)
			if err != nil {
				t.Error(err)
			}
			if _, reason, skipped := strings.Cut(out, "     skipped, "); skipped {
				t.Skip(strings.TrimSpace(reason))
			}
		})
	}
}

func runRow(t *testing.T, row verify.Row, seed uint64) (string, error) {
	program := programs.worker
	if row.Timed {
		program = programs.posthaste
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "verify", row.Name, "--seed", strconv.FormatUint(seed, 10), "--out", t.ArtifactDir())
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it takes its children along
	cmd.WaitDelay = time.Minute
	out, err := cmd.CombinedOutput()
	return string(out), err
}
