package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/promtest"
)

// notOfTheDemo matches the metrics of what the demo does not have: sinks, bridges, limits, and requests to the API.
// TestLiveBoardsHaveNoEmptyPanel of cmd/posthaste produces those.
var notOfTheDemo = regexp.MustCompile(`outbox_(relay|bridge|api|queue_limit)\b|outbox_(relay|bridge|api)_|posthaste:(api|relay)_`)

// Prometheus scrapes the demo (posthaste dev, and the shop with its workers), and every panel of what the demo does has
// an answer.
func TestLiveDemoLeavesNoPanelEmpty(t *testing.T) {
	t.Parallel()
	promtest.Find(t, "prometheus")
	folder, err := os.MkdirTemp("", "demo") // a short name: it has a socket. Postgres may run as another account
	if err == nil {
		err = os.Chmod(folder, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	built(t, folder)
	dev := started(t, nil, filepath.Join(folder, "posthaste"), "dev", "--data", filepath.Join(folder, "pg"), "--port", "0",
		"--admin-addr", "127.0.0.1:0", "--api-addr", "127.0.0.1:0")
	url := dev.prints(`export DATABASE_URL='(.*)'`)[0]
	admin := dev.prints(`"msg":"admin server listens".*"addr":"([^"]*)"`)[0]
	dev.prints(`"msg":"(database and schema are there)"`)
	database := []string{"DATABASE_URL=" + url}
	started(t, database, filepath.Join(folder, "posthaste"), "enqueue", "greet", "{}") // without a handler
	shop := started(t, database, filepath.Join(folder, "shop"), "demo", "--stay", "--orders", "200",
		"--for", "8s", "--lease-ttl", "2s")
	shop.prints(`(The shop stays open)`)
	targets := append(shop.prints(`worker \w+ +http://([^/]*)/readyz`), admin)
	prometheus := promtest.Start(t, "../prometheus/posthaste.rules.yml", targets...)

	empty := map[string]string{} // queries, and their panels
	for _, b := range boards() {
		for _, p := range b.Panels {
			for _, target := range p.Targets {
				query := strings.NewReplacer("$__rate_interval", "15s", "$queue", ".+", "$kind", ".+", "$sink", ".+").Replace(target.Expr)
				if !notOfTheDemo.MatchString(query) {
					empty[query] = b.Title + ", " + p.Title
				}
			}
		}
	}
	n := len(empty)
	if n < 55 {
		t.Errorf("%d queries: too few", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for ; len(empty) > 0 && ctx.Err() == nil; time.Sleep(500 * time.Millisecond) {
		for query := range empty {
			if values, err := prometheus.Query(ctx, query); err == nil && len(values) > 0 {
				delete(empty, query)
			}
		}
	}
	t.Logf("%d of %d queries have answers", n-len(empty), n)
	for query, panel := range empty {
		t.Errorf("%s has no answer: %s", panel, query)
	}
}

// built builds the programs of the demo.
func built(t *testing.T, folder string) {
	t.Helper()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", folder+"/", "../../cmd/posthaste", "../../examples/shop")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// program is one that runs until the test ends.
type program struct {
	t    *testing.T
	name string
	mu   sync.Mutex
	said bytes.Buffer
}

func (p *program) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.Write(text)
}

// started starts a program. The end of the test interrupts it and waits for its end.
func started(t *testing.T, env []string, name string, args ...string) *program {
	t.Helper()
	p := &program{t: t, name: filepath.Base(name)}
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), p, p
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Logf("%s: %v\n%s", p.name, err, &p.said)
		}
	})
	return p
}

// prints waits until a line has the pattern, and returns what its group matched in each line.
func (p *program) prints(pattern string) (all []string) {
	p.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		p.mu.Lock()
		found := regexp.MustCompile(pattern).FindAllStringSubmatch(p.said.String(), -1)
		p.mu.Unlock()
		for _, m := range found {
			all = append(all, m[1])
		}
		if len(all) > 0 {
			return all
		}
	}
	p.t.Fatalf("%s does not print %s", p.name, pattern)
	return nil
}
