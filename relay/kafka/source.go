package kafka

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/posthaste-dev/posthaste/bridge"
)

// SourceConfig sets what a [Source] fetches.
type SourceConfig struct {
	Topic string
	Group string // consumer group; a new one begins with the oldest messages
}

const (
	// sessionTimeout is how long a group waits for a dead member before it goes on without it.
	sessionTimeout = 10 * time.Second

	// leaveTimeout bounds how long a broker that does not answer keeps a bridge from its end.
	leaveTimeout = time.Second

	maxFetchBytes = 32 << 20 // of all partitions; a single batch of the broker may be larger
)

// A Source fetches messages of a topic for a [bridge.Bridges], as a member of a consumer group, and commits their
// offsets.
//
// A message's ID is posthaste-id; without that, ce_source and ce_id; and without these, the topic's ID with partition
// and offset, or the time where brokers name no topic ID. Its key is the record's; its position is the offset plus one.
type Source struct {
	config Config
	of     SourceConfig
	client *client // nil until the next Fetch

	returned []*kgo.Record   // by Fetch since the last Ack: the last record of each partition
	acked    []*kgo.Record   // those without a successful commit
	behind   map[int32]int64 // per partition, how many messages were behind the last returned one
}

var (
	_ bridge.Source  = (*Source)(nil)
	_ bridge.Lagging = (*Source)(nil)
)

// OpenSource validates a configuration. It does not connect.
func OpenSource(config Config, of SourceConfig) (*Source, error) {
	config = config.withDefaults()
	errs := []error{config.validate(), checkTopic(of.Topic)}
	if of.Group == "" {
		errs = append(errs, errors.New("the Group is empty"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("open the Kafka source: %w", err)
	}
	return &Source{config: config, of: of}, nil
}

// Probe checks that the topic exists. It does not join the group: a bridge that runs would lose partitions to it.
func (s *Source) Probe(ctx context.Context) error {
	c, err := open(ctx, s.config)
	if err != nil {
		return err
	}
	defer c.Close()
	topics, err := kadm.NewClient(c.Client).ListTopics(ctx, s.of.Topic)
	if err == nil {
		err = topics.Error()
	}
	if err != nil {
		return fmt.Errorf("look for topic %s: %w", s.of.Topic, err)
	}
	return nil
}

// Fetch implements [bridge.Source]. It returns as soon as there are messages. If the last Ack has failed, Fetch commits
// again first, and fetches nothing while that fails: otherwise everything that a bridge stores meanwhile would come
// again after a failover.
func (s *Source) Fetch(ctx context.Context, most int) ([]bridge.Message, error) {
	if err := s.connected(); err != nil {
		return nil, err
	}
	if len(s.acked) > 0 {
		if err := s.commit(ctx); err != nil {
			if _, answered := errors.AsType[*kerr.Error](err); answered { // for example, the partition is gone
				s.drop()
			}
			return nil, err
		}
	}
	fetches, err := s.poll(ctx, most)
	if err != nil {
		return nil, err
	}
	var messages []bridge.Message
	fetches.EachTopic(func(t kgo.FetchTopic) {
		t.EachPartition(func(p kgo.FetchPartition) {
			for _, r := range p.Records {
				messages = append(messages, message(r, t.TopicID))
			}
			if n := len(p.Records); n > 0 {
				last := p.Records[n-1]
				s.returned = append(s.returned, last)
				s.behind[p.Partition] = max(0, p.HighWatermark-last.Offset-1)
			}
		})
	})
	return messages, nil
}

// poll waits for records until ctx ends. An error that passes does not end the wait. The client fetches again, and
// reports the error again, as soon as it is polled: so poll pauses before that.
func (s *Source) poll(ctx context.Context, most int) (kgo.Fetches, error) {
	for {
		fetches := s.client.PollRecords(ctx, most)
		var errs []error
		fetches.EachError(func(topic string, partition int32, err error) {
			if !passes(partition, err) {
				errs = append(errs, fmt.Errorf("fetch from %s: %w", place(topic, partition), err))
			}
		})
		if len(errs) > 0 {
			s.drop()
			return nil, errs[0]
		}
		if fetches.NumRecords() > 0 {
			return fetches, nil
		}
		if err := s.client.connection.lost(); err != nil || ctx.Err() != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryWait):
		}
	}
}

