package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/posthaste-dev/posthaste/internal/mutants"
)

const (
	testTime = 2 * time.Minute // the tests' own patience is 30 s
	allTime  = 8 * time.Minute // for all tests of a package
	rowTime  = 4 * time.Minute
)

// copyOfCode is our code, or a mutant of it, with the programs built from it.
type copyOfCode struct {
	root    string
	dir     string // for the programs
	overlay string // "" means our own code
}

// ending says how a check ended.
type ending struct {
	code    int // exit status
	timeout bool
	output  string
}

func (e ending) passed() bool { return e.code == 0 && !e.timeout }

// caught returns nil if the check failed as it must. Otherwise it returns why that does not count: the check passed,
// did not end in time, or failed because of something else. A check whose mutant stops something forever has a timeout
// of its own.
func (e ending) caught(c mutants.Check) error {
	switch {
	case e.passed():
		return errors.New("the check passes")
	case e.timeout:
		return fmt.Errorf("the check did not end in time:\n%s", e.output)
	case c.Test != "" && !strings.Contains(e.output, "--- FAIL: "):
		return fmt.Errorf("the check fails, but no test of it does:\n%s", e.output)
	case !strings.Contains(e.output, c.Says):
		return fmt.Errorf("the check fails, but does not say %q:\n%s", c.Says, e.output)
	}
	return nil
}

// run builds what the check needs, once per copy, and runs the check.
func (k *copyOfCode) run(ctx context.Context, c mutants.Check) (ending, error) {
	if c.Row != "" {
		program := filepath.Join(k.dir, "posthaste-proof")
		if err := k.build(ctx, program, "build", "./cmd/posthaste-proof"); err != nil {
			return ending{}, err
		}
		return start(ctx, rowTime, k.root, program, "verify", c.Row, "--tier", "P", "--seed", "1")
	}
	program := filepath.Join(k.dir, strings.ReplaceAll(c.Package, "/", "-")+".test")
	if err := k.build(ctx, program, "test", "-c", "./"+c.Package); err != nil {
		return ending{}, err
	}
	limit := testTime
	if strings.HasPrefix(c.Test, "(") {
		limit = allTime
	}
	return start(ctx, limit, filepath.Join(k.root, c.Package), program, "-test.run="+pattern(c.Test))
}

// pattern anchors a test's name, and the beginning of each subtest's.
func pattern(test string) string {
	name, subtests, _ := strings.Cut(test, "/")
	p := "^" + name + "$"
	for sub := range strings.SplitSeq(subtests, "/") {
		if sub != "" {
			p += "/^" + sub
		}
	}
	return p
}

func (k *copyOfCode) build(ctx context.Context, program string, args ...string) error {
	if _, err := os.Stat(program); err == nil {
		return nil
	}
	flags := []string{"-o", program, "-ldflags=-s -w"} // it is not debugged
	if k.overlay != "" {
		flags = append(flags, "-overlay", k.overlay)
	}
	last := len(args) - 1
	cmd := exec.CommandContext(ctx, "go", append(append(args[:last:last], flags...), args[last])...)
	cmd.Dir = k.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", args[0], err, out) // the record names no folder of this machine
	}
	return nil
}

func start(ctx context.Context, limit time.Duration, folder, program string, args ...string) (ending, error) {
	bound, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(bound, program, args...)
	cmd.Dir = folder
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it may have processes of its own
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return ending{}, context.Cause(ctx)
	}
	end := ending{code: cmd.ProcessState.ExitCode(), timeout: bound.Err() != nil, output: tail(string(out))}
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed && !end.timeout {
		return ending{}, fmt.Errorf("%s: %w", cmd, err)
	}
	return end, nil
}

// tail bounds an output. A test's failure messages come before its logs.
func tail(out string) string {
	const most = 256 << 10
	return out[max(0, len(out)-most):]
}
