package webhook

import (
	"fmt"
	"testing"

	"github.com/posthaste-dev/posthaste/relay"
)

// BenchmarkPublish posts signed messages to a receiver in a process of its own, which writes them to a file.
func BenchmarkPublish(b *testing.B) {
	for _, keys := range []int{1000, 1} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			p := start(b)
			s, err := Open(SinkConfig{URL: "http://" + p.address, Allow: loopback, Signing: Signing{File: p.path("secrets")}})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			all := make([]relay.Message, 1000)
			for i := range all {
				all[i] = relay.Message{ID: fmt.Sprint("m", i), Key: fmt.Sprint("k", i%keys), Destination: "/events", Body: make([]byte, 200)}
			}
			sent := 0
			for b.Loop() {
				for _, err := range s.Publish(b.Context(), all) {
					if err != nil {
						b.Fatal(err)
					}
				}
				sent += len(all)
			}
			b.ReportMetric(float64(sent)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}
