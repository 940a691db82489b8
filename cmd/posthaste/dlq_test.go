package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// dead stores dead letters of a kind, an hour after one another, the last one an
// hour ago, and returns their ids, oldest first.
func dead(t *testing.T, pool *pgxpool.Pool, kind string, n int) (ids []string) {
	t.Helper()
	for i := range n {
		var id outbox.ID
		err := pool.QueryRow(t.Context(), `
			INSERT INTO outbox.jobs (id, kind, payload, status, epoch, attempt, failed_at, error_fingerprint, last_error_code, last_error_message)
			VALUES (outbox.uuid_v7(), $1, '{"n": 1}', 'dead', 2, 1, now() - make_interval(hours => $2), $1 || '-print', 'http_500', 'answer 500')
			RETURNING id`, kind, n-i).Scan(&id)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id.String())
		time.Sleep(2 * time.Millisecond) // ids of one millisecond are in no order
	}
	return ids
}

func rows(t *testing.T, e env, args ...string) (rows []map[string]any) {
	t.Helper()
	out := ok(t, e, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return rows
}

func TestDeadLettersAreListedAndGrouped(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	e := env{"DATABASE_URL": pool.Config().ConnString()}
	mails, bills := dead(t, pool, "mail", 3), dead(t, pool, "bill", 1)
	ok(t, e, "enqueue", "mail")

	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"all":     {nil, []string{bills[0], mails[2], mails[1], mails[0]}},
		"kind":    {[]string{"--kind", "bill"}, bills},
		"group":   {[]string{"--fingerprint", "mail-print", "--limit", "2"}, []string{mails[2], mails[1]}},
		"page":    {[]string{"--before", mails[1]}, []string{mails[0]}},
		"since":   {[]string{"--failed-since", "90m", "--kind", "mail"}, []string{mails[2]}},
		"until":   {[]string{"--failed-until", "150m"}, []string{mails[0]}},
		"nothing": {[]string{"--status", "failed"}, nil},
	} {
		var got []string
		for _, row := range rows(t, e, append([]string{"dlq", "list"}, c.args...)...) {
			got = append(got, row["id"].(string))
		}
		if strings.Join(got, " ") != strings.Join(c.want, " ") {
			t.Errorf("%s: listed %v, want %v", name, got, c.want)
		}
	}
	groups := rows(t, e, "dlq", "groups")
	if len(groups) != 2 || groups[0]["jobs"] != 3.0 || groups[0]["fingerprint"] != "mail-print" || groups[0]["message"] != "answer 500" || groups[0]["example"] != mails[2] {
		t.Errorf("groups = %v, want the three mails first", groups)
	}
	if out := ok(t, e, "dlq", "groups"); !strings.Contains(out, "mail-print") || strings.Contains(out, mails[2]) {
		t.Errorf("got %s, want a table without the last column", out)
	}
	if out := ok(t, e, "dlq", "show", mails[0]); !strings.Contains(out, `{"n": 1}`) {
		t.Errorf("got %s, want the payload", out)
	}
}

func TestDeadLettersAreReplayedAndDismissed(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	e := env{"DATABASE_URL": pool.Config().ConnString()}
	mails, bills := dead(t, pool, "mail", 3), dead(t, pool, "bill", 2)
	left := func() int { return len(rows(t, e, "dlq", "list")) }

	if out := ok(t, e, "dlq", "replay", "--kind", "mail", "--dry-run"); out != "would replay 3\n" || left() != 5 {
		t.Errorf("a dry run said %q and left %d of 5", out, left())
	}
	if out := ok(t, e, "dlq", "replay", "--kind", "mail", "--failed-until", "90m", "--rate", "1000", "--reason", "mended", "--yes"); out != "replay: 2 done, 0 passed over\n" || left() != 3 {
		t.Errorf("a replay of two said %q and left %d, want 3", out, left())
	}
	if out := ok(t, e, "dlq", "dismiss", "--yes", bills[0], bills[1]); out != bills[0]+"\n"+bills[1]+"\n" {
		t.Errorf("two dismissals said %q", out)
	}
	waiting := strings.TrimSpace(ok(t, e, "enqueue", "mail"))
	if r := posthaste(t, e, "", "dlq", "replay", waiting); r.code != exitFailed || !strings.Contains(r.errOut, "it is pending") {
		t.Errorf("got %+v of a job that is no dead letter, want exit status 1", r)
	}
	if out := ok(t, e, "dlq", "dismiss", "--all"); out != "dismiss: 1 done, 0 passed over\n" || left() != 0 {
		t.Errorf("the dismissal of all said %q and left %d", out, left())
	}

	acts := rows(t, e, "audit")
	if len(acts) != 5 || acts[0]["act"] != "job.dismiss" || acts[0]["job"] != mails[2] || !strings.Contains(acts[0]["actor"].(string), "@") {
		t.Fatalf("audit = %v, want 5 acts by user@host", acts)
	}
	replays := rows(t, e, "audit", "--act", "job.replay", "--since", "1h", "--limit", "10")
	if len(replays) != 2 || replays[0]["reason"] != "mended" || replays[0]["before"].(map[string]any)["status"] != "dead" {
		t.Errorf("replays = %v, want two with their reason", replays)
	}
	if one := rows(t, e, "audit", "--job", bills[1]); len(one) != 1 {
		t.Errorf("acts on %s = %v, want one", bills[1], one)
	}
	if older := rows(t, e, "audit", "--limit", "300", "--queue", "default", "--until", "1h"); len(older) != 0 {
		t.Errorf("acts of an hour ago = %v, want none", older)
	}
}

