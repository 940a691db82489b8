package natstest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/freeport"
)

// Cluster starts three servers that are one cluster, and waits until JetStream has a leader.
func Cluster(t testing.TB) (servers []*Server) {
	t.Helper()
	var routes []string
	var ports []int
	for range 3 {
		port, err := freeport.Pick()
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, port)
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", port))
	}
	for i, port := range ports {
		servers = append(servers, Start(t, Options{Config: fmt.Sprintf(
			"server_name: n%d\ncluster { name: C, listen: \"127.0.0.1:%d\", routes: [ %s ] }", i, port,
			strings.Join(routes, ", "))}))
	}
	js := servers[0].Connect()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: "READY", Subjects: []string{"ready"},
			Replicas: 3,
		})
		if err == nil {
			return servers
		}
		if time.Now().After(deadline) {
			t.Fatalf("the cluster does not come up: %v", err)
		}
	}
}
