package main

import (
	"context"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v3"
	"go.yaml.in/yaml/v3"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/internal/programtest"
)

const shipped = "../../deploy"

var outboxSetting = regexp.MustCompile(`\bOUTBOX_[A-Z_]+\b`)

// Every setting that the chart, the compose file and the unit name is one of ours.
func TestShippedFilesNameSettingsThatExist(t *testing.T) {
	t.Parallel()
	known := []string{}
	for _, s := range allSettings {
		known = append(known, s.envs...)
	}
	found := map[string]int{}
	err := filepath.WalkDir(shipped, func(at string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if !slices.Contains([]string{".yaml", ".tpl", ".service", ".env"}, filepath.Ext(at)) {
			return nil
		}
		text, err := os.ReadFile(at)
		for _, name := range outboxSetting.FindAllString(string(text), -1) {
			found[filepath.Base(at)]++
			if !slices.Contains(known, name) {
				t.Errorf("%s names %s, which is no setting", at, name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"compose.yaml", "deployments.yaml", "posthaste.service", "posthaste.env"} {
		if found[file] == 0 {
			t.Errorf("%s names no setting: this looks at the wrong place", file)
		}
	}
}

// longestStop is the longest that a stop takes by default: the grace period, and 10 s to store outcomes.
const longestStop = app.DefaultGracePeriod + 10*time.Second

// The processes of the compose file run commands that exist, with settings that are accepted, and are killed only after
// the longest stop. A test in deploy/release/compose loads the file as compose does, which knows every key.
func TestComposeFileRunsWhatExists(t *testing.T) {
	t.Parallel()
	var file struct {
		Services map[string]struct {
			Image           string
			Command         []string
			Environment     map[string]string
			ReadOnly        bool          `yaml:"read_only"`
			StopGracePeriod time.Duration `yaml:"stop_grace_period"`
			Healthcheck     struct{ Test []string }
		}
	}
	text, err := os.ReadFile(filepath.Join(shipped, "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	filled := regexp.MustCompile(`\$\{[A-Z_]+:-([^}]*)\}`).ReplaceAllString(string(text), "$1")
	// In a URL this password would need escapes.
	filled = regexp.MustCompile(`\$\{[A-Z_]+:\?[^}]*\}`).ReplaceAllString(filled, "p@ss/w:rd#?%")
	if err := yaml.Unmarshal([]byte(filled), &file); err != nil {
		t.Fatal(err)
	}
	for name, command := range map[string]string{"migrate": "migrate up", "posthaste": "serve"} {
		s := file.Services[name]
		if got := strings.Join(s.Command, " "); got != command {
			t.Errorf("%s runs %q, want %q", name, got, command)
		}
		if !s.ReadOnly {
			t.Errorf("%s may write to its files", name)
		}
		accepts(t, name, command, s.Environment)
	}
	// A setting of the sign-in that the file leaves out cannot be set: without the tenant's claim, everybody who signs
	// in is of the root tenant.
	for _, s := range allSettings {
		if _, passed := file.Services["posthaste"].Environment[s.envs[0]]; !passed && strings.Contains(s.envs[0], "OIDC_") {
			t.Errorf("posthaste is not given %s", s.envs[0])
		}
	}
	if test := file.Services["postgres"].Healthcheck.Test; !slices.Contains(test, "-h") {
		t.Errorf("Postgres is healthy by %q: by its Unix socket, which answers before it listens on its port", test)
	}
	if got := file.Services["posthaste"].StopGracePeriod; got <= longestStop {
		t.Errorf("it is killed after %s, and a stop takes up to %s", got, longestStop)
	}
}

// Each docker run of the manual is taken by the serve that it starts, whose settings are variables only.
func TestDockerRunsOfTheManualAreTaken(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operate/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	started := 0
	for line := range strings.Lines(strings.ReplaceAll(string(page), "\\\n", " ")) {
		if !strings.HasPrefix(line, "docker run ") {
			continue
		}
		started++
		given := env{"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none"}
		for _, m := range regexp.MustCompile(`-e (OUTBOX_[A-Z_]+)=(\S+)`).FindAllStringSubmatch(line, -1) {
			given[m[1]] = m[2]
		}
		p := &program{getenv: func(name string) string { return given[name] }}
		command := &cli.Command{Flags: flags(), Action: func(_ context.Context, c *cli.Command) error {
			s, err := p.load(c)
			if err != nil {
				return err
			}
			return s.withRoles().checkDuties()
		}}
		if err := command.Run(t.Context(), []string{"posthaste"}); err != nil {
			t.Errorf("%s: %v", strings.TrimSpace(line), err)
		}
	}
	if started == 0 {
		t.Error("there is no docker run: this looks at the wrong place")
	}
}

func TestUnitRunsWhatExists(t *testing.T) {
	t.Parallel()
	unit := lines(t, "posthaste.service")
	command, ok := strings.CutPrefix(unit["ExecStart"], "/usr/bin/posthaste ")
	if !ok {
		t.Fatalf("it starts %q", unit["ExecStart"])
	}
	settings := map[string]string{}
	for name, value := range lines(t, "posthaste.env") {
		settings[strings.TrimPrefix(name, "#")] = value
	}
	if len(settings) < 3 || settings["OUTBOX_DATABASE_URL"] == "" {
		t.Fatalf("its settings are %v", settings)
	}
	accepts(t, "the unit", command, settings)
	if d, err := time.ParseDuration(unit["TimeoutStopSec"]); err != nil || d <= longestStop {
		t.Errorf("it is killed after %s (%v), and a stop takes up to %s", d, err, longestStop)
	}
}

// systemd reads the unit without complaint, and rates it as hardly exposed.
func TestSystemdTakesTheUnit(t *testing.T) {
	t.Parallel()
	analyze := programtest.Find(t, "systemd", "systemd-analyze")
	text, err := os.ReadFile(filepath.Join(shipped, "systemd/posthaste.service"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "posthaste.service")
	// verify wants a program that is there.
	installed := strings.ReplaceAll(string(text), "/usr/bin/posthaste ", "/bin/true ")
	if err := os.WriteFile(file, []byte(installed), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"verify"}, {"security", "--offline=true", "--threshold=20"}} {
		out, err := exec.Command(analyze, append(args, file)...).CombinedOutput()
		if err != nil || args[0] == "verify" && len(out) > 0 {
			t.Errorf("systemd-analyze %s: %v\n%s", args[0], err, out)
		}
	}
}

// accepts checks that there is such a command, and that these settings are acceptable.
func accepts(t *testing.T, who, command string, settings map[string]string) {
	t.Helper()
	getenv := func(name string) string { return settings[name] }
	for _, args := range []string{command + " --help", "config"} {
		var said strings.Builder
		if code := run(context.Background(), append([]string{"posthaste"}, strings.Fields(args)...), getenv, strings.NewReader(""), io.Discard, &said); code != exitOK {
			t.Errorf("%s: posthaste %s ends with %d: %s", who, args, code, said.String())
		}
	}
}

// lines returns the NAME=VALUE lines of a file of systemd.
func lines(t *testing.T, name string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(shipped, "systemd", name))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			all[name] = value
		}
	}
	return all
}
