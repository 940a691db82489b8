// Command run plants bugs into our own code, one at a time, and shows which check
// catches each:
//
//	go run ./internal/pgtest/withserver go run ./internal/mutants/run [MUTANT…]
//
// First every check has to pass on our code as it is. Then every mutant is built,
// and all its checks have to fail, for the reason that package mutants gives. It
// exits with 1 if one does not: that is a hole in our tests.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/posthaste-dev/posthaste/internal/mutants"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	holes, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	if holes > 0 {
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) (holes int, err error) {
	planted, err := choose(names)
	if err != nil {
		return 0, err
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "posthaste-mutants")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	started := time.Now()
	if err := passOnOurCode(ctx, root, filepath.Join(dir, "ours"), planted); err != nil {
		return 0, err
	}
	fmt.Printf("\n%-45s %-85s %7s\n", "mutant", "caught by", "seconds")
	for i, verdicts := range plantAll(ctx, root, dir, planted) {
		if v := <-verdicts; ctx.Err() == nil { // else only wait for the others to end
			holes += report(planted[i], v)
		}
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	fmt.Printf("\n%d mutants in %s, %d not caught\n", len(planted), time.Since(started).Round(time.Second), holes)
	return holes, nil
}

// choose returns the mutants of the given names, all for none.
func choose(names []string) ([]mutants.Mutant, error) {
	if len(names) == 0 {
		return mutants.All(), nil
	}
	var chosen []mutants.Mutant
	for _, name := range names {
		i := slices.IndexFunc(mutants.All(), func(m mutants.Mutant) bool { return m.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no mutant %q", name)
		}
		chosen = append(chosen, mutants.All()[i])
	}
	return chosen, nil
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	return filepath.Dir(string(bytes.TrimSpace(out))), nil
}

// passOnOurCode runs each check once on the code as it is: one that fails there
// would catch anything.
func passOnOurCode(ctx context.Context, root, dir string, planted []mutants.Mutant) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	ours := &copyOfCode{root: root, dir: dir}
	seen := map[string]bool{}
	started := time.Now()
	for _, m := range planted {
		for _, c := range m.Checks {
			if seen[c.Name()] {
				continue
			}
			seen[c.Name()] = true
			end, err := ours.run(ctx, c)
			if err != nil {
				return err
			}
			if !end.passed() {
				return fmt.Errorf("%s does not pass on our own code:\n%s", c.Name(), end.output)
			}
		}
	}
	fmt.Printf("%d checks pass on our own code, in %s\n", len(seen), time.Since(started).Round(time.Second))
	return nil
}

// verdict is what came of one check of a mutant.
type verdict struct {
	check mutants.Check
	took  time.Duration
	err   error // why it does not count as caught
}

// atOnce is how many mutants are tried at a time: most checks of those that stop
// something spend half a minute waiting for it.
const atOnce = 4

// plantAll returns a channel for each mutant, in their order.
func plantAll(ctx context.Context, root, dir string, planted []mutants.Mutant) []chan []verdict {
	all := make([]chan []verdict, len(planted))
	for i := range all {
		all[i] = make(chan []verdict, 1)
	}
	var next atomic.Int64
	for range atOnce {
		go func() {
			for i := int(next.Add(1)) - 1; i < len(planted); i = int(next.Add(1)) - 1 {
				all[i] <- plant(ctx, root, filepath.Join(dir, fmt.Sprint(i)), planted[i])
			}
		}()
	}
	return all
}

func plant(ctx context.Context, root, dir string, m mutants.Mutant) (verdicts []verdict) {
	overlay, err := m.Plant(root, dir)
	changed := &copyOfCode{root: root, dir: dir, overlay: overlay}
	for _, c := range m.Checks {
		started := time.Now()
		var end ending
		if err == nil {
			end, err = changed.run(ctx, c)
		}
		v := verdict{check: c, err: err}
		if err == nil {
			v.err = end.caught(c)
		}
		v.took = time.Since(started)
		verdicts = append(verdicts, v)
	}
	return verdicts
}

// report prints a line for each check, and returns 1 if one did not catch the mutant.
func report(m mutants.Mutant, verdicts []verdict) (hole int) {
	name := m.Name
	for _, v := range verdicts {
		by := v.check.Name()
		if v.err != nil {
			hole = 1
			by = "NOT CAUGHT by " + by
		}
		fmt.Printf("%-45s %-85s %7.1f\n", name, by, v.took.Seconds())
		if v.err != nil {
			fmt.Printf("    it %s\n    %s\n", m.Breaks, strings.ReplaceAll(strings.TrimSpace(v.err.Error()), "\n", "\n    "))
		}
		name = ""
	}
	return hole
}
