package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/posthaste-dev/posthaste/relay"
)

// relayConfig is the file relay.yaml. Unknown fields are mistakes.
type relayConfig struct {
	// the origin of the events, as in CloudEvents: a URI reference (default: posthaste)
	Source text                `yaml:"source"`
	Sinks  map[string]sinkSpec `yaml:"sinks"`  // brokers, by name; a sink's name identifies its position in the log
	Routes []routeSpec         `yaml:"routes"` // which events go to which sink; the first route that matches applies
	// topics that programs publish: one without a route, or listed twice, is a mistake (default: not checked)
	Topics []text `yaml:"topics"`

	RPC      *natsService `yaml:"rpc"`      // operators' requests over NATS, served by processes with the role api
	Presence *natsService `yaml:"presence"` // heartbeats over NATS, published by processes that run jobs

	Bridges map[string]bridgeSpec `yaml:"bridges"` // streams and topics whose messages become jobs, by name

	file      string
	variables []string // from which it takes values
}

type routeSpec struct {
	// a topic; order.* for all topics that begin with "order."; or * for every topic
	Topics []text `yaml:"topics"`
	To     string `yaml:"to"` // name of the sink
	// template of the destination: subject, topic, exchange, stream, path (default: {topic}, or the preset's)
	Destination string `yaml:"destination"`
	// how messages carry the attributes of CloudEvents 1.0: binary, structured or off (default: binary)
	CloudEvents relay.CloudEvents `yaml:"cloudEvents"`
	// what happens to later messages of the key when the broker refuses one: hold, skip, park or drop (default: hold)
	OnRefused relay.OnRefused `yaml:"onRefused"`
	// topics, destination and format that another system defines: debezium for all events; posthaste or trellis for
	// those of streamed jobs (default: none)
	Preset relay.Preset `yaml:"preset"`
}

// text is a value, or ${NAME} for the value of an environment variable.
type text string

var (
	variable  = regexp.MustCompile(`^\$\{([A-Za-z_][A-Za-z0-9_]*)\}$`)
	reference = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)
)

func (t *text) UnmarshalYAML(node *yaml.Node) error {
	if err := node.Decode((*string)(t)); err != nil {
		return err
	}
	name := variable.FindStringSubmatch(string(*t))
	switch found := reference.FindString(string(*t)); {
	case found == "":
		return nil
	case name == nil: // it would be taken literally
		return fmt.Errorf("line %d: %s is a part of a value: want the whole value in the variable", node.Line, found)
	}
	value := os.Getenv(name[1])
	if value == "" { // with an empty secret requests would not be signed, and no login would succeed
		return fmt.Errorf("line %d: the environment variable %s is not set, or is empty", node.Line, name[1])
	}
	*t = text(value)
	return nil
}

// parseRelayConfig parses the file. Its errors give the file, line and field.
func parseRelayConfig(file string) (*relayConfig, error) {
	if file == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	c := relayConfig{file: file}
	from := yaml.NewDecoder(bytes.NewReader(content))
	from.KnownFields(true)
	if err := from.Decode(&c); errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: it is empty", file)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %s", file, inPlainWords(err))
	}
	var root, second yaml.Node
	if err := yaml.Unmarshal(content, &root); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, m := range reference.FindAllSubmatch(content, -1) {
		c.variables = append(c.variables, string(m[1]))
	}
	if err := from.Decode(&second); err == nil {
		return nil, fmt.Errorf("%s: line %d: a second document: one is all that is read", file, second.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %s", file, inPlainWords(err))
	}
	return &c, c.validate(&root)
}

var (
	unknownField = regexp.MustCompile(`field (\S+) not found in type \S+`)
	ourType      = regexp.MustCompile(` into main\.\S+`)
)

// inPlainWords returns an error of the YAML package without our types' names.
func inPlainWords(err error) string {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	message = strings.TrimPrefix(message, "unmarshal errors:\n")
	message = unknownField.ReplaceAllString(message, "unknown field $1")
	message = ourType.ReplaceAllString(message, " where a mapping belongs")
	lines := strings.Split(message, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "; ")
}