// What a command would not do is refused, and nothing done.
func TestFlagsThatWouldBeIgnoredAreRefused(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	ids := dead(t, db, "mail", 2)
	schemas := t.TempDir()
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		for line, want := range map[string]string{
			"replay --rate 1 --yes " + strings.Join(ids, " "):      "--rate and --detach are for filters",
			"replay --detach --yes " + strings.Join(ids, " "):      "--rate and --detach are for filters",
			"dismiss --detach --yes " + strings.Join(ids, " "):     "--rate and --detach are for filters",
			"replay --dry-run --detach " + ids[0]:                  "--rate and --detach are for filters",
			"replay --payload {} --rate 1 " + ids[0]:               "--rate and --detach are for filters",
			"replay --payload {} --detach " + ids[0]:               "--rate and --detach are for filters",
			"replay --payload {} --kind mail --detach":             "--payload is for one job",
			"replay --yes --forget " + ids[0]:                      "--forget is for --payload",
			"replay --yes --api-schemas " + schemas + " " + ids[0]: "--api-schemas is for --payload",
			"replay --all --yes --api-schemas " + schemas:          "--api-schemas is for --payload",
		} {
			if r := posthaste(t, way, "", append([]string{"dlq"}, strings.Fields(line)...)...); r.code != exitUsage || r.out != "" || !strings.Contains(r.errOut, want) {
				t.Errorf("%s, %s: %+v, want exit status 2 and %q", name, line, r, want)
			}
		}
	}
	if r := posthaste(t, through, "", "dlq", "replay", ids[0], "--payload", "{}", "--api-schemas", schemas); r.code != exitUsage || !strings.Contains(r.errOut, "by its own schemas") {
		t.Errorf("a folder for the API: %+v, want exit status 2", r)
	}
	if left := rows(t, direct, "dlq", "list"); len(left) != 2 {
		t.Errorf("%d dead letters are left, want 2", len(left))
	}
}

