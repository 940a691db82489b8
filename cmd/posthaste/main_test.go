package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// asCommand makes the test binary be the command: tests that need a process of
// their own start it with this variable set.
const asCommand = "POSTHASTE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	time.Local = time.FixedZone("elsewhere", 5*3600+1800) // so that a zone of this machine in an answer is seen
	pgtest.Main(m)
}

// ran is what a command left behind.
type ran struct {
	code        int
	out, errOut string
}

type env map[string]string

// posthaste runs a command line in this process.
func posthaste(t *testing.T, env env, stdin string, args ...string) ran {
	t.Helper()
	return posthasteUntil(t.Context(), env, stdin, args...)
}

func posthasteUntil(ctx context.Context, env env, stdin string, args ...string) ran {
	var out, errOut bytes.Buffer
	code := run(ctx, append([]string{"posthaste"}, args...), func(name string) string { return env[name] },
		strings.NewReader(stdin), &out, &errOut)
	return ran{code, out.String(), errOut.String()}
}

// ok returns the output of a command that must succeed.
func ok(t *testing.T, env env, args ...string) string {
	t.Helper()
	r := posthaste(t, env, "", args...)
	if r.code != exitOK {
		t.Fatalf("posthaste %s: exit status %d, want 0\n%s%s", strings.Join(args, " "), r.code, r.out, r.errOut)
	}
	return r.out
}

func TestEveryCommandHasHelp(t *testing.T) {
	helps := func(args []string) {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			if out := ok(t, nil, append(args, "--help")...); !strings.Contains(out, "USAGE:") {
				t.Errorf("got %q, want help", out)
			}
		})
	}
	helps(nil)
	n := 0
	var visit func(args []string, c *cli.Command)
	visit = func(args []string, c *cli.Command) {
		for _, sub := range c.Commands {
			if n++; sub.Usage == "" || sub.Hidden {
				t.Errorf("%v %s does not say what it is for, or is hidden", args, sub.Name)
			}
			args := append(slices.Clone(args), sub.Name)
			helps(args)
			visit(args, sub)
		}
	}
	visit(nil, (&program{getenv: func(string) string { return "" }, stdout: &checked{Writer: io.Discard}, stderr: io.Discard}).root())
	if n < 45 {
		t.Errorf("%d commands: this looks at the wrong place", n)
	}
	if out := ok(t, nil); !strings.Contains(out, "USAGE:") {
		t.Errorf("without arguments: got %q, want help", out)
	}
}

