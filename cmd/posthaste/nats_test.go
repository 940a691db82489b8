package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// A process with the role api and rpc in its relay.yaml answers operators over NATS; one with workers and presence
// says that they are there.
func TestServeAnswersAndBeatsOnNATS(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{})
	nc := server.Connect().Conn()
	beats, err := nc.SubscribeSync("shop.jobs.workers.>")
	if err != nil {
		t.Fatal(err)
	}
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	t.Cleanup(hook.Close)
	url := pgtest.URL(t)
	file := writeRelayConfig(t, "rpc: {nats: {url: \""+server.URL+"\"}, subjectPrefix: shop.v1}\npresence: {nats: {url: \""+server.URL+"\"}, subjectPrefix: shop.jobs}\n")
	serving(t, "--database-url", url, "--role", "dispatch,api", "--api-addr", "127.0.0.1:0", "--relay-config", file, "--webhook", "greet="+hook.URL, "--worker", "w")

	e := env{"DATABASE_URL": url}
	bearer := strings.TrimSpace(ok(t, e, "tokens", "create", "ops", "-c", "admin.read,jobs.read"))
	id := strings.TrimSpace(ok(t, e, "enqueue", "greet", `{"name":"Ada"}`))
	ask := func() string {
		m := nats.NewMsg("shop.v1.Jobs.Get")
		m.Header.Set("Authorization", "Bearer "+bearer)
		m.Data = []byte(`{"id":"` + id + `"}`)
		a, err := nc.RequestMsg(m, time.Second)
		if err != nil {
			return err.Error()
		}
		return string(a.Data)
	}
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(ask(), `"state":"completed"`); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the answer is %s", ask())
		}
	}
	m, err := beats.NextMsg(15 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var worker []map[string]any
	if err := json.Unmarshal([]byte(ok(t, e, "workers", "list", "-o", "json")), &worker); err != nil || len(worker) != 1 {
		t.Fatalf("%v: %v", err, worker)
	}
	var beat struct{ Service, JobType, InstanceID string }
	if err := json.Unmarshal(m.Data, &beat); err != nil || beat.Service != "default" || beat.JobType != "greet" || !strings.HasPrefix(beat.InstanceID, "w-") {
		t.Errorf("got %s, %v", m.Data, err)
	}
	if name := worker[0]["worker"]; name != beat.InstanceID || m.Subject != "shop.jobs.workers.default.greet."+beat.InstanceID+".heartbeat" {
		t.Errorf("the worker is %v, the heartbeat %s of %s", worker[0], m.Data, m.Subject)
	}
}

// Without the role api nobody is answered: the file may be the same for all processes.
func TestOnlyTheAPIAnswersOnNATS(t *testing.T) {
	t.Parallel()
	file := writeRelayConfig(t, "rpc: {nats: {url: \"nats://127.0.0.1:1\"}}\n")
	c, err := parseRelayConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	s := settings{relayConfig: c}
	s.app.DatabaseURL = "postgres://nobody@127.0.0.1:1/none"
	process, err := withNATS(s, false)
	if err != nil || len(process.Components) != 0 {
		t.Errorf("without the API: %v, %v", process.Components, err)
	}
}
