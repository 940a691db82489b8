package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/relay"
)

func writeRelayConfig(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestMistakesInARelayConfigNameFileAndLine(t *testing.T) {
	t.Setenv("RELAY_TEST_TOKEN", "s3cret")
	t.Setenv("RELAY_TEST_EMPTY", "")
	const sinks = "sinks:\n  a:\n    nats: {url: \"nats://h:1\"}\n"
	const routes = "routes:\n  - {topics: [\"*\"], to: a}\n"
	for name, test := range map[string]struct {
		content string
		want    []string
	}{
		"an unknown field":           {sinks + routes + "extra: 1\n", []string{"relay.yaml: line 6: unknown field extra"}},
		"an unknown field of a sink": {"sinks:\n  a:\n    nats: {url: \"nats://h:1\", replicas: 3}\n" + routes, []string{"line 3: unknown field replicas"}},
		"a kind that there is not":   {"sinks:\n  a:\n    pulsar: {}\n" + routes, []string{"line 3: unknown field pulsar"}},
		"a sink of no kind":          {"sinks:\n  a: {}\n" + routes, []string{"line 2: sinks.a: want exactly one of nats, kafka, amqp, redis and webhook"}},
		"a sink of two kinds":        {"sinks:\n  a: {nats: {url: \"nats://h:1\"}, redis: {url: \"redis://h:1/0\"}}\n" + routes, []string{"line 2: sinks.a: want exactly one of"}},
		"a network that is none":     {"sinks:\n  a: {webhook: {url: \"https://h\", allow: [\"10.0.0.0\"]}}\n" + routes, []string{`line 2: sinks.a.webhook.allow[0] is "10.0.0.0", want a network such as`}},
		"a secret that is none":      {"sinks:\n  a: {webhook: {url: \"https://h\", secrets: [\"${RELAY_TEST_TOKEN}\"]}}\n" + routes, []string{"line 2: sinks.a.webhook: ", "secret 1 is not whsec_"}},
		"no broker":                  {"sinks:\n  a: {kafka: {}}\n" + routes, []string{"line 2: sinks.a.kafka.brokers is empty"}},
		"an address of two": {
			"sinks:\n  a:\n    nats:\n      urls:\n        - nats://h:1\n        - nats://u:s3cret@h:1\n" + routes,
			[]string{"line 6: sinks.a.nats.urls[1] has credentials in it"},
		},
		"no sink":                    {routes, []string{"sinks: there is none", `line 2: routes[0].to: no sink is called "a"`}},
		"a sink twice":               {"sinks:\n  a: {nats: {url: \"nats://h:1\"}}\n  a: {nats: {url: \"nats://h:1\"}}\n" + routes, []string{`line 3: mapping key "a" already defined at line 2`}},
		"no route to a sink":         {sinks, []string{"line 3: sinks.a: no route leads to it"}},
		"a route to no sink":         {sinks + routes + "  - topics: [\"x\"]\n    to: b\n", []string{`line 7: routes[1].to: no sink is called "b"; there is a`}},
		"a template":                 {sinks + "routes:\n  - topics: [\"*\"]\n    to: a\n    destination: \"{sort}\"\n", []string{`line 7: routes[0].destination `, "{sort} is no placeholder"}},
		"a pattern":                  {sinks + "routes:\n  - {topics: [\"a*\"], to: a}\n", []string{`line 5: routes[0].topics pattern "a*"`}},
		"jobs of a topic":            {sinks + "routes:\n  - {topics: [\"order.*\"], to: a, destination: \"x.{kind}\"}\n", []string{`line 5: routes[0].topics pattern "order.*": the destination or the preset is for events of streamed jobs`}},
		"no address":                 {"sinks:\n  a: {nats: {}}\n" + routes, []string{"line 2: sinks.a.nats.urls is empty"}},
		"a variable that is not set": {"sinks:\n  a: {nats: {url: \"nats://h:1\", token: \"${RELAY_TEST_NONE}\"}}\n" + routes, []string{"line 2: the environment variable RELAY_TEST_NONE is not set"}},
		"a variable in a value":      {"source: \"s-${RELAY_TEST_TOKEN}\"\n" + sinks + routes, []string{"line 1: ${RELAY_TEST_TOKEN} is a part of a value"}},
		"rpc without a server":       {"rpc: {}\n", []string{"line 1: rpc: want nats, with the url of a server"}},
		"a prefix that is a pattern": {"presence:\n  nats: {url: \"nats://h:1\"}\n  subjectPrefix: \"a.>\"\n", []string{`line 3: presence.subjectPrefix is "a.>"`}},
		"an unknown field of rpc":    {"rpc: {nats: {url: \"nats://h:1\"}, prefix: x}\n", []string{"line 1: unknown field prefix"}},
		"credentials in its URL":     {"rpc: {nats: {url: \"nats://u:s3cret@h:1\"}}\n", []string{"line 1: rpc.nats.url has credentials in it"}},
		"a variable that is empty":   {"sinks:\n  a: {webhook: {url: \"https://h\", secretFile: \"${RELAY_TEST_EMPTY}\"}}\n" + routes, []string{"line 2: the environment variable RELAY_TEST_EMPTY is not set, or is empty"}},
		"not YAML":                   {"sinks: [\n", []string{"relay.yaml: "}},
		"a topic without a route": {sinks + "routes:\n  - {topics: [\"order.*\"], to: a}\ntopics:\n  - order.paid\n  - user.left\n", []string{
			"line 8: topics[1]: no route has user.left: it would be published nowhere",
		}},
		"topics of one name": {sinks + "routes:\n  - {topics: [\"*\"], to: a, destination: \"shop.{topic|token}\"}\ntopics: [order.paid, order_paid]\n", []string{
			"line 6: topics[1]: order.paid and order_paid have the same destination in sink a, shop.order_paid",
		}},
		"a bridge from nowhere": {"bridges:\n  b: {kind: k}\n", []string{"line 2: bridges.b: has no source: want nats or kafka"}},
		"a bridge to no kind":   {"bridges:\n  b: {kafka: {brokers: [\"h:1\"]}, topic: t}\n", []string{"line 2: bridges.b.kind "}},
		"a bridge's stream":     {"bridges:\n  b: {nats: {url: \"nats://h:1\"}, kind: k}\n", []string{`line 2: bridges.b.nats: `, `the Stream is ""`}},
		"a bridge of two":       {"bridges:\n  b: {kafka: {brokers: [\"h:1\"]}, topic: t, stream: S, kind: k}\n", []string{"stream, consumer and subjects are fields of nats"}},
		"a bridge's tenant":     {"bridges:\n  b: {kafka: {brokers: [\"h:1\"]}, topic: t, kind: k, tenant: x}\n", []string{`line 2: bridges.b.tenant is "x"`}},
		"a bridge without a name": {"bridges:\n  b: {kafka: {brokers: [\"h:1\"]}, topic: t, kind: k}\n  c: {nats: {url: \"nats://h:1\"}, stream: S, kind: k}\n", []string{
			"line 2: bridges.b.group is missing", "line 3: bridges.c.consumer is missing: want a name that no other service has, such as SERVICE-c",
		}},
		"one consumer of two bridges": {"bridges:\n  b: {nats: {url: \"nats://h:1\"}, stream: S, consumer: d, kind: k}\n  c: {nats: {urls: [\"tls://i:1\", \"tls://H:1\"]}, stream: S, consumer: d, kind: k}\n", []string{
			`line 3: bridges.c.consumer is "d", as in bridges.b, at the same server`,
		}},
		"one consumer at the port that is the default": {"bridges:\n  b: {nats: {url: \"nats://h\"}, stream: S, consumer: d, kind: k}\n  c: {nats: {url: \"nats://h:4222\"}, stream: S, consumer: d, kind: k}\n", []string{
			`line 3: bridges.c.consumer is "d", as in bridges.b, at the same server`,
		}},
		"one group of two bridges": {"bridges:\n  b: {kafka: {brokers: [\"h:1\"]}, topic: t, group: d, kind: k}\n  c: {kafka: {brokers: [\"i:1\", \"h:1\"]}, topic: t, group: d, kind: k}\n", []string{
			`line 3: bridges.c.group is "d", as in bridges.b, at the same server`,
		}},
		"one transaction of two sinks": {"sinks:\n  a: {kafka: {brokers: [\"h:1\"], transactionalId: x}}\n  b: {kafka: {brokers: [\"h:1\"], transactionalId: x}}\n" + routes + "  - {topics: [\"x\"], to: b}\n", []string{
			`line 3: sinks.b.kafka.transactionalId is "x", as in sinks.a, at the same server`,
		}},
		"two documents":               {sinks + routes + "---\n" + sinks + routes, []string{"line 6: a second document"}},
		"a key that adds parameters":  {"sinks:\n  a: {webhook: {url: \"https://h\"}}\nroutes:\n  - {topics: [\"*\"], to: a, destination: \"orders/{key}\"}\n", []string{"line 4: routes[0].destination ", "{key} may have a ? in it"}},
		"no exchange":                 {"sinks:\n  a: {amqp: {url: \"amqp://h\", user: u}}\n" + routes, []string{"line 4: routes[0].destination ", "want an exchange, / and a routing key"}},
		"a topic of Kafka's":          {"sinks:\n  a: {kafka: {brokers: [\"h:1\"]}}\nroutes:\n  - {topics: [\"*\"], to: a, destination: \"shop:{topic}\"}\n", []string{"line 4: routes[0].destination ", `topic "shop:x"`}},
		"no room for what is refused": {"sinks:\n  a: {nats: {url: \"nats://h:1\"}, maxHeld: 0}\n" + routes, []string{"line 2: sinks.a.maxHeld is 0: want at least 1"}},
		"no place to begin":           {"sinks:\n  a: {nats: {url: \"nats://h:1\"},\n    begin: newest}\n" + routes, []string{`line 3: sinks.a.begin is "newest", want oldest or now`}},
		"a list":                      {"- a\n", []string{"line 1: "}},
	} {
		t.Run(name, func(t *testing.T) {
			r := posthaste(t, env{}, "", "relay", "check", "--relay-config", writeRelayConfig(t, test.content))
			if r.code != exitUsage {
				t.Errorf("exit status %d, want %d", r.code, exitUsage)
			}
			for _, want := range test.want {
				if !strings.Contains(r.errOut, want) {
					t.Errorf("printed %q, want %q", r.errOut, want)
				}
			}
			if strings.Contains(r.errOut, "s3cret") {
				t.Errorf("printed %q, which has a secret", r.errOut)
			}
			if name == "a bridge without a name" && strings.Count(r.errOut, "\n") > 2 {
				t.Errorf("printed %q, more than one line for each bridge", r.errOut)
			}
			if strings.Contains(r.errOut, "main.") {
				t.Errorf("printed %q, which names a type of ours", r.errOut)
			}
		})
	}
	all := "sinks:\n  n: {nats: {url: \"nats://h:1\"}}\n  k: {kafka: {brokers: [\"h:1\"], mechanism: SCRAM-SHA-512, user: u, passwordFile: f}}\n" +
		"  a: {amqp: {url: \"amqp://h:1/v\", user: u, password: \"${RELAY_TEST_TOKEN}\", pipelined: true}}\n  r: {maxHeld: 7, begin: now, redis: {url: \"redis://h:1/0\"}}\n" +
		"  w: {webhook: {url: \"https://h\", hosts: [\"i\"], secretFile: f, allow: [\"10.0.0.0/8\"], concurrency: 3, timeout: 2s, caFile: c}}\nroutes:\n"
	for _, to := range []string{"n", "k", "r", "w"} {
		all += "  - {topics: [\"*\"], to: " + to + "}\n"
	}
	all += "  - {topics: [\"*\"], to: a, destination: \"{topic}\"}\n"
	if c, err := parseRelayConfig(writeRelayConfig(t, all)); err != nil || !c.Sinks["a"].AMQP.Pipelined || c.Sinks["a"].AMQP.Password != "s3cret" {
		t.Errorf("sinks of every kind: %+v, %v", c, err)
	} else if sinks, err := c.sinks(); err != nil || sinks[3].Name != "r" || sinks[3].MaxHeld != 7 || sinks[0].MaxHeld != 0 ||
		sinks[3].Begin != relay.BeginNow || sinks[0].Begin != "" {
		t.Errorf("they become %+v, %v", sinks, err)
	}
	t.Setenv("RELAY_TEST_NAME", "shop.paid")
	lists := "sinks:\n  a: {nats: {url: \"nats://h:1\"}}\nroutes:\n  - {topics: [\"${RELAY_TEST_NAME}\"], to: a}\ntopics: [\"${RELAY_TEST_NAME}\"]\n" +
		"bridges:\n  b: {nats: {url: \"nats://h:1\"}, stream: S, consumer: d, kind: k, subjects: [\"${RELAY_TEST_NAME}\"]}\n"
	if c, err := parseRelayConfig(writeRelayConfig(t, lists)); err != nil || c.Routes[0].Topics[0] != "shop.paid" || c.Topics[0] != "shop.paid" || c.Bridges["b"].Subjects[0] != "shop.paid" {
		t.Errorf("variables in lists: %+v, %v", c, err)
	}
	good := "sinks:\n  a:\n    nats: {urls: [\"nats://h:1\", \"nats://i:1\"], token: \"${RELAY_TEST_TOKEN}\"}\n" + routes
	c, err := parseRelayConfig(writeRelayConfig(t, good))
	if err != nil || c.Sinks["a"].NATS.Token != "s3cret" || len(c.Sinks["a"].NATS.URLs) != 2 {
		t.Errorf("got %+v, %v", c, err)
	}
}

// A name at one broker that two sinks or bridges have is a mistake, unless they may mean different things by it.
func TestNamesAtOneBrokerAreCompared(t *testing.T) {
	apart := "bridges:\n  b: {nats: {url: \"nats://h:1\"}, stream: S, consumer: d, kind: k}\n" +
		"  c: {nats: {url: \"nats://h:1\"}, stream: T, consumer: d, kind: k}\n" +
		"  d: {kafka: {brokers: [\"h:1\"]}, topic: t, group: d, kind: k}\n  e: {kafka: {brokers: [\"i:1\"]}, topic: t, group: d, kind: k}\n"
	apart += "  f: {kafka: {brokers: [\"k:1\"]}, topic: t, group: d, kind: l}\n  g: {kafka: {brokers: [\"i:1\"]}, topic: t, group: e, kind: k}\n"
	if c, err := parseRelayConfig(writeRelayConfig(t, apart)); err != nil {
		t.Errorf("names of other streams and servers: %v", err)
	} else if f := c.sharedKeys(); len(f) != 2 || f[0].of != "bridge e" || f[1].of != "bridge g" ||
		!strings.HasPrefix(f[1].What, "it has t, kind and tenant as bridge d has") {
		t.Errorf("of bridges whose messages may have the same keys: %+v, want one finding of e and one of g", f)
	}
	shared := "sinks: {a: {nats: {url: \"nats://h:4222\"}}, b: {nats: {urls: [\"nats://i:1\", \"nats://h\"]}}, c: {nats: {url: \"nats://k:1\"}}}\n" +
		"routes:\n  - {topics: [\"order.*\"], to: a}\n  - {topics: [\"order.paid\"], to: b}\n" +
		"  - {topics: [\"user.left\"], to: b}\n  - {topics: [\"*\"], to: c}\n  - {topics: [\"order.sent\", \"job.*\"], to: a}\n" +
		"  - {preset: trellis, to: b}\n"
	if c, err := parseRelayConfig(writeRelayConfig(t, shared)); err != nil {
		t.Error(err)
	} else if f := c.sharedStreams(); len(f) != 1 || f[0].of != "b" || !strings.HasPrefix(f[0].What, "sink a publishes some of the topics job.*, order.paid") {
		t.Errorf("of sinks that share a server and topics: %+v, want one finding of b", f)
	}
	for named, open := range map[string]string{
		"nats://h:4222": "nats://h", "tls://h:4222": "tls://H/", "ws://h:80": "WS://h", "wss://h:443": "wss://h/",
		"wss://[::1]:443": "wss://[::1]",
	} {
		of := func(url string) []string { return (&natsSpec{URL: text(url)}).servers() }
		if one, other := of(named), of(open); !slices.Equal(one, other) {
			t.Errorf("%s is the server %q, and %s is %q", named, one, open, other)
		}
	}
	accounts := "bridges:\n  b: {nats: {url: \"nats://h\", credentialsFile: one}, stream: S, consumer: d, kind: k}\n" +
		"  c: {nats: {url: \"nats://h\", credentialsFile: two}, stream: S, consumer: d, kind: k}\n"
	if c, err := parseRelayConfig(writeRelayConfig(t, accounts)); err != nil {
		t.Errorf("bridges of two accounts: %v", err)
	} else if f := c.sharedNames(); len(f) != 1 || f[0].of != "bridge c" || f[0].Severity != relay.SeverityWarning {
		t.Errorf("of bridges with one consumer and two logins: %+v, want one warning of c", f)
	}
	three := accounts + "  d: {nats: {url: \"nats://h\", credentialsFile: two}, stream: S, consumer: d, kind: k}\n"
	if _, err := parseRelayConfig(writeRelayConfig(t, three)); err == nil || !strings.Contains(err.Error(), "bridges.d.consumer") {
		t.Errorf("the second and the third of three bridges have one consumer and one login: %v", err)
	}
}

func TestAMissingRelayConfigIsAMistake(t *testing.T) {
	if r := posthaste(t, env{}, "", "relay", "check", "--relay-config", "/none/relay.yaml"); r.code != exitUsage || !strings.Contains(r.errOut, "/none/relay.yaml") {
		t.Errorf("got %+v", r)
	}
	if r := posthaste(t, env{}, "", "relay", "check"); r.code != exitUsage || !strings.Contains(r.errOut, "--relay-config FILE") {
		t.Errorf("got %+v", r)
	}
}
