// Command generated writes internal/generated/sums, which has a hash of each file that make generate reads or writes.
// With -check it names the files that have changed since. So make check finds generated code that is not of its sources
// in a moment, where to compile the generators and to generate again takes minutes.
package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const sumsFile = "internal/generated/sums"

// These match what make generate reads and what it writes.
var (
	inputs = []string{
		"sqlc.yaml", "tools/sqlc.mod", "tools/templ.mod", "internal/jobcolumns/*.go",
		"queries/*.sql", "migrations/*.sql", "migrations/functions/*.sql", "console/*.templ",
	}
	outputs = []string{"internal/sqlgen/*.go", "console/*_templ.go"}
)

// allInputs is the name under which the hash of all inputs stands. Two branches that change different inputs conflict
// in it, as they must: what each has generated is not of the other's.
const allInputs = "all inputs"

func main() {
	check := flag.Bool("check", false, "only report which files have changed since make generate")
	flag.Parse()
	if err := run(".", *check); err != nil {
		fmt.Fprintln(os.Stderr, "generated:", err)
		os.Exit(1)
	}
}

func run(root string, check bool) error {
	now, err := sum(root)
	if err != nil {
		return err
	}
	file := filepath.Join(root, sumsFile)
	if !check {
		var text strings.Builder
		for _, name := range slices.Sorted(maps.Keys(now)) {
			fmt.Fprintf(&text, "%s  %s\n", now[name], name)
		}
		return os.WriteFile(file, []byte(text.String()), 0o666)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if changed := changes(parse(string(text)), now); len(changed) > 0 {
		return fmt.Errorf("%s changed since generated code was made: run make generate, and commit what it writes",
			strings.Join(changed, ", "))
	}
	return nil
}

// sum returns the hash of each file, and that of all inputs.
func sum(root string) (map[string]string, error) {
	sums, err := sumOf(root, inputs)
	if err != nil {
		return nil, err
	}
	all := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		fmt.Fprintf(all, "%s %s\n", sums[name], name)
	}
	written, err := sumOf(root, outputs)
	if err != nil {
		return nil, err
	}
	maps.Copy(sums, written)
	sums[allInputs] = fmt.Sprintf("%x", all.Sum(nil))
	return sums, nil
}

// sumOf returns the hash of each file that matches one of the patterns.
func sumOf(root string, patterns []string) (map[string]string, error) {
	sums := map[string]string{}
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("no file matches %s", pattern)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			name, err := filepath.Rel(root, file)
			if err != nil {
				return nil, err
			}
			sums[filepath.ToSlash(name)] = fmt.Sprintf("%x", sha256.Sum256(text))
		}
	}
	return sums, nil
}

// parse returns the hashes that run has written.
func parse(text string) map[string]string {
	sums := map[string]string{}
	for line := range strings.Lines(text) {
		if hash, name, ok := strings.Cut(strings.TrimSpace(line), "  "); ok {
			sums[name] = hash
		}
	}
	return sums
}

// changes returns the files that are not as they were, those that are new, and those that are gone.
func changes(before, now map[string]string) []string {
	var changed []string
	for name, hash := range now {
		if before[name] != hash {
			changed = append(changed, name)
		}
	}
	for name := range before {
		if _, is := now[name]; !is {
			changed = append(changed, name)
		}
	}
	return slices.Sorted(slices.Values(changed))
}
