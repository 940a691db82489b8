// Package model explores the lease protocol in lease.pml exhaustively with spin,
// as it is and with each of the planted errors. README.md explains the model.
package model

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

//go:embed lease.pml
var source []byte

// Planted are the errors that lease.pml can be given.
var Planted = []string{
	"SETTLE_WITHOUT_EPOCH", "SETTLE_BY_WORKER_NAME", "ATTEMPT_AS_FENCE", "EXTEND_WITHOUT_EPOCH",
	"RETRY_RESETS_EPOCH", "EXPIRY_KEEPS_EPOCH", "SNOOZE_KEEPS_EPOCH", "CANCEL_WITHOUT_FENCE",
	"CLAIM_WITHOUT_LOCK", "ORPHANS_MAY_BE_HELD", "REAPER_IGNORES_MAX_ATTEMPTS", "RETRYING_IS_NEVER_CLAIMED",
}

// Result is what spin found.
type Result struct {
	States    int    // distinct ones
	Violation string // the first assertion that failed, "" if none did
	Trail     string // how it came to that
}

var (
	stored    = regexp.MustCompile(`(?m)^\s*([\d.e+]+) states, stored`)
	violation = regexp.MustCompile(`(?m)^pan:\d+: (.*)$`)
	complete  = regexp.MustCompile(`errors: \d+`)
	shortened = regexp.MustCompile(`max search depth too small|out of memory|Search not completed`)
)

// Explore visits every state of the model in which a job has up to that many leases,
// or those up to the first violation. It needs spin and a C compiler in PATH, and
// works in dir. planted is "" for the model as it is.
func Explore(ctx context.Context, dir, planted string, leases int) (Result, error) {
	if err := os.WriteFile(filepath.Join(dir, "lease.pml"), source, 0o644); err != nil {
		return Result{}, err
	}
	generate := []string{fmt.Sprintf("-DMAX_LEASES=%d", leases), "-a", "lease.pml"}
	optimize := "-O2"
	if planted != "" {
		generate = append([]string{"-D" + planted}, generate...)
		optimize = "-O0" // found so soon that compiling takes longer
	}
	// SAFETY: assertions and end states, no cycles. MEMLIM in MB: more is an error.
	compile := []string{optimize, "-w", "-DSAFETY", "-DMEMLIM=1000", "-o", "pan", "pan.c"}
	for _, step := range [][]string{append([]string{"spin"}, generate...), append([]string{"cc"}, compile...)} {
		if out, err := run(ctx, dir, step...); err != nil {
			return Result{}, fmt.Errorf("%v: %w\n%s", step, err, out)
		}
	}
	out, err := run(ctx, dir, "./pan", "-m20000", "-w24")
	if err != nil {
		return Result{}, fmt.Errorf("pan: %w\n%s", err, out)
	}
	states := stored.FindStringSubmatch(out)
	found := violation.FindStringSubmatch(out)
	if states == nil || !complete.MatchString(out) || found == nil && shortened.MatchString(out) {
		return Result{}, fmt.Errorf("the search was not completed:\n%s", out)
	}
	n, err := strconv.ParseFloat(states[1], 64)
	if err != nil {
		return Result{}, err
	}
	result := Result{States: int(n)}
	if found != nil {
		result.Violation = found[1]
		replay := append([]string{"spin", "-t", "-p", "-g"}, generate[:len(generate)-2]...)
		result.Trail, err = run(ctx, dir, append(replay, "lease.pml")...)
	}
	return result, err
}

func run(ctx context.Context, dir string, command ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}