func TestMistakesAreExitStatus2(t *testing.T) {
	for line, want := range map[string]string{
		"fly":                          `no command "fly"`,
		"migrate":                      "want one of up, down, status, sql",
		"migrate sideways":             `no command "sideways"`,
		"serve":                        "set DATABASE_URL",
		"serve now":                    "posthaste serve takes no arguments",
		"serve --colour":               "colour",
		"migrate up":                   "set DATABASE_URL",
		"enqueue":                      "usage: posthaste enqueue KIND",
		"enqueue a b c":                "usage: posthaste enqueue KIND",
		"enqueue a --priority x":       "priority",
		"enqueue a --delay soon":       "--delay",
		"enqueue a --run-at tomorrow":  "--run-at",
		"enqueue a --header x":         "--header",
		"enqueue a --tenant x":         "--tenant",
		"jobs list --status odd":       `--status: status "odd" is unknown`,
		"jobs list --limit 0":          "--limit is 0",
		"jobs show":                    "usage: posthaste jobs show ID",
		"jobs show 1":                  "36 characters",
		"jobs logs":                    "usage: posthaste jobs logs ID",
		"jobs retry":                   "no jobs selected",
		"jobs cancel":                  "no jobs selected",
		"jobs cancel --yes":            "no jobs selected",
		"jobs release --dry-run":       "no jobs selected",
		"jobs cancel --kind= -y":       "--kind is empty",
		"jobs cancel --queue a --key=": "--key is empty",
		"jobs cancel --kind a 1":       "not both",
		"jobs cancel 1":                "36 characters",
		"jobs cancel --status dead":    "nothing to cancel",
		"jobs cancel --fingerprint a":  "fingerprint",
		"jobs release --status x":      `"x" is unknown`,
		"jobs retry --created-since x": "--created-since",
		"jobs tail x":                  "posthaste jobs tail takes no arguments",
		"jobs tail --status odd":       `--status: status "odd" is unknown`,
		"jobs tail --interval 1ms":     "--interval is 1ms",
		"stats x":                      "posthaste stats takes no arguments",
		"top --frames 0":               "--frames is 0",
		"top --interval 1ms":           "--interval is 1ms",
		"dlq list --status pending":    "want failed or dead",
		"dlq list --limit 0":           "--limit is 0",
		"dlq list --failed-since soon": "--failed-since",
		"dlq list --tenant 1":          "--tenant",
		"dlq groups x":                 "posthaste dlq groups takes no arguments",
		"dlq replay":                   "no jobs selected",
		"dlq dismiss":                  "no jobs selected",
		"dlq replay --all --kind a":    "no jobs selected",
		"dlq replay --all 1":           "not two of them",
		"dlq dismiss --kind=":          "--kind is empty",
		"dlq replay 1":                 "36 characters",
		"dlq replay --all --rate -1":   `--rate is "-1"`,
		"dlq replay --all --payload x": "--payload is for one job",
		"audit --job 1":                "--job",
		"audit --before -1":            `--before is "-1"`,
		"audit verify x":               "posthaste audit verify takes no arguments",
		"audit verify --from 7":        "want a number, a colon and 64 hex digits",
		"queues pause":                 "usage: posthaste queues pause QUEUE",
		"tokens create":                "usage: posthaste tokens create NAME",
		"tokens create a":              "--capability",
		"tokens create a -c all":       `"all" is unknown`,
		"tokens create a --lifetime x": "--lifetime",
		"tokens create a --tenant x":   "--tenant",
		"tokens revoke":                "usage: posthaste tokens revoke ID",
		"tokens revoke ph_x":           "the id of a token",
		"bench nothing":                "nothing",
		"config --output xml":          "table, json, csv",
		"healthcheck --admin-addr off": "off",

		// As of a variable that is not set: it must not mean the root tenant.
		"enqueue a --tenant=":                    "--tenant is empty",
		"schedules run a --tenant=":              "--tenant is empty",
		"schedules delete a --tenant=":           "--tenant is empty",
		"keys show a --tenant=":                  "--tenant is empty",
		"keys unblock a --tenant=":               "--tenant is empty",
		"tokens create a -c jobs.read --tenant=": "--tenant is empty",

		"enqueue a --tenant 00000000-0000-0000-0000-000000000000": "no tenant's id",

		// The zero id means any to those who get it.
		"audit --tenant 00000000-0000-0000-0000-000000000000":           "no tenant's id",
		"audit --job 00000000-0000-0000-0000-000000000000":              "--job: 00000000-0000-0000-0000-000000000000 is no id",
		"jobs list --parent 00000000-0000-0000-0000-000000000000":       "--parent: 00000000-0000-0000-0000-000000000000 is no id",
		"jobs list --before 00000000-0000-0000-0000-000000000000":       "--before",
		"dlq list --before 00000000-0000-0000-0000-000000000000":        "--before",
		"operations list --before 00000000-0000-0000-0000-000000000000": "--before",
		"publish a {} --id 00000000-0000-0000-0000-000000000000":        "--id",
	} {
		t.Run(line, func(t *testing.T) {
			r := posthaste(t, nil, "", strings.Fields(line)...)
			if r.code != exitUsage || !strings.Contains(r.errOut, want) {
				t.Errorf("got exit status %d and %q, want 2 and %q", r.code, r.errOut, want)
			}
		})
	}
}

func TestVersionNamesTheToolchain(t *testing.T) {
	if out := ok(t, nil, "version"); !strings.HasPrefix(out, "posthaste ") || !strings.Contains(out, "go1.") {
		t.Errorf("got %q", out)
	}
}

func TestCompletions(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "pwsh"} {
		if out := ok(t, nil, "completion", shell); !strings.Contains(strings.ToLower(out), "complet") {
			t.Errorf("%s: got %q", shell, out)
		}
	}
	// What the scripts ask.
	if out := ok(t, nil, "jobs", "--generate-shell-completion"); !strings.Contains(out, "tail") || !strings.Contains(out, "cancel") {
		t.Errorf("got %q, want the commands of jobs", out)
	}
}
