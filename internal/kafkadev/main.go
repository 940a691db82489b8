// Command kafkadev stands for a Kafka broker in tests: kfake, in a process of its own that can be killed, on disk.
// It is not Kafka: it has one node and no replicas, and what it does in a fault is what its author knows of Kafka.
//
//	kafkadev -listen HOST:PORT -advertise HOST:PORT -dir DIR -password TEXT
//
// There are two users: admin, with this name as a password, who may do everything, and relay, who may write to topics
// whose names begin with events, in transactions whose IDs begin with posthaste, and look at all.
//
// SIGUSR1 reads three files in DIR. After as many more records as limit has in it, each produce request is answered
// as by a broker whose disk is full; without the file there is no limit. While unreadable is there, each fetch request
// is answered as by a broker whose disk has failed. While revoked is there, relay's logins are answered as by Kafka
// when the password is wrong; kfake itself hangs up.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	listen := flag.String("listen", "127.0.0.1:9092", "address to listen on")
	advertise := flag.String("advertise", "", "address that clients connect to")
	dir := flag.String("dir", "", "directory of the files")
	password := flag.String("password", "", "of the user relay")
	flag.Parse()

	may := func(resource kmsg.ACLResourceType, name string, pattern kmsg.ACLResourcePatternType,
		op kmsg.ACLOperation,
	) kfake.ACL {
		return kfake.ACL{Resource: resource, Name: name, Pattern: pattern, Operation: op, Allow: true}
	}
	const literal, prefixed = kmsg.ACLResourcePatternTypeLiteral, kmsg.ACLResourcePatternTypePrefixed
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1), kfake.DataDir(filepath.Join(*dir, "data")), kfake.SyncWrites(), kfake.EnableSASL(),
		kfake.EnableACLs(),
		// The newest takes only 0 as the first number of a producer in a partition that was never written to.
		kfake.MaxVersions(kversion.V4_0_0()),
		kfake.Superuser("SCRAM-SHA-256", "admin", "admin"),
		kfake.User("SCRAM-SHA-256", "relay", *password,
			may(kmsg.ACLResourceTypeTopic, "events", prefixed, kmsg.ACLOperationWrite),
			may(kmsg.ACLResourceTypeTopic, "*", literal, kmsg.ACLOperationDescribe),
			may(kmsg.ACLResourceTypeTopic, "*", literal, kmsg.ACLOperationDescribeConfigs),
			may(kmsg.ACLResourceTypeTransactionalId, "posthaste", prefixed, kmsg.ACLOperationWrite),
			may(kmsg.ACLResourceTypeTransactionalId, "posthaste", prefixed, kmsg.ACLOperationDescribe),
			may(kmsg.ACLResourceTypeCluster, "kafka-cluster", literal, kmsg.ACLOperationIdempotentWrite),
		),
		kfake.ListenFn(func(network, _ string) (net.Listener, error) {
			l, err := net.Listen(network, *listen)
			return listener{l, *advertise}, err
		}),
	)
	if err != nil {
		return err
	}
	l := &faults{cluster: cluster, dir: *dir}
	l.read()
	cluster.ControlKey(int16(kmsg.Produce), l.produce)
	cluster.ControlKey(int16(kmsg.Fetch), l.fetch)
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), l.authenticate)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	for range signals {
		l.read()
	}
	return nil
}

// listener has the address that clients are to use.
type listener struct {
	net.Listener
	advertised string
}

func (l listener) Addr() net.Addr { return address(l.advertised) }

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// faults are what the files say.
type faults struct {
	cluster    *kfake.Cluster
	dir        string
	left       atomic.Int64 // how many more records are taken; below 0: any number
	unreadable atomic.Bool
	revoked    atomic.Bool
}

func (l *faults) read() {
	l.left.Store(-1)
	if text, err := os.ReadFile(filepath.Join(l.dir, "limit")); err == nil {
		n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		l.left.Store(n)
	}
	for name, there := range map[string]*atomic.Bool{"unreadable": &l.unreadable, "revoked": &l.revoked} {
		_, err := os.Stat(filepath.Join(l.dir, name))
		there.Store(err == nil)
	}
}

// authenticate answers the first message of a login by SCRAM, in which the name is.
func (l *faults) authenticate(r kmsg.Request) (kmsg.Response, error, bool) {
	l.cluster.KeepControl()
	request := r.(*kmsg.SASLAuthenticateRequest)
	if !l.revoked.Load() || !strings.Contains(string(request.SASLAuthBytes), "n=relay,") {
		return nil, nil, false
	}
	response := request.ResponseKind().(*kmsg.SASLAuthenticateResponse)
	response.ErrorCode = kerr.SaslAuthenticationFailed.Code
	return response, nil, true
}

// produce answers a request that has more records than are left.
func (l *faults) produce(r kmsg.Request) (kmsg.Response, error, bool) {
	l.cluster.KeepControl()
	left := l.left.Load()
	request := r.(*kmsg.ProduceRequest)
	if left < 0 {
		return nil, nil, false
	}
	var records int64
	for _, topic := range request.Topics {
		for _, partition := range topic.Partitions {
			var batch kmsg.RecordBatch
			if err := batch.ReadFrom(partition.Records); err == nil {
				records += int64(batch.NumRecords)
			}
		}
	}
	if records <= left {
		l.left.Store(left - records)
		return nil, nil, false
	}
	l.left.Store(0)
	response := request.ResponseKind().(*kmsg.ProduceResponse)
	for _, topic := range request.Topics {
		answer := kmsg.NewProduceResponseTopic()
		answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
		for _, partition := range topic.Partitions {
			p := kmsg.NewProduceResponseTopicPartition()
			p.Partition, p.ErrorCode = partition.Partition, kerr.KafkaStorageError.Code
			answer.Partitions = append(answer.Partitions, p)
		}
		response.Topics = append(response.Topics, answer)
	}
	return response, nil, true
}

// fetch answers a request for records that cannot be read.
func (l *faults) fetch(r kmsg.Request) (kmsg.Response, error, bool) {
	l.cluster.KeepControl()
	if !l.unreadable.Load() {
		return nil, nil, false
	}
	request := r.(*kmsg.FetchRequest)
	response := request.ResponseKind().(*kmsg.FetchResponse)
	for _, topic := range request.Topics {
		answer := kmsg.NewFetchResponseTopic()
		answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
		for _, partition := range topic.Partitions {
			p := kmsg.NewFetchResponseTopicPartition()
			p.Partition, p.ErrorCode = partition.Partition, kerr.KafkaStorageError.Code
			answer.Partitions = append(answer.Partitions, p)
		}
		response.Topics = append(response.Topics, answer)
	}
	return response, nil, true
}