// validate returns every mistake with its place.
func (c *relayConfig) validate(root *yaml.Node) error {
	p := &places{file: c.file, root: root}
	if len(c.Sinks) == 0 && len(c.Bridges) == 0 && c.RPC == nil && c.Presence == nil {
		p.add([]any{"sinks"}, ": there is none, and no bridges either")
	}
	p.addAll(p.below([]any{"rpc"}, "nats"), c.RPC.validate())
	p.addAll(p.below([]any{"presence"}, "nats"), c.Presence.validate())
	led := map[string]bool{}
	routes := map[string][]relay.Route{}
	for i, r := range c.Routes {
		path := []any{"routes", i}
		if _, ok := c.Sinks[r.To]; !ok {
			p.add(append(path, "to"), ": no sink is called %q; there is %s", r.To,
				strings.Join(slices.Sorted(maps.Keys(c.Sinks)), ", "))
		}
		led[r.To] = true
		routes[r.To] = append(routes[r.To], r.route())
		p.addAll(path, r.route().Validate())
	}
	for _, mistake := range relay.CheckTopics(plain(c.Topics), routes) {
		p.add([]any{"topics", mistake.Index}, ": %s", mistake.Reason)
	}
	c.validateSinks(led, p)
	c.validateNames(p)
	for _, name := range slices.Sorted(maps.Keys(c.Bridges)) {
		b, path := c.Bridges[name], []any{"bridges", name}
		_, err := b.config(name)
		p.addAll(path, err)
		switch { // open would say again that the name is missing
		case b.NATS != nil:
			b.Consumer = cmp.Or(b.Consumer, text(name))
		case b.Kafka != nil:
			b.Group = cmp.Or(b.Group, text(name))
		}
		source, err := b.open()
		if err != nil {
			p.addAll(p.below(path, "nats", "kafka"), err)
			continue
		}
		_ = source.Close()
	}
	return errors.Join(p.errs...)
}

// validateSinks opens each sink, without connecting, and checks the routes that lead to it.
func (c *relayConfig) validateSinks(led map[string]bool, p *places) {
	for _, name := range slices.Sorted(maps.Keys(c.Sinks)) {
		path := []any{"sinks", name}
		if err := relay.CheckName(name); err != nil {
			p.add(path, ": %s", err)
		}
		if !led[name] {
			p.add(path, ": no route leads to it")
		}
		sink, err := c.Sinks[name].open()
		if err != nil {
			p.addAll(p.below(path, "nats", "kafka", "amqp", "redis", "webhook"), err)
			continue
		}
		if checker, ok := sink.(relay.RouteChecker); ok {
			for i, r := range c.Routes {
				if r.To == name {
					p.addAll([]any{"routes", i}, checker.CheckRoute(r.route()))
				}
			}
		}
		_ = sink.Close() // it has not connected
	}
}

// brokerName is a name that one sink or bridge alone may have at its broker.
type brokerName struct {
	path     []any // of the field
	servers  []string
	name, of string // of is what names are told apart in: the stream or topic
	login    string // to NATS, where it determines the account, which has its own streams
	effect   string // of a second one
}

// names returns all such names in the file.
func (c *relayConfig) names() (all []brokerName) {
	for _, name := range slices.Sorted(maps.Keys(c.Sinks)) {
		if k := c.Sinks[name].Kafka; k != nil && k.TransactionalID != "" {
			all = append(all, brokerName{
				path: []any{"sinks", name, "kafka", "transactionalId"}, servers: k.servers(),
				name: string(k.TransactionalID), effect: "each would end the transactions of the other",
			})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Bridges)) {
		b, path := c.Bridges[name], []any{"bridges", name}
		one := brokerName{effect: "each message would become a job of one bridge only"}
		switch {
		case b.NATS != nil && b.Consumer != "":
			one.path, one.name, one.of = append(path, "consumer"), string(b.Consumer), string(b.Stream)
			one.servers, one.login = b.NATS.servers(), b.NATS.account()
		case b.Kafka != nil && b.Group != "":
			one.path, one.name, one.of = append(path, "group"), string(b.Group), string(b.Topic)
			one.servers = b.Kafka.servers()
		default:
			continue
		}
		all = append(all, one)
	}
	return all
}