// passes reports whether the client recovers from an error by itself, such as from the end of a Fetch's time or the
// election of a leader. That the whole topic is gone, or was deleted and created again, does not pass.
func passes(partition int32, err error) bool {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return true
	case errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.UnknownTopicOrPartition) && partition < 0:
		return false
	}
	return kerr.IsRetriable(err)
}

func place(topic string, partition int32) string {
	if partition < 0 { // the whole topic
		return "topic " + topic
	}
	return fmt.Sprintf("topic %s, partition %d", topic, partition)
}

// Lag implements [bridge.Lagging].
func (s *Source) Lag() (lag int64) {
	for _, n := range s.behind {
		lag += n
	}
	return lag
}

// message returns a record as a message.
func message(r *kgo.Record, topicID [16]byte) bridge.Message {
	m := bridge.Message{
		Source: r.Topic, Subject: fmt.Sprintf("%s/%d", r.Topic, r.Partition), Key: string(r.Key),
		Position: r.Offset + 1, Body: r.Value,
	}
	var id, source, ours string
	for _, h := range r.Headers {
		value := string(h.Value)
		switch h.Key {
		case theirs + "id":
			id = cmp.Or(id, value) // the relay's is the first: encode has not always left the producer's out
		case theirs + "source":
			source = cmp.Or(source, value)
		case headerID:
			ours = value
		case headerContentType:
			m.ContentType = value
		}
		m.Headers = append(m.Headers, bridge.Header{Name: h.Key, Value: value})
	}
	switch {
	case ours != "": // a relay set it although the producer had a ce_id
		m.ID = ours
	case id != "":
		m.ID = source + "/" + id
	case topicID == [16]byte{}: // the broker names none: offsets start over when the topic is recreated
		m.ID = fmt.Sprintf("%s/%d/%d/%d", hex.EncodeToString(topicID[:]), r.Partition, r.Offset,
			r.Timestamp.UnixMilli())
	default:
		m.ID = fmt.Sprintf("%s/%d/%d", hex.EncodeToString(topicID[:]), r.Partition, r.Offset)
	}
	return m
}

// Ack implements [bridge.Source]. If it fails, the next Fetch commits again: in a partition without new messages, no
// later commit would cover the rest.
func (s *Source) Ack(ctx context.Context) error {
	s.acked, s.returned = append(s.acked, s.returned...), nil
	return s.commit(ctx)
}

func (s *Source) commit(ctx context.Context) error {
	if err := s.client.CommitRecords(ctx, s.acked...); err != nil {
		return fmt.Errorf("commit offsets of group %s: %w", s.of.Group, err)
	}
	s.acked = nil
	return nil
}

// Release implements [bridge.Source]: the group goes on from what is committed.
func (s *Source) Release() { s.drop() }

// Close leaves the group.
func (s *Source) Close() error {
	s.drop()
	return nil
}

// drop leaves the group and closes the client. If the broker does not answer in leaveTimeout, the group waits for the
// end of the member's session.
func (s *Source) drop() {
	if s.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		_ = s.client.LeaveGroupContext(ctx) // Close waits for as long as this one request lasts
		cancel()
		s.client.Close()
	}
	s.client, s.returned, s.acked = nil, nil, nil
}

func (s *Source) connected() error {
	if s.client != nil {
		return nil
	}
	c := &client{}
	options, err := s.config.options()
	if err != nil {
		return err
	}
	options = append(options, kgo.WithHooks(&c.connection),
		kgo.ConsumerGroup(s.of.Group), kgo.ConsumeTopics(s.of.Topic), kgo.DisableAutoCommit(),
		kgo.SessionTimeout(sessionTimeout),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxBytes(maxFetchBytes),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepRetryableFetchErrors()) // see passes
	if c.Client, err = kgo.NewClient(options...); err != nil {
		return fmt.Errorf("make a client of Kafka: %w", err)
	}
	s.client, s.behind = c, map[int32]int64{}
	return nil
}
