package nats

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/relay"
)

// BenchmarkPublish publishes batches of 1000 messages with 200 bytes of payload, one after the other, as a relay does.
func BenchmarkPublish(b *testing.B) {
	streams := []struct {
		name   string
		config jetstream.StreamConfig
	}{
		{"window", jetstream.StreamConfig{}},
		{"fast", jetstream.StreamConfig{AllowBatchPublish: true}},
		{"atomic", jetstream.StreamConfig{AllowAtomicPublish: true}},
		{"both", jetstream.StreamConfig{AllowAtomicPublish: true, AllowBatchPublish: true}},
	}
	for _, always := range []bool{false, true} {
		for _, stream := range streams {
			for _, keys := range []int{1, 1000} {
				b.Run(fmt.Sprintf("always=%t/%s/keys=%d", always, stream.name, keys), func(b *testing.B) {
					benchmark(b, always, stream.config, keys)
				})
			}
		}
	}
}

func benchmark(b *testing.B, always bool, config jetstream.StreamConfig, keys int) {
	server := natstest.Start(b, natstest.Options{SyncAlways: always})
	config.Name, config.Subjects = streamName, []string{"events.>"}
	if _, err := server.Connect().CreateStream(b.Context(), config); err != nil {
		b.Fatal(err)
	}
	s, err := Open(Config{URLs: []string{server.URL}})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	n := 0
	next := func() []relay.Message {
		batch := make([]relay.Message, 1000)
		for i := range batch {
			n++
			batch[i] = relay.Message{
				ID: fmt.Sprintf("0192aaaa-bbbb-7ccc-8ddd-%012d", n), Destination: "events.order.paid", Key: fmt.Sprintf("order-%d", n%keys),
				ContentType: "application/json", Body: []byte(strings.Repeat("x", 200)),
				Headers: []relay.Header{{Name: "traceparent", Value: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}},
			}
		}
		return batch
	}
	for range 10 { // until the way to publish is decided
		s.Publish(b.Context(), next())
	}
	before := cpu(b)
	for b.Loop() {
		for _, err := range s.Publish(b.Context(), next()) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "msgs/s")
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N)/1000, "µs-of-CPU/msg")
}

// cpu returns the CPU time that this process has used.
func cpu(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