// taken returns the pairs of names that are the same, as far as the file shows that their servers are.
func (c *relayConfig) taken() (pairs [][2]brokerName) {
	all := c.names()
	for n, one := range all {
		for _, other := range all[:n] {
			if len(one.path) == len(other.path) && one.path[len(one.path)-1] == other.path[len(other.path)-1] &&
				one.name == other.name && one.of == other.of && haveCommon(one.servers, other.servers) {
				pairs = append(pairs, [2]brokerName{one, other})
			}
		}
	}
	return pairs
}

// validateNames refuses a name that two sinks or two bridges have at one broker: two transactions with one id end each
// other, and two bridges with one consumer share its messages.
func (c *relayConfig) validateNames(p *places) {
	for _, pair := range c.taken() {
		if one, other := pair[0], pair[1]; one.login == other.login {
			p.add(one.path, " is %q, as in %s, at the same server: %s", one.name, fieldName(other.path[:2]), one.effect)
		}
	}
}

// sharedNames warns of names that validateNames does not refuse because the logins differ, and so may the accounts.
func (c *relayConfig) sharedNames() (all []brokerFinding) {
	for _, pair := range c.taken() {
		if one, other := pair[0], pair[1]; one.login != other.login {
			all = append(all, brokerFinding{fmt.Sprintf("bridge %s", one.path[1]), relay.Finding{
				Severity: relay.SeverityWarning,
				What: fmt.Sprintf("its consumer %s of the stream %s is also that of %s, at the same server with another login",
					one.name, one.of, fieldName(other.path[:2])),
				Remedy: "unless the logins are of different accounts, give it a name of its own: " + one.effect,
			}})
		}
	}
	return all
}

// sharedKeys warns of bridges whose jobs have the same idempotency keys for messages of the same IDs, although these
// may be different messages: a key says the name of the stream or topic, and not where it is.
func (c *relayConfig) sharedKeys() (all []brokerFinding) {
	names := slices.Sorted(maps.Keys(c.Bridges))
	for n, name := range names {
		for _, before := range names[:n] {
			one, other := c.Bridges[name], c.Bridges[before]
			if one.Stream+one.Topic != other.Stream+other.Topic || one.Kind != other.Kind || one.Tenant != other.Tenant ||
				one.isAt(other) {
				continue
			}
			all = append(all, brokerFinding{"bridge " + name, relay.Finding{
				Severity: relay.SeverityWarning,
				What: fmt.Sprintf("it has %s, kind and tenant as bridge %s has, at another server or with another login: of two messages with one ID, one becomes a job",
					one.Stream+one.Topic, before),
				Remedy: "unless each ID is of one message only, give it another kind or tenant",
			}})
		}
	}
	return all
}

// isAt reports whether two bridges have one server and account, as far as the file shows.
func (b bridgeSpec) isAt(other bridgeSpec) bool {
	switch {
	case b.NATS != nil && other.NATS != nil:
		return haveCommon(b.NATS.servers(), other.NATS.servers()) && b.NATS.account() == other.NATS.account()
	case b.Kafka != nil && other.Kafka != nil:
		return haveCommon(b.Kafka.servers(), other.Kafka.servers())
	}
	return false
}

