package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.yaml.in/yaml/v3"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// blocks returns the blocks of a language that name this file as what runs them, by page and position.
func blocks(t *testing.T, language string) map[string]string {
	t.Helper()
	pages, err := filepath.Glob("../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		labelled := regexp.MustCompile("<!-- run by cmd/posthaste/blocks_test.go -->\n```" + language + "\n((?s:.*?))\n```\n")
		for _, m := range labelled.FindAllSubmatchIndex(text, -1) {
			line := strings.Count(string(text[:m[0]]), "\n") + 3
			found[fmt.Sprintf("%s:%d", strings.TrimPrefix(page, "../../"), line)] = string(text[m[2]:m[3]])
		}
	}
	return found
}

// The program takes every relay.yaml of the manual. Where a page shows a part, it gets what that refers to.
func TestRelayConfigsOfTheManualAreTaken(t *testing.T) {
	t.Parallel()
	shown := blocks(t, "yaml")
	for at, block := range shown {
		var given struct {
			Sinks  map[string]any
			Routes []struct{ To string }
		}
		if err := yaml.Unmarshal([]byte(block), &given); err != nil {
			t.Errorf("%s: %v", at, err)
		}
		sinks := "\nsinks:\n"
		for _, route := range given.Routes {
			sinks += "  " + route.To + ": {kafka: {brokers: [\"h:1\"]}}\n"
		}
		if len(given.Sinks) == 0 && len(given.Routes) > 0 {
			block += sinks
		}
		if _, err := parseRelayConfig(writeRelayConfig(t, block)); err != nil {
			t.Errorf("%s: %v", at, err)
		}
	}
	if len(shown) < 6 {
		t.Errorf("%d configurations: this looks at the wrong place", len(shown))
	}
}

// fails are commands of which status 1 is an answer: the server of tests is not durable, and there is no broker.
var fails = regexp.MustCompile(`^(problems|doctor|relay check)\b`)

// The commands of the manual run, block by block: against a process and a database with a job, a dead letter, a key, a
// sink and a token, whose names take the place of the words in capitals.
func TestCommandsOfTheManualRun(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	_, logs := servingWith(t, []string{"OUTBOX_PPROF=on"}, "--database-url", db.Config().ConnString(), "--role", "reap")
	admin := adminAddr(t, logs)
	awaitReadiness(t, admin, http.StatusOK)
	e := env{"DATABASE_URL": db.Config().ConnString(), "OUTBOX_ADMIN_ADDR": admin}
	words := things(t, db, e)
	n := 0
	for at, block := range blocks(t, "sh") {
		for line := range strings.SplitSeq(strings.ReplaceAll(block, "\\\n", " "), "\n") {
			n++
			args := shellWords(line)
			for i, word := range args {
				if args[i] = word; words[word] != "" {
					args[i] = words[word]
				}
				if word == "ID" && args[1] == "dlq" {
					args[i] = words["dead ID"]
				}
			}
			switch args[0] {
			case "posthaste":
				r := posthaste(t, e, "", args[1:]...)
				if r.code != exitOK && (r.code != exitFailed || !fails.MatchString(strings.Join(args[1:], " "))) {
					t.Errorf("%s: %s: exit status %d\n%s%s", at, strings.Join(args, " "), r.code, r.out, r.errOut)
				}
			case "psql":
				if _, err := db.Exec(t.Context(), args[len(args)-1]); err != nil {
					t.Errorf("%s: %s: %v", at, line, err)
				}
			case "curl":
				fetches(t, at, strings.Replace(args[len(args)-1], "127.0.0.1:9090", admin, 1))
			default:
				t.Errorf("%s: nothing here runs %s", at, line)
			}
		}
	}
	if n < 60 {
		t.Errorf("%d commands: this looks at the wrong place", n)
	}
}

// things makes what the commands of the manual are about, and returns its names by the words that stand for them.
func things(t *testing.T, db *pgxpool.Pool, e env) map[string]string {
	t.Helper()
	ok(t, e, "enqueue", "doomed")
	bury(t, db, "doomed")
	sqlExec(t, db, `INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	id := strings.TrimSpace(ok(t, e, "enqueue", "report.send", "--queue", "mail", "--key", "acme"))
	ok(t, e, "tokens", "create", "old", "-c", "jobs.read")
	var token, dead string
	if err := db.QueryRow(t.Context(), `SELECT (SELECT id FROM outbox.tokens), (SELECT id FROM outbox.jobs WHERE status = 'dead')`).Scan(&token, &dead); err != nil {
		t.Fatal(err)
	}
	head := regexp.MustCompile(`\d+:[0-9a-f]{64}`).FindString(ok(t, e, "audit", "verify"))
	config := writeRelayConfig(t, "sinks: {orders: {nats: {url: \"nats://127.0.0.1:1\"}}}\nroutes: [{topics: [\"*\"], to: orders}]\n")
	return map[string]string{
		"ID": id, "dead ID": dead, "QUEUE": "mail", "KIND": "report.send", "KEY": "acme", "FINGERPRINT": "f1", "SINK": "orders",
		"k3v9…": token, "1204:5f1c…": head, "relay.yaml": config,
	}
}

func fetches(t *testing.T, at, url string) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Errorf("%s: %v", at, err)
		return
	}
	defer func() { _ = res.Body.Close() }()
	if body, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
		t.Errorf("%s: %s: %s %s", at, url, res.Status, body)
	}
}

// shellWords returns the words of a line as a shell splits it, without a comment.
func shellWords(line string) (words []string) {
	for _, m := range regexp.MustCompile(`'([^']*)'|"([^"]*)"|(#.*)|([^\s'"]+)`).FindAllStringSubmatch(line, -1) {
		if m[3] == "" {
			words = append(words, m[1]+m[2]+m[4])
		}
	}
	return words
}
