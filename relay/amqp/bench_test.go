package amqp

import (
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/posthaste-dev/posthaste/internal/brokertest"
)

func BenchmarkPublish(b *testing.B) {
	server := brokertest.StartRabbitMQ(b, password, largest)
	for _, kind := range []string{amqp.QueueTypeQuorum, amqp.QueueTypeClassic} {
		for _, mode := range []struct {
			keys      int
			pipelined bool
		}{{1000, false}, {100, false}, {1, false}, {1, true}} {
			b.Run(fmt.Sprintf("%s/keys=%d,pipelined=%t", kind, mode.keys, mode.pipelined), func(b *testing.B) {
				to := open(b, server, kind)
				config := to.config()
				config.URLs = []string{"amqp://" + server.Address}
				config.Pipelined = mode.pipelined
				s := to.sink(config)
				all := messages(1000, mode.keys, to.Destination())
				for i := range all {
					all[i].Body = make([]byte, 200)
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
				to.admin(func(ch *amqp.Channel) error { _, err := ch.QueueDelete(to.name, false, false, false); return err })
			})
		}
	}
}
