package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/amqp"
	"github.com/posthaste-dev/posthaste/relay/kafka"
	"github.com/posthaste-dev/posthaste/relay/nats"
	"github.com/posthaste-dev/posthaste/relay/redis"
	"github.com/posthaste-dev/posthaste/relay/webhook"
)

// sinkSpec sets exactly one of the fields that determine its kind.
type sinkSpec struct {
	NATS  *natsSpec  `yaml:"nats"`  // NATS JetStream
	Kafka *kafkaSpec `yaml:"kafka"` // Kafka, or a server that speaks its protocol
	AMQP  *amqpSpec  `yaml:"amqp"`  // RabbitMQ
	Redis *redisSpec `yaml:"redis"` // streams of Redis or Valkey

	Webhook *webhookSpec `yaml:"webhook"` // receivers over HTTP

	// where a new sink begins: oldest, with the oldest event that is kept, or now, behind the events that are committed
	// when a process first starts with the sink; later it has no effect (default: oldest)
	Begin relay.Begin `yaml:"begin"`
	// how many refused messages, and messages behind them, may be jobs at once; then the sink stops (default: 10000)
	MaxHeld *int `yaml:"maxHeld"`
}

// certificates are the files that every sink can have.
type certificates struct {
	CAFile          text `yaml:"caFile"`          // certificates to trust instead of those of the system
	CertificateFile text `yaml:"certificateFile"` // the client's own, with keyFile
	KeyFile         text `yaml:"keyFile"`         // its private key
}

// login is a user and a secret.
type login struct {
	User         text `yaml:"user"`         // name of the login, with password or passwordFile
	Password     text `yaml:"password"`     // better in passwordFile, or as ${NAME}
	PasswordFile text `yaml:"passwordFile"` // file with the password, read again for each connection
}

type natsSpec struct {
	URL             text   `yaml:"url"`             // of a server: nats://, tls://, ws:// or wss://, without credentials
	URLs            []text `yaml:"urls"`            // of several servers of one cluster
	CredentialsFile text   `yaml:"credentialsFile"` // a JWT and its seed, as nsc writes them
	NKeyFile        text   `yaml:"nkeyFile"`        // a seed
	Token           text   `yaml:"token"`           // better in tokenFile, or as ${NAME}
	TokenFile       text   `yaml:"tokenFile"`       // file with the token, read again for each connection
	login           `yaml:",inline"`
	certificates    `yaml:",inline"`
}

type kafkaSpec struct {
	Brokers   []text `yaml:"brokers"`   // host:port of some brokers of one cluster
	Mechanism text   `yaml:"mechanism"` // PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, with user (default: no login)
	TLS       bool   `yaml:"tls"`       // connect by TLS; implied by the fields of certificates (default: false)
	// maximum size of a message with key and headers, and of a batch, before compression; no more than
	// max.message.bytes of any topic (default: 1000012)
	MaxBytes int `yaml:"maxBytes"`

	// publish in transactions under this id, the same in every process and different for each sink (default: none)
	TransactionalID text `yaml:"transactionalId"`
	login           `yaml:",inline"`
	certificates    `yaml:",inline"`
}

type amqpSpec struct {
	URL  text   `yaml:"url"`  // of a node: amqp://host:5672/vhost or amqps://host:5671/vhost, without credentials
	URLs []text `yaml:"urls"` // of several nodes of one cluster
	// send a key's next message before the last one is confirmed: only for quorum queues or streams that accept all
	// messages (default: false)
	Pipelined    bool `yaml:"pipelined"`
	login        `yaml:",inline"`
	certificates `yaml:",inline"`
}

type redisSpec struct {
	// redis://host:6379/0, or rediss://host:6379/0 for TLS, without credentials; the path is the database
	URL           text `yaml:"url"`
	CreateStreams bool `yaml:"createStreams"` // create streams that do not exist (default: false)
	login         `yaml:",inline"`
	certificates  `yaml:",inline"`
}

type webhookSpec struct {
	URL        text   `yaml:"url"`        // of the receiver; a destination is the part after it
	Hosts      []text `yaml:"hosts"`      // host or host:port of others, which are unavailable together with it
	Secrets    []text `yaml:"secrets"`    // whsec_ and a key in base64; two during a rotation (default: not signed)
	SecretFile text   `yaml:"secretFile"` // file with such secrets, one per line, read again for each batch
	// networks that a receiver may be in, like 10.0.0.0/8, in addition to the public internet (default: none)
	Allow        []text        `yaml:"allow"`
	Concurrency  int           `yaml:"concurrency"` // maximum of concurrent requests, of different keys (default: 16)
	Timeout      time.Duration `yaml:"timeout"`     // for an answer (default: 5s)
	certificates `yaml:",inline"`
}