func TestAPayloadIsEditedFromAFile(t *testing.T) {
	t.Parallel()
	pool, e, through := ways(t)
	ids := dead(t, pool, "mail", 3)
	file := filepath.Join(t.TempDir(), "payload.json")
	if err := os.WriteFile(file, []byte(`{"n": 2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ok(t, e, "dlq", "replay", ids[0], "--payload", "@"+file, "--forget")
	if r := posthaste(t, through, `{"n": 3}`, "dlq", "replay", ids[1], "--payload", "-", "--forget"); r.code != exitOK {
		t.Fatalf("from standard input: %+v", r)
	}
	for _, id := range ids[:2] {
		if acts := ok(t, e, "audit", "--job", id, "--output", "json"); !strings.Contains(acts, "forgotten_steps") {
			t.Errorf("the audit of %s is %s; want it to have forgotten", id, acts)
		}
	}
	for i, want := range []string{`{"n": 2}`, `{"n": 3}`, `{"n": 1}`} {
		if out := ok(t, e, "jobs", "show", ids[i]); !strings.Contains(out, want) {
			t.Errorf("job %d is\n%s\nwant the payload %s", i, out, want)
		}
	}
	schemas := t.TempDir()
	if err := os.WriteFile(filepath.Join(schemas, "mail.schema.json"), []byte(`{"type": "object", "properties": {"n": {"type": "integer"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	strict := env{"DATABASE_URL": e["DATABASE_URL"], "OUTBOX_API_SCHEMAS": schemas}
	if r := posthaste(t, strict, "", "dlq", "replay", ids[2], "--payload", `{"n": "4"}`); r.code != exitUsage || !strings.Contains(r.errOut, "PAYLOAD/n") {
		t.Errorf("got %+v of a payload that is not the kind's, want exit status 2", r)
	}
	if r := posthaste(t, e, "", "dlq", "replay", ids[2], "--payload", `{"n`); r.code != exitUsage || !strings.Contains(r.errOut, "--payload is not JSON") {
		t.Errorf("a payload that is no JSON: %+v", r)
	}
	if r := posthaste(t, e, "", "dlq", "replay", ids[2], "--payload", `{"n": "4"}`, "--api-schemas", schemas); r.code != exitUsage {
		t.Errorf("got %+v with the folder as a flag, want exit status 2", r)
	}
	if r := posthaste(t, e, "", "dlq", "replay", ids[2], "--payload", "{"); r.code != exitUsage || !strings.Contains(r.errOut, "is not JSON") {
		t.Errorf("got %+v of a payload that is no JSON, want exit status 2", r)
	}
	if r := posthaste(t, e, "", "dlq", "replay", ids[2], "--payload", "@"+file+"x"); r.code != exitFailed {
		t.Errorf("got %+v of a file that is not there, want exit status 1", r)
	}
}

func TestSomebodyIsAskedBeforeMany(t *testing.T) {
	for answer, want := range map[string]error{"y\n": nil, " YES \n": nil, "n\n": errDeclined, "\n": errDeclined, "": errDeclined, "y": nil} {
		var asked bytes.Buffer
		p := &program{stdin: strings.NewReader(answer)}
		if err := p.confirm(t.Context(), &asked, "replay 7 dead letters?"); !errors.Is(err, want) || asked.String() != "replay 7 dead letters? [y/N] " {
			t.Errorf("%q to %q = %v, want %v", answer, asked.String(), err, want)
		}
	}
}

// Ctrl-C at a question ends the command.
func TestAQuestionEndsWithItsContext(t *testing.T) {
	t.Parallel()
	nobody, typing := io.Pipe()
	defer typing.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	p := &program{stdin: nobody}
	if err := p.confirm(ctx, io.Discard, "replay 7 dead letters?"); !errors.Is(err, errDeclined) {
		t.Errorf("got %v, want %v", err, errDeclined)
	}
}

// An empty payload is asked for by name: "$P" is empty where P is not set.
func TestAnEmptyPayloadIsSaidSo(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		id := dead(t, db, "raw", 1)[0]
		sqlExec(t, db, `UPDATE outbox.jobs SET content_type = 'text/plain' WHERE id = $1`, id)
		if r := posthaste(t, way, "", "dlq", "replay", id, "--payload", ""); r.code != exitUsage || !strings.Contains(r.errOut, "--payload is empty") {
			t.Errorf("%s: %+v, want exit status 2", name, r)
		}
		ok(t, way, "dlq", "replay", id, "--payload", "@"+os.DevNull)
		var n int
		if err := db.QueryRow(t.Context(), `SELECT octet_length(payload) FROM outbox.jobs WHERE id = $1 AND status = 'pending'`, id).Scan(&n); err != nil || n != 0 {
			t.Errorf("%s: a payload of %d bytes, %v", name, n, err)
		}
	}
}

// Stored text cannot control the terminal of the reader.
func TestErrorsHaveNoControlCharacters(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	id := dead(t, db, "raw", 1)[0]
	sqlExec(t, db, `UPDATE outbox.jobs SET content_type = E'application/vnd.posthaste.\x1b]0;title' WHERE id = $1`, id)
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		if r := posthaste(t, way, "", "dlq", "replay", id, "--payload", "{}"); r.code == exitOK || !strings.Contains(r.errOut, "]0;title") || strings.Contains(r.errOut, "\x1b") {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestWhereNobodyCanBeAskedManyTakeAYes(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		kind := name[:4]
		ids := dead(t, db, kind, 3)
		for _, stdin := range []io.Reader{strings.NewReader("y\n"), null} {
			for _, args := range [][]string{
				{"dlq", "replay", "--kind", kind},
				{"dlq", "dismiss", "--kind", kind},
				{"dlq", "dismiss", ids[0], ids[1]},
				{"jobs", "retry", "--kind", kind},
				{"jobs", "dismiss", ids[0], ids[1]},
			} {
				var out, errOut bytes.Buffer
				code := run(t.Context(), append([]string{"posthaste"}, args...), func(name string) string { return way[name] }, stdin, &out, &errOut)
				if code != exitUsage || out.Len() > 0 || !strings.Contains(errOut.String(), "pass --yes") {
					t.Errorf("%s, %v: exit status %d, %s%s; want to be told of --yes", name, args, code, &out, &errOut)
				}
			}
		}
		if left := rows(t, direct, "dlq", "list", "--kind", kind); len(left) != 3 {
			t.Errorf("%s: %d dead letters are left, want 3", name, len(left))
		}
		ok(t, way, "dlq", "dismiss", ids[0]) // one is what was named
		ok(t, way, "dlq", "replay", "--kind", kind, "--yes")
	}
}

func TestAProgressBarStaysWithinItsBounds(t *testing.T) {
	for want, p := range map[string]operator.BulkProgress{
		"[..............................]   0 % 0 of 40":  {Matched: 40},
		"[###############...............]  50 % 20 of 40": {Matched: 40, Done: 15, Passed: 5},
		"[##############################] 100 % 50 of 40": {Matched: 40, Done: 50},
		"[##############################] 100 % 0 of 0":   {},
	} {
		if got := progressBar(p); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
