package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/outbox"
)

// None of these reaches a database.
func TestAMistakeNamesTheCommandAndTheFlag(t *testing.T) {
	t.Parallel()
	e := env{"DATABASE_URL": "postgres://nobody@127.0.0.1:1/x"}
	for line, want := range map[string]string{
		"enqueue greet --json":                       "posthaste enqueue has no flag --json",
		"jobs list --json":                           "posthaste jobs list has no flag --json: write -o json",
		"job list":                                   `has no command "job": did you mean jobs?`,
		"enqueue greet --max-attempts 0":             "--max-attempts is 0: want at least 1",
		"keys show":                                  "usage: posthaste keys show KEY [--queue QUEUE]",
		"enqueue greet -o json":                      "posthaste enqueue has no flag -o",
		"enqueue greet --queue":                      "--queue has no value",
		"enqueue greet --priority x":                 `--priority is "x": want a whole number`,
		"enqueue greet --hold=x":                     `--hold is "x": want true or false`,
		"enqueue greet --header a=1 --header a":      `--header is "a": want NAME=VALUE`,
		"enqueue greet --header a=1 --header a=2":    `--header has "a" twice`,
		"jobs tail --interval x":                     `--interval is "x": want a duration like`,
		"jobs list -o xml":                           `posthaste: --output is "xml": want one of`,
		"enqueue greet --delay soon":                 `--delay is "soon": want a duration of 0s to 36500d, like 500ms, 30s, 5m or 14d`,
		"tokens create x -c jobs.read --lifetime 1s": `--lifetime is "1s": want a duration of 1m to 3650d, like 5m or 14d, or forever`,
		"dev --port 99999":                           "--port is 99999: want 0 to 65535",
		"jobs list x":                                `posthaste jobs list takes no arguments, but there is "x"`,
		"jobs list --id-prefix zz":                   `--id-prefix is "zz"`,
		"jobs list --min-attempt -1":                 "--min-attempt is -1",
		"schedules change nightly":                   "want at least one of its flags",
		"migrate sql --after 9999":                   "--after is 9999: want 0 to",
		"docs --addr nowhere":                        `--addr is "nowhere": want HOST:PORT`,
		"help nothing":                               "nothing",
		"tokens --api x":                             notThroughAPI,
	} {
		if r := posthaste(t, e, "", strings.Fields(line)...); r.code != exitUsage || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: %+v, want exit status 2 and %q", line, r, want)
		}
	}
}

func TestAMistakeInAJobIsInTheWordsOfFlags(t *testing.T) {
	t.Parallel()
	_, err := outbox.Encode(outbox.Raw{KindName: "grün", Payload: []byte("{}")}, outbox.Options{Key: outbox.KeyRules{Ordered: true}})
	err = inFlagWords(err)
	if _, usage := errors.AsType[*usageError](err); !usage {
		t.Fatalf("it is %T, want a usage error", err)
	}
	for _, want := range []string{`KIND is "grün": byte 2 is "ü"`, "--key is empty, but --max-active, --ordered, --on-lapse and --max-queued are rules"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("it is %q, want %q in it", err, want)
		}
	}
}

func TestHelpComesAfterArgumentsToo(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"queues limit", "jobs show", "enqueue", "relay replays"} {
		command := strings.Fields(line)
		want := ok(t, env{}, append(command, "--help")...)
		if got := ok(t, env{}, append(command, "mail", "--help")...); got != want {
			t.Errorf("%s mail --help printed %s, want %s", line, got, want)
		}
	}
}

func TestAnErrorOfTheDatabaseHasAWayOn(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		pgsession.UndefinedTable: "posthaste migrate up", pgsession.InvalidSchema: "posthaste migrate up", undefinedColumn: "posthaste migrate up",
		undefinedFunction: "posthaste migrate up", pgsession.InsufficientPrivilege: "guides/tenants", pgsession.ReadOnly: "",
	} {
		if got := wayOn(&pgconn.PgError{Code: code}); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("of %s it says %q, want %q", code, got, want)
		}
	}
}

func TestAConnectionThatFailedHasOneCauseForEachAddress(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://ada@127.0.0.1:1/x":            "posthaste: cannot reach postgres as ada: 127.0.0.1:1: dial error: dial tcp 127.0.0.1:1: connect: connection refused\n",
		"host=/nowhere,127.0.0.1 port=1 user=ada": "posthaste: cannot reach postgres as ada: /nowhere/.s.PGSQL.1: dial error: dial unix /nowhere/.s.PGSQL.1: connect: no such file or directory; 127.0.0.1:1: dial error: dial tcp 127.0.0.1:1: connect: connection refused\n",
	} {
		if r := posthaste(t, env{"DATABASE_URL": url}, "", "stats"); r.code != exitFailed || !strings.HasSuffix(r.errOut, strings.TrimPrefix(want, "posthaste: ")) || strings.Count(r.errOut, "\n") != 1 {
			t.Errorf("%s: exit status %d, %q; want %q", url, r.code, r.errOut, want)
		}
	}
}
