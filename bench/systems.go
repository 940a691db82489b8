package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Kinds of settings that a measurement asks for.
const (
	defaults   = "defaults"
	throughput = "throughput"
	lowLatency = "latency"
	recovery   = "recovery"
	commits    = "commits"
	bulk       = "bulk"
	oneClient  = "one client"
	relaying   = "relaying"
)

// system is a program that measures one system.
type system struct {
	name    string
	version string
	command []string // takes flags, then the workload
	// settings are, for each profile, the candidates of flags. Trials before the first round choose the best of
	// several. A profile without candidates has no flags.
	settings map[string][][]string
	worker   []string // takes a database and a ledger; for a system whose program cannot measure idle
}

// prepare builds or fetches every system that can run here, and reports which cannot.
func prepare(ctx context.Context, programs string) ([]*system, error) {
	for _, dir := range []string{"../cmd/posthaste", "./river", "./watermill", "./floor"} {
		build := exec.CommandContext(ctx, "go", "build", "-o", programs+string(filepath.Separator), dir)
		if strings.HasPrefix(dir, "..") { // a program of the main module, which has its own go.mod
			build.Dir, build.Args[len(build.Args)-1] = "..", "./cmd/posthaste"
		}
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return nil, fmt.Errorf("%s: %w", build, err)
		}
	}
	program := func(name string) string { return filepath.Join(programs, name) }
	systems := []*system{
		{
			name: ours, version: ourVersion(ctx), command: []string{program("posthaste"), "bench", "-o", "json"},
			settings: ourSettings,
		},
		{
			name: river, version: moduleVersion(ctx, "github.com/riverqueue/river"), command: []string{program("river")},
			settings: riverSettings,
		},
		{
			name: watermillSQL, version: moduleVersion(ctx, "github.com/ThreeDotsLabs/watermill-sql/v4"),
			command: []string{program("watermill")}, settings: watermillSettings,
		},
		{name: floor, command: []string{program("floor")}, settings: floorSettings},
	}
	peer, err := prepareGraphile(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "graphile-worker is left out:", err)
		return systems, nil
	}
	return append(systems, peer), nil
}

// ourSettings spells out the default mode: without it the workload compares the modes.
var ourSettings = map[string][][]string{
	commits: {{"--notify", "coalesced"}}, bulk: clients(1, 2, 4),
	oneClient: clients(1),
}

var watermillSettings = map[string][][]string{relaying: {{"--gc", "100"}, {"--gc", "250"}}}

var floorSettings = map[string][][]string{
	throughput: {{"--alike=false"}, {"--alike=true"}}, bulk: clients(1, 2, 4),
	oneClient: clients(1),
}

// clients returns settings of producers, one for each number of clients.
func clients(numbers ...int) (settings [][]string) {
	for _, n := range numbers {
		settings = append(settings, []string{"--clients", strconv.Itoa(n)})
	}
	return settings
}

func with(settings [][]string, flags ...string) [][]string {
	for i := range settings {
		settings[i] = append(slices.Clone(flags), settings[i]...)
	}
	return settings
}

var riverSettings = map[string][][]string{
	throughput: {
		{"--cooldown", "1ms", "--poll", "50ms", "--gc", "250", "--workers", "500"},
		{"--cooldown", "1ms", "--poll", "50ms", "--gc", "250", "--workers", "1000"},
		{"--cooldown", "1ms", "--poll", "50ms", "--gc", "250", "--workers", "2000"},
		{"--cooldown", "1ms", "--poll", "50ms", "--gc", "250", "--workers", "5000"},
		{"--cooldown", "1ms", "--poll", "50ms", "--gc", "100", "--workers", "2000"},
	},
	lowLatency: {
		{"--cooldown", "1ms", "--poll", "50ms"},
		{"--cooldown", "1ms", "--poll", "1ms"},
		{"--cooldown", "1ms", "--poll", "1s"},
	},
	recovery:  {{"--cooldown", "1ms", "--poll", "50ms", "--rescue", "15s"}},
	bulk:      append(clients(1, 2, 4), with(clients(1, 2, 4), "--gc", "250")...),
	oneClient: with(clients(1), "--gc", "250"),
}

var graphileSettings = map[string][][]string{
	throughput: {
		{"--threads", "1", "--concurrency", "24", "--queue", "500", "--delay", "0"}, // as in its own benchmark
		{"--threads", "1", "--concurrency", "500", "--queue", "2000", "--delay", "0"},
		{"--threads", "2", "--concurrency", "24", "--queue", "500", "--delay", "0"},
		{"--threads", "2", "--concurrency", "100", "--queue", "1000", "--delay", "0"},
		{"--threads", "2", "--concurrency", "500", "--queue", "2000", "--delay", "0"},
		{"--threads", "2", "--concurrency", "500", "--queue", "2000", "--delay", "5"},
	},
	lowLatency: {
		{"--concurrency", "2"},
		{"--concurrency", "10"},
		{"--concurrency", "10", "--queue", "10"},
	},
	bulk:      clients(1, 2, 4),
	oneClient: clients(1),
}

// prepareGraphile installs what graphile/package-lock.json lists, including Node: graphile-worker needs a newer version
// than many machines have.
func prepareGraphile(ctx context.Context) (*system, error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "posthaste", "bench-graphile")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, name := range []string{"package.json", "package-lock.json", "worker.mjs"} {
		content, err := os.ReadFile(filepath.Join("graphile", name))
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return nil, err
		}
	}
	install := exec.CommandContext(ctx, npm, "ci", "--no-audit", "--no-fund", "--loglevel", "error")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("npm ci: %w: %s", err, bytes.TrimSpace(out))
	}
	node := filepath.Join(dir, "node_modules", ".bin", "node")
	version, err := exec.CommandContext(ctx, node, "--version").Output()
	if err != nil {
		return nil, err
	}
	var pkg struct {
		Dependencies map[string]string `json:"dependencies"`
	}
	content, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err == nil {
		err = json.Unmarshal(content, &pkg)
	}
	script := filepath.Join(dir, "worker.mjs")
	return &system{
		name:     graphile,
		version:  fmt.Sprintf("%s, Node %s", pkg.Dependencies["graphile-worker"], bytes.TrimSpace(version)),
		command:  []string{node, script},
		settings: graphileSettings,
		worker:   []string{node, script, "worker"},
	}, err
}

func ourVersion(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=10").Output()
	if err != nil {
		return "this tree"
	}
	return "commit " + string(bytes.TrimSpace(out))
}

func moduleVersion(ctx context.Context, module string) string {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", module).Output()
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(out))
}