// sharedStreams warns of topics that two sinks publish to one NATS server: an event has the same message id in both, so
// if one stream has both subjects, it drops the second message as a repeat. Which stream has a subject is not in the
// file, so it is no mistake of it.
func (c *relayConfig) sharedStreams() (all []brokerFinding) {
	topics := map[string][]string{}
	for _, r := range c.Routes {
		route := r.route()
		route.Destination = "{topic}"
		topics[r.To] = append(topics[r.To], route.Destinations()...) // with those of a preset
	}
	names := slices.Sorted(maps.Keys(topics))
	for n, a := range names {
		for _, b := range names[:n] {
			one, other := c.Sinks[a].NATS, c.Sinks[b].NATS
			if one == nil || other == nil || !haveCommon(one.servers(), other.servers()) {
				continue
			}
			both := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(topics[a]))), func(topic string) bool {
				return !slices.ContainsFunc(topics[b], func(other string) bool { return isSameTopic(topic, other) })
			})
			if len(both) == 0 {
				continue
			}
			unless := "unless their subjects are of different streams"
			if one.account() != other.account() {
				unless += ", or their logins of different accounts"
			}
			all = append(all, brokerFinding{a, relay.Finding{
				Severity: relay.SeverityWarning,
				What: fmt.Sprintf("sink %s publishes some of the topics %s to the same server, with the same message ids", b,
					strings.Join(both, ", ")),
				Remedy: unless + ", publish each topic to one sink: a stream drops the second message of an id as a repeat",
			}})
		}
	}
	return all
}

func haveCommon(a, b []string) bool {
	return slices.ContainsFunc(a, func(name string) bool { return slices.Contains(b, name) })
}

// isSameTopic reports whether two topics, or patterns such as order.*, have a topic in common.
func isSameTopic(a, b string) bool {
	a, isOpen := strings.CutSuffix(a, "*")
	b, isOther := strings.CutSuffix(b, "*")
	return a == b || isOpen && strings.HasPrefix(b, a) || isOther && strings.HasPrefix(a, b)
}

// servers returns host and port of each server.
func (n *natsSpec) servers() (all []string) {
	for _, address := range n.config().URLs {
		port := "4222"
		switch scheme, _, _ := strings.Cut(strings.ToLower(address), "://"); scheme {
		case "ws":
			port = "80"
		case "wss":
			port = "443"
		}
		all = append(all, serverOf(address, port))
	}
	return all
}

func (k *kafkaSpec) servers() (all []string) {
	for _, address := range k.config().Brokers {
		all = append(all, serverOf(address, "9092"))
	}
	return all
}

// account returns what determines the account.
func (n *natsSpec) account() string {
	return fmt.Sprintf("%q", []text{n.CredentialsFile, n.NKeyFile, n.Token, n.TokenFile, n.User, n.CertificateFile})
}

// serverOf returns host and port of a server's address, with the port if it names none.
func serverOf(address, port string) string {
	if _, rest, ok := strings.Cut(address, "://"); ok {
		address = rest
	}
	address = strings.ToLower(strings.TrimSuffix(address, "/"))
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(strings.Trim(address, "[]"), port)
	}
	return address
}

func (r routeSpec) route() relay.Route {
	return relay.Route{
		Topics: plain(r.Topics), Destination: r.Destination, CloudEvents: r.CloudEvents, OnRefused: r.OnRefused,
		Preset: r.Preset,
	}
}

// sinks opens the sinks with their routes, by name.
func (c *relayConfig) sinks() ([]relay.SinkConfig, error) {
	var all []relay.SinkConfig
	for _, name := range slices.Sorted(maps.Keys(c.Sinks)) {
		sink, err := c.Sinks[name].open()
		if err != nil {
			return nil, fmt.Errorf("sink %s: %w", name, err)
		}
		s := relay.SinkConfig{Name: name, Sink: sink, Begin: c.Sinks[name].Begin}
		if most := c.Sinks[name].MaxHeld; most != nil {
			s.MaxHeld = *most
		}
		for _, r := range c.Routes {
			if r.To == name {
				s.Routes = append(s.Routes, r.route())
			}
		}
		all = append(all, s)
	}
	return all, nil
}
