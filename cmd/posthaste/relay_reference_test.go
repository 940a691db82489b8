package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

const relayPageIntro = `# relay.yaml

For people who configure the relay, bridges, and jobs over NATS: every field of the file, generated from the program.
[The relay](../operate/relay.md) has examples and explains routes, [sinks](../operate/sinks.md) each broker. An unknown
field stops the start, with its line. ` + "`${NAME}`" + ` as a whole value, where the type permits it, is replaced by that
environment variable, which must be set.
`

// relaySections are the mappings of the file, in the order of the page.
var relaySections = []struct {
	heading string
	of      any
}{
	{"The file", relayConfig{}},
	{"`sinks.NAME`", sinkSpec{}},
	{"`sinks.NAME.nats`", natsSpec{}},
	{"`sinks.NAME.kafka`", kafkaSpec{}},
	{"`sinks.NAME.amqp`", amqpSpec{}},
	{"`sinks.NAME.redis`", redisSpec{}},
	{"`sinks.NAME.webhook`", webhookSpec{}},
	{"`routes`", routeSpec{}},
	{"`bridges.NAME`", bridgeSpec{}},
	{"`rpc` and `presence`", natsService{}},
}

// invalidValues are files with a value that its field does not accept: the error names those that it does.
var invalidValues = map[string]string{
	"begin":       "sinks: {a: {redis: {url: \"redis://h:1\"}, begin: end}}",
	"maxHeld":     "sinks: {a: {redis: {url: \"redis://h:1\"}, maxHeld: -1}}",
	"maxBytes":    "sinks: {a: {kafka: {brokers: [\"h:1\"], maxBytes: -1}}}",
	"concurrency": "sinks: {a: {webhook: {url: \"https://h\", concurrency: -1}}}",
	"timeout":     "sinks: {a: {webhook: {url: \"https://h\", timeout: -1s}}}",
	"maxQueued":   "bridges: {a: {kafka: {brokers: [\"h:1\"]}, topic: t, group: g, kind: k, maxQueued: -1}}",
}

// The reference of relay.yaml is generated from the types that the file is decoded into, and from their comments.
func TestRelayReferenceIsWhatTheProgramDecodes(t *testing.T) {
	t.Parallel()
	meanings := fieldComments(t)
	var b strings.Builder
	b.WriteString(relayPageIntro)
	for _, section := range relaySections {
		fmt.Fprintf(&b, "\n## %s\n\n| field | type | default | accepts | meaning |\n| --- | --- | --- | --- | --- |\n", section.heading)
		relayFields(t, &b, reflect.TypeOf(section.of), meanings)
	}
	const path = "../../docs/reference/relay-config.md"
	if *updateReference {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != b.String() {
		t.Errorf("docs/reference/relay-config.md is not what the program decodes, make docs-reference writes it (%v)", err)
		for line := range strings.Lines(b.String()) {
			if !strings.Contains(string(got), line) {
				t.Errorf("it lacks: %s", line)
			}
		}
	}
}

// relayFields writes a row for each field, those of embedded types included.
func relayFields(t *testing.T, b *strings.Builder, of reflect.Type, meanings map[string]string) {
	t.Helper()
	for field := range of.Fields() {
		if field.Anonymous {
			relayFields(t, b, field.Type, meanings)
			continue
		}
		name := field.Tag.Get("yaml")
		if name == "" {
			continue // the file does not set it
		}
		meaning := meanings[of.Name()+"."+field.Name]
		if meaning == "" {
			t.Errorf("%s.%s has no comment", of.Name(), field.Name)
		}
		fallback := "none"
		if m := regexp.MustCompile(`^(.*?) ?\(default: (.*)\)$`).FindStringSubmatch(meaning); m != nil {
			meaning, fallback = m[1], m[2]
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", name, yamlType(field.Type), cell(fallback), cell(acceptedIn(t, name, field.Type)), cell(meaning))
	}
}

// yamlType names a type as people write it in YAML.
func yamlType(of reflect.Type) string {
	switch of.Kind() {
	case reflect.Pointer:
		return yamlType(of.Elem())
	case reflect.Slice:
		return "list of " + yamlType(of.Elem())
	case reflect.Map:
		return "mapping by name"
	case reflect.Struct:
		return "mapping"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "number"
	case reflect.Int64:
		return "duration"
	}
	if of == reflect.TypeFor[text]() {
		return "text or `${NAME}`"
	}
	return "text"
}

// acceptedIn returns which values a field accepts, as the program words it when it refuses another.
func acceptedIn(t *testing.T, name string, of reflect.Type) string {
	t.Helper()
	if kind := yamlType(of); kind != "number" && kind != "duration" && invalidValues[name] == "" {
		return ""
	}
	_, err := parseRelayConfig(writeRelayConfig(t, invalidValues[name]))
	if err == nil {
		t.Fatalf("a file whose %s is invalid is taken", name)
	}
	m := regexp.MustCompile(`(?i)` + name + `.* want (.*)`).FindStringSubmatch(err.Error())
	if m == nil {
		t.Fatalf("the error does not name what %s accepts: %v", name, err)
	}
	return m[1]
}

// fieldComments returns the comments of the types' fields, by type and name.
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, file := range []string{"relay_file.go", "relay_sinks.go", "relay_bridges.go", "nats.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, is := n.(*ast.TypeSpec)
			if !is {
				return true
			}
			if of, is := spec.Type.(*ast.StructType); is {
				for _, field := range of.Fields.List {
					for _, name := range field.Names {
						all[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(field.Doc.Text()+field.Comment.Text()), " ")
					}
				}
			}
			return true
		})
	}
	return all
}
