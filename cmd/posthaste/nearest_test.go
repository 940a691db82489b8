package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
)

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"mail", "mail", 0}, {"mial", "mail", 2}, {"mai", "mail", 1}, {"kitten", "sitting", 3}} {
		if got, back := distance(c.a, c.b), distance(c.b, c.a); got != c.want || back != c.want {
			t.Errorf("distance of %q and %q = %d and %d, want %d", c.a, c.b, got, back, c.want)
		}
	}
}

func TestAJobThatNobodyCarriesOutIsNoted(t *testing.T) {
	t.Parallel()
	workers := []operator.Worker{
		{Kinds: []string{"mail.send"}, Queues: map[string]int{"default": 1, "mail": 8}},
		{Kinds: []string{"gone"}, Queues: map[string]int{"default": 1}, Missing: true},
	}
	for job, want := range map[string]string{
		"mail.send default": "", "mail.sned default": "kind mail.sned: did you mean mail.send?", "mail.send mial": "in queue mial: did you mean mail?", "gone default": "kind gone",
	} {
		kind, queue, _ := strings.Cut(job, " ")
		if got := unworkedNote(workers, kind, queue); (got == "") != (want == "") || !strings.HasSuffix(got, want) {
			t.Errorf("of %s: %q, want %q", job, got, want)
		}
	}
}

func TestVariablesThatAreSpeltWrong(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte("sinks:\n  a: {nats: {url: \"nats://h:1\", token: \"${PATH}\"}}\nroutes:\n  - {topics: [\"*\"], to: a}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := parseRelayConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.variables, []string{"PATH"}) {
		t.Errorf("the file takes values from %v, want PATH", c.variables)
	}
	c.variables = append(c.variables, "OUTBOX_BROKER_PASSWORD")
	environ := []string{
		"PATH=/bin", "OUTBOX_LEASE_TTL=15s", "OUTBOX_API_TOKEN=t", "OUTBOX_BROKER_PASSWORD=s", "OUTBOX_SERVICE_HOST=10.0.0.1", "OUTBOX_API_PORT_8080_TCP_ADDR=10.0.0.1",
		"OUTBOX_PORT=tcp://10.0.0.1:80", "OUTBOX_SERVICE_PORT_HTTP=80", "OUTBOX_LEASE_TLL=15s", "OUTBOX_CONCURRENCY=8",
	}
	want := []string{
		"the environment variable OUTBOX_CONCURRENCY is no setting, and does nothing",
		"the environment variable OUTBOX_LEASE_TLL is no setting, and does nothing: did you mean OUTBOX_LEASE_TTL?",
	}
	if got := strangeVariables(environ, c); !slices.Equal(got, want) {
		t.Errorf("notes are %q, want %q", got, want)
	}
	if got := strangeVariables([]string{"OUTBOX_BROKER_PASSWORD=s"}, nil); len(got) != 1 {
		t.Errorf("a variable that nothing names has the notes %q", got)
	}
}

func TestConfigAndServeWarnOfVariables(t *testing.T) {
	const note = "OUTBOX_LEASE_TLL is no setting, and does nothing: did you mean OUTBOX_LEASE_TTL?"
	t.Setenv("OUTBOX_LEASE_TLL", "20s")
	if r := posthaste(t, nil, "", "config"); r.code != exitOK || strings.Count(r.errOut, note) != 1 {
		t.Errorf("config: %+v, want the note once", r)
	}
	cmd, logs := servingWith(t, []string{"DATABASE_URL=postgres://127.0.0.1:1/none"}, "--listen", "off")
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(logs.String(), note); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("serve does not warn:\n%s", logs)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if n := strings.Count(logs.String(), note); n != 1 {
		t.Errorf("serve warns %d times, want once", n)
	}
}
