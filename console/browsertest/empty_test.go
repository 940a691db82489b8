package browsertest

import (
	"context"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// Without any job no page has a table without rows, or nothing at all, and the commands that pages offer instead work.
func TestAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	f := c.crawl(c.signIn(c.root), c.root)
	tab := c.signedIn(c.root)
	offered := map[string]bool{}
	for _, page := range chosen(f.pages) {
		tab.visit(c.root + page)
		tables := ask[[]struct {
			Caption string
			Rows    int
		}](tab, `checks.tables()`)
		empties := ask[[]struct {
			Text     string
			Commands []string
		}](tab, `checks.empties()`)
		for _, table := range tables {
			if table.Rows == 0 {
				t.Errorf("/%s has the table %q without rows", page, table.Caption)
			}
		}
		if text := ask[string](tab, `checks.text()`); len(tables)+len(empties) == 0 && len(text) < 60 {
			t.Errorf("/%s says only %q", page, text)
		}
		for _, e := range empties {
			for _, command := range e.Commands {
				offered[command] = true
			}
		}
	}
	if len(offered) == 0 {
		t.Error("no page offers a command")
	}
	for command := range offered {
		if program, _, _ := strings.Cut(strings.TrimPrefix(command, "posthaste "), " "); program == "serve" || program == "dev" {
			continue // they go on until they are stopped
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+command)
		cmd.Env = append(child.Environment([]string{"OUTBOX_DATABASE_URL=" + c.db.Config().ConnString()}), "PATH="+filepath.Dir(posthaste)+":/usr/bin:/bin")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
		cancel()
	}
	if !offered[`posthaste enqueue greet '{"name":"Ada"}'`] {
		t.Errorf("nobody offers to enqueue a job: %q", slices.Collect(maps.Keys(offered)))
	}
}
