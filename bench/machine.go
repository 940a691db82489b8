package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// environment describes the machine, the server and the systems of a run.
type environment struct {
	Date       string            `json:"date"`
	Processor  string            `json:"processor"`
	Cores      int               `json:"cores"`
	Memory     string            `json:"memory"`
	Kernel     string            `json:"kernel"`
	Go         string            `json:"go"`
	PostgreSQL string            `json:"postgresql"`
	Settings   []string          `json:"settings"`
	Versions   map[string]string `json:"versions"`
}

func describe(ctx context.Context, url string, systems []*system) (*environment, error) {
	kernel, _ := exec.CommandContext(ctx, "uname", "-sr").Output()
	e := &environment{
		Date: time.Now().UTC().Format(time.DateOnly), Cores: runtime.NumCPU(),
		Processor: procField("/proc/cpuinfo", "model name"), Memory: memory(),
		Kernel: strings.TrimSpace(string(kernel)), Go: runtime.Version(), Versions: map[string]string{},
	}
	for _, s := range systems {
		e.Versions[s.name] = s.version
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := conn.QueryRow(ctx, `SELECT current_setting('server_version')`).Scan(&e.PostgreSQL); err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, `SELECT name || ' ' || current_setting(name) FROM pg_settings
		WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'wal_compression', 'shared_buffers',
			'max_wal_size', 'huge_pages', 'checkpoint_timeout', 'max_connections', 'autovacuum', 'jit') ORDER BY name`)
	if err != nil {
		return nil, err
	}
	e.Settings, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return e, err
}

func memory() string {
	var kib float64
	if _, err := fmt.Sscanf(procField("/proc/meminfo", "MemTotal"), "%g kB", &kib); err != nil {
		return "unknown"
	}
	text := fmt.Sprintf("%.1f GiB", kib/(1<<20))
	// The server uses huge pages for shared_buffers if there are some. Without them, each of its processes maps every
	// page of shared_buffers itself, at the cost of a page fault each.
	if pages := procField("/proc/meminfo", "HugePages_Total"); pages != "0" && pages != "unknown" {
		text += " (" + pages + " huge pages)"
	}
	return text
}

// procField returns the first value of a name in a file of /proc, or "unknown".
func procField(path, name string) string {
	content, _ := os.ReadFile(path)
	for line := range strings.Lines(string(content)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}