// sinkName is the name by which we identify ourselves to brokers.
const sinkName = "posthaste"

// open makes the sink. It does not connect yet.
func (s sinkSpec) open() (relay.Sink, error) {
	var sinks []func() (relay.Sink, error)
	if n := s.NATS; n != nil {
		sinks = append(sinks, n.open)
	}
	if k := s.Kafka; k != nil {
		sinks = append(sinks, k.open)
	}
	if a := s.AMQP; a != nil {
		sinks = append(sinks, a.open)
	}
	if r := s.Redis; r != nil {
		sinks = append(sinks, r.open)
	}
	if w := s.Webhook; w != nil {
		sinks = append(sinks, w.open)
	}
	if err := s.Begin.Validate(); err != nil {
		return nil, err
	}
	if m := s.MaxHeld; m != nil && *m < 1 {
		return nil, invalid.Field("MaxHeld", "is %d: want at least 1", *m)
	}
	if len(sinks) != 1 {
		return nil, errors.New("want exactly one of nats, kafka, amqp, redis and webhook")
	}
	return sinks[0]()
}

func (n *natsSpec) open() (relay.Sink, error) { return opened(nats.Open(n.config())) }

func (n *natsSpec) config() nats.Config {
	return nats.Config{
		URLs: texts(n.URLs, n.URL), Name: sinkName,
		CredentialsFile: string(n.CredentialsFile), NKeyFile: string(n.NKeyFile),
		User: string(n.User), Password: string(n.Password), PasswordFile: string(n.PasswordFile),
		Token: string(n.Token), TokenFile: string(n.TokenFile),
		CAFile: string(n.CAFile), CertificateFile: string(n.CertificateFile), KeyFile: string(n.KeyFile),
	}
}

func (k *kafkaSpec) open() (relay.Sink, error) { return opened(kafka.Open(k.config())) }

func (k *kafkaSpec) config() kafka.Config {
	return kafka.Config{
		Brokers: texts(k.Brokers), Name: sinkName, Mechanism: string(k.Mechanism), MaxBytes: k.MaxBytes,
		TransactionalID: string(k.TransactionalID),
		User:            string(k.User), Password: string(k.Password), PasswordFile: string(k.PasswordFile),
		TLS: k.TLS, CAFile: string(k.CAFile), CertificateFile: string(k.CertificateFile), KeyFile: string(k.KeyFile),
	}
}

func (a *amqpSpec) open() (relay.Sink, error) {
	return opened(amqp.Open(amqp.Config{
		URLs: texts(a.URLs, a.URL), Name: sinkName, Pipelined: a.Pipelined,
		User: string(a.User), Password: string(a.Password), PasswordFile: string(a.PasswordFile),
		CAFile: string(a.CAFile), CertificateFile: string(a.CertificateFile), KeyFile: string(a.KeyFile),
	}))
}

func (r *redisSpec) open() (relay.Sink, error) {
	return opened(redis.Open(redis.Config{
		URL: string(r.URL), Name: sinkName, CreateStreams: r.CreateStreams,
		User: string(r.User), Password: string(r.Password), PasswordFile: string(r.PasswordFile),
		CAFile: string(r.CAFile), CertificateFile: string(r.CertificateFile), KeyFile: string(r.KeyFile),
	}))
}

func (w *webhookSpec) open() (relay.Sink, error) {
	var allow []netip.Prefix
	for i, network := range w.Allow {
		p, err := netip.ParsePrefix(string(network))
		if err != nil {
			return nil, invalid.Field(fmt.Sprintf("Allow[%d]", i), "is %q, want a network such as 10.0.0.0/8", network)
		}
		allow = append(allow, p)
	}
	return opened(webhook.Open(webhook.SinkConfig{
		URL: string(w.URL), Hosts: texts(w.Hosts), Allow: allow, Concurrency: w.Concurrency, Timeout: w.Timeout,
		Signing: webhook.Signing{Secrets: texts(w.Secrets), File: string(w.SecretFile)}, UserAgent: "posthaste/" +
			buildVersion(),
		CAFile: string(w.CAFile), CertificateFile: string(w.CertificateFile), KeyFile: string(w.KeyFile),
	}))
}

// opened keeps a nil pointer from becoming a non-nil sink.
func opened[S relay.Sink](sink S, err error) (relay.Sink, error) {
	if err != nil {
		return nil, err
	}
	return sink, nil
}

// plain returns the values of a list.
func plain(list []text) (all []string) {
	for _, t := range list {
		all = append(all, string(t))
	}
	return all
}

// texts returns those that are not empty.
func texts(list []text, more ...text) (all []string) {
	for _, t := range append(list[:len(list):len(list)], more...) {
		if t != "" {
			all = append(all, string(t))
		}
	}
	return all
}
