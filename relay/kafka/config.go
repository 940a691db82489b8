package kafka

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

// Config sets how to reach a Kafka cluster. Files are read again for each client, so that secrets can be rotated.
type Config struct {
	Brokers []string // host:port of some brokers of one cluster
	Name    string   // of the client, in the brokers' logs and quotas; "" means "posthaste"

	Mechanism    string // PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, with User; "" means no login by password
	User         string // with Password or PasswordFile
	Password     string
	PasswordFile string

	TLS             bool   // implied by the fields below
	CAFile          string // certificates to trust instead of those of the system
	CertificateFile string // the client's own, with KeyFile
	KeyFile         string

	// MaxBytes is the maximum size of a message with its key and headers, and of one batch of messages, both before
	// compression; 0 means 1 000 012, which fits Kafka's default of message.max.bytes. It should not exceed
	// max.message.bytes of any topic.
	MaxBytes int

	// TransactionalID publishes messages in transactions, under an id such as posthaste-NAME for a sink of this name;
	// "" does not. If another process has taken the sink over, the broker then refuses whatever the previous one sends.
	// Each sink needs its own, the same in every process, and consumers must read committed messages only
	// (read_committed). Such a sink is for a relay, in which one process publishes: package relay/jobs refuses it.
	TransactionalID string
}

const (
	defaultMaxBytes = 1_000_012
	leastMaxBytes   = 1 << 10
	mostMaxBytes    = 64 << 20
)

var mechanisms = []string{"", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}

func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, "posthaste")
	c.MaxBytes = cmp.Or(c.MaxBytes, defaultMaxBytes)
	c.TLS = c.TLS || c.certificates().Any()
	return c
}

// validate reports every mistake. No error repeats a secret.
func (c Config) validate() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, invalid.Field("Brokers", "is empty"))
	}
	for i, broker := range c.Brokers {
		if host, port, err := net.SplitHostPort(broker); err != nil || host == "" || port == "" ||
			strings.ContainsAny(broker, "/@") {
			errs = append(errs, invalid.Field(fmt.Sprintf("Brokers[%d]", i), "is not host:port"))
		}
	}
	if !slices.Contains(mechanisms, c.Mechanism) {
		errs = append(errs, invalid.Field("Mechanism", "is %q, want PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", c.Mechanism))
	}
	if (c.Mechanism == "") != (c.User == "") {
		errs = append(errs, errors.New("a Mechanism and a User go together"))
	}
	if c.User == "" && (c.Password != "" || c.PasswordFile != "") {
		errs = append(errs, errors.New("a password is set without User"))
	}
	if c.Password != "" && c.PasswordFile != "" {
		errs = append(errs, errors.New("both Password and PasswordFile are set"))
	}
	errs = append(errs, c.certificates().Validate())
	if c.MaxBytes < leastMaxBytes || c.MaxBytes > mostMaxBytes {
		errs = append(errs, invalid.Field("MaxBytes", "is %d, want %d to %d", c.MaxBytes, leastMaxBytes, mostMaxBytes))
	}
	return errors.Join(errs...)
}

// These set how patient a client is. It bridges shorter interruptions, such as the restart of a broker or a change of
// leader, without repeats; a longer one is an outage.
const (
	patience     = 3 * time.Second
	retryWait    = 200 * time.Millisecond
	retries      = int(patience / retryWait)
	dialTimeout  = 2 * time.Second
	topicRetries = 4
)

// options returns the options of one client.
func (c Config) options() ([]kgo.Opt, error) {
	all := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...), kgo.ClientID(c.Name), kgo.DialTimeout(dialTimeout),
		kgo.ManualFlushing(), kgo.MaxBufferedRecords(maxRun), kgo.ProducerBatchMaxBytes(int32(c.MaxBytes)),
		kgo.RecordRetries(retries), kgo.UnknownTopicRetries(topicRetries),
		kgo.RetryBackoffFn(func(int) time.Duration { return retryWait }),
		kgo.MetadataMinAge(retryWait), kgo.DisableClientMetrics(),
	}
	if c.TransactionalID != "" {
		// A commit that has no answer within this time is unknown. The messages then come again.
		all = append(all, kgo.TransactionalID(c.TransactionalID), kgo.RetryTimeout(patience))
	}
	if c.Mechanism != "" {
		login, err := c.login()
		if err != nil {
			return nil, err
		}
		all = append(all, kgo.SASL(login))
	}
	if c.TLS {
		config, err := c.certificates().TLS()
		if err != nil {
			return nil, err
		}
		all = append(all, kgo.DialTLSConfig(config))
	}
	return all, nil
}

func (c Config) login() (sasl.Mechanism, error) {
	password, err := credentials.Secret(c.Password, c.PasswordFile)
	if err != nil {
		return nil, err
	}
	switch c.Mechanism {
	case "SCRAM-SHA-256":
		return scram.Auth{User: c.User, Pass: password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: c.User, Pass: password}.AsSha512Mechanism(), nil
	}
	return plain.Auth{User: c.User, Pass: password}.AsMechanism(), nil
}

func (c Config) certificates() credentials.Certificates {
	return credentials.Certificates{CAFile: c.CAFile, CertificateFile: c.CertificateFile, KeyFile: c.KeyFile}
}
