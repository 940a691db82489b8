// Command run plants bugs into our own code, one at a time, and shows which check
// catches each:
//
//	go run ./internal/pgtest/withserver go run ./internal/mutants/run [flags] [MUTANT…]
//
// First every check must pass on our unchanged code. Then every mutant is built, and all its checks must fail, for the
// reason that package mutants gives. The command exits with 1 if one does not: that is a gap in our tests.
//
// With a record, the command skips checks that have caught their mutant by the record, so that it continues an
// interrupted run. Remove the record to start again.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
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
	var o options
	flag.StringVar(&o.record, "record", "", "`file` to which each verdict is appended, and which says what is left to do")
	flag.StringVar(&o.write, "write", "", "`file` to which the table of all mutants is written, from the record")
	flag.IntVar(&o.atOnce, "j", 4, "mutants that are tried at a time: most checks of those that stop something wait half a minute for it")
	flag.BoolVar(&o.trust, "trust", false, "do not run the checks on our own code first: another run has seen them pass")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	holes, err := run(ctx, o, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	if holes > 0 {
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	record, write string
	atOnce        int
	trust         bool
}

func run(ctx context.Context, o options, names []string) (holes int, err error) {
	planted, err := choose(names)
	if err != nil {
		return 0, err
	}
	book, err := openRecord(o.record)
	if err != nil {
		return 0, err
	}
	if o.write != "" {
		defer func() { err = errors.Join(err, book.write(o.write)) }()
	}
	if all := len(planted); o.record != "" {
		planted = book.missing(planted)
		fmt.Printf("%d of %d mutants are left to be tried, by the record\n", len(planted), all)
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
	if !o.trust {
		if err := passOnOurCode(ctx, root, filepath.Join(dir, "ours"), planted); err != nil {
			return 0, err
		}
	}
	commit := revision(ctx)
	fmt.Printf("\n%-45s %-85s %7s\n", "mutant", "caught by", "seconds")
	for i, verdicts := range plantAll(ctx, root, dir, planted, o.atOnce) {
		v := <-verdicts
		if ctx.Err() != nil { // only wait for the others to end
			continue
		}
		holes += report(planted[i], v)
		if err := book.add(planted[i], v, commit); err != nil {
			return holes, err
		}
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	fmt.Printf("\n%d mutants in %s, %d not caught\n", len(planted), time.Since(started).Round(time.Second), holes)
	return holes, nil
}

// revision returns the commit that is checked.
func revision(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--abbrev=12", "--dirty=+changes", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	return string(bytes.TrimSpace(out))
}

// choose returns the named mutants, or all mutants if there are no names.
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

// passOnOurCode runs the checks on our unchanged code, those of a package in one process: a check that fails there
// would catch anything.
func passOnOurCode(ctx context.Context, root, dir string, planted []mutants.Mutant) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	ours := &copyOfCode{root: root, dir: dir}
	started := time.Now()
	all := together(planted)
	for _, c := range all {
		end, err := ours.run(ctx, c)
		if err != nil {
			return err
		}
		if !end.passed() {
			return fmt.Errorf("%s does not pass on our own code:\n%s", c.Name(), end.output)
		}
		fmt.Printf("passes on our own code: %s\n", c.Name())
	}
	fmt.Printf("all checks pass on our own code, in %s\n", time.Since(started).Round(time.Second))
	return nil
}

// together returns every row once, and for each package one check of all its tests.
func together(planted []mutants.Mutant) (all []mutants.Check) {
	tests := map[string][]string{}
	for _, m := range planted {
		for _, c := range m.Checks {
			name, _, _ := strings.Cut(c.Test, "/")
			switch {
			case c.Row != "" && !slices.Contains(all, mutants.Check{Row: c.Row}):
				all = append(all, mutants.Check{Row: c.Row})
			case c.Row == "" && !slices.Contains(tests[c.Package], name):
				tests[c.Package] = append(tests[c.Package], name)
			}
		}
	}
	for _, folder := range slices.Sorted(maps.Keys(tests)) {
		all = append(all, mutants.Check{Package: folder, Test: "(" + strings.Join(tests[folder], "|") + ")"})
	}
	return all
}

// verdict is the result of one check of a mutant.
type verdict struct {
	check mutants.Check
	took  time.Duration
	err   error // why it does not count as caught
}

// plantAll plants the mutants, atOnce at a time, and returns a channel for the verdicts of each, in order.
func plantAll(ctx context.Context, root, dir string, planted []mutants.Mutant, atOnce int) []chan []verdict {
	all := make([]chan []verdict, len(planted))
	for i := range all {
		all[i] = make(chan []verdict, 1)
	}
	var next atomic.Int64
	for range atOnce {
		go func() {
			for i := int(next.Add(1)) - 1; i < len(planted); i = int(next.Add(1)) - 1 {
				folder := filepath.Join(dir, fmt.Sprint(i))
				all[i] <- plant(ctx, root, folder, planted[i])
				_ = os.RemoveAll(folder) // a program is 40 MB
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
