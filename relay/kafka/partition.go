package kafka

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// byKey places a record with a key as Kafka's own clients do. It keeps no state for such a record.
var byKey = kgo.StickyKeyPartitioner(nil).ForTopic("")

// partitions records how many partitions each topic has, as far as keys were placed.
type partitions struct{ of sync.Map }

// ForTopic implements [kgo.Partitioner]: it returns the client's default partitioner, with a hash that records how many
// partitions the topic has.
func (p *partitions) ForTopic(topic string) kgo.TopicPartitioner {
	return kgo.UniformBytesPartitioner(64<<10, true, true, func(key []byte, n int) int {
		p.of.Store(topic, n)
		return byKey.Partition(&kgo.Record{Key: key}, n)
	}).ForTopic(topic)
}
