package promtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/freeport"
)

// Server is a Prometheus for one test.
type Server struct{ url string }

// Start starts one that scrapes the targets, HOST:PORT, and evaluates a file of rules, each twice a second.
func Start(t testing.TB, rules string, targets ...string) *Server {
	t.Helper()
	program := Find(t, "prometheus")
	rules, err := filepath.Abs(rules)
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{ // JSON is YAML
		"global": map[string]any{
			"scrape_interval": "500ms", "scrape_timeout": "500ms",
			"evaluation_interval": "500ms",
		},
		"rule_files": []string{rules},
		"scrape_configs": []any{
			map[string]any{"job_name": "posthaste", "static_configs": []any{map[string]any{"targets": targets}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	file := filepath.Join(folder, "prometheus.yml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	addr := freeAddr(t)
	var logs bytes.Buffer
	ctx, kill := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "--config.file="+file, "--storage.tsdb.path="+
		filepath.Join(folder, "data"),
		"--web.listen-address="+addr, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &logs, &logs
	if err := cmd.Start(); err != nil {
		kill()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		kill()
		if _ = cmd.Wait(); t.Failed() { // it was killed
			t.Logf("prometheus:\n%s", &logs)
		}
	})
	return &Server{url: "http://" + addr}
}

// freeAddr returns an address at which nothing listens now.
func freeAddr(t testing.TB) string {
	t.Helper()
	port, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// Query returns the numbers that an expression has now, of each series one. It fails also while Prometheus starts.
func (s *Server) Query(ctx context.Context, expr string) ([]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/api/v1/query?query="+url.QueryEscape(expr), nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	var answer struct {
		Error string
		Data  struct {
			ResultType string
			Result     []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("%s: %w", res.Status, err)
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	var values []float64
	for _, series := range answer.Data.Result {
		text, _ := series.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("a value of %s: %w", expr, err)
		}
		if !math.IsNaN(value) {
			values = append(values, value)
		}
	}
	return values, nil
}
