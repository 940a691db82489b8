package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/posthaste-dev/posthaste/relay"
)

// relayConfig is the file relay.yaml. Unknown fields are mistakes.
type relayConfig struct {
	Source text                `yaml:"source"`
	Sinks  map[string]sinkSpec `yaml:"sinks"`
	Routes []routeSpec         `yaml:"routes"`
	Topics []string            `yaml:"topics"` // the published topics: each needs a route and a name of its own

	RPC      *natsService `yaml:"rpc"`
	Presence *natsService `yaml:"presence"`

	Bridges map[string]bridgeSpec `yaml:"bridges"`

	file      string
	variables []string // from which it takes values
}

type routeSpec struct {
	Topics      []string          `yaml:"topics"`
	To          string            `yaml:"to"`
	Destination string            `yaml:"destination"`
	CloudEvents relay.CloudEvents `yaml:"cloudEvents"`
	OnRefused   relay.OnRefused   `yaml:"onRefused"`
	Preset      relay.Preset      `yaml:"preset"`
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
	var errs []error
	fault := func(path []any, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: line %d: %s", c.file, lineOf(root, path), fmt.Sprintf(format, args...)))
	}
	if len(c.Sinks) == 0 && len(c.Bridges) == 0 && c.RPC == nil && c.Presence == nil {
		fault([]any{"sinks"}, "sinks: there is none, and no bridges either")
	}
	for _, s := range []struct {
		name    string
		service *natsService
	}{{"rpc", c.RPC}, {"presence", c.Presence}} {
		if err := s.service.validate(); err != nil {
			fault([]any{s.name}, "%s: %s", s.name, strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	led := map[string]bool{}
	routes := map[string][]relay.Route{}
	for i, r := range c.Routes {
		path := []any{"routes", i}
		if _, ok := c.Sinks[r.To]; !ok {
			fault(append(path, "to"), "routes[%d].to: no sink is called %q; there is %s", i, r.To,
				strings.Join(slices.Sorted(maps.Keys(c.Sinks)), ", "))
		}
		led[r.To] = true
		routes[r.To] = append(routes[r.To], r.route())
		if err := r.route().Validate(); err != nil {
			fault(path, "routes[%d]: %s", i, strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	for _, mistake := range relay.CheckTopics(c.Topics, routes) {
		fault([]any{"topics", mistake.Index}, "topics[%d]: %s", mistake.Index, mistake.Reason)
	}
	c.validateSinks(led, fault)
	for _, name := range slices.Sorted(maps.Keys(c.Bridges)) {
		b := c.Bridges[name]
		_, err := b.config(name)
		source, openErr := b.open(name)
		if err := errors.Join(err, openErr); err != nil {
			fault([]any{"bridges", name}, "bridges.%s: %s", name, strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		if openErr == nil {
			_ = source.Close()
		}
	}
	return errors.Join(errs...)
}

// validateSinks opens each sink, without connecting, and checks the routes that lead to it.
func (c *relayConfig) validateSinks(led map[string]bool, fault func(path []any, format string, args ...any)) {
	for _, name := range slices.Sorted(maps.Keys(c.Sinks)) {
		path := []any{"sinks", name}
		if err := relay.CheckName(name); err != nil {
			fault(path, "sinks.%s: %s", name, err)
		}
		if !led[name] {
			fault(path, "sinks.%s: no route leads to it", name)
		}
		sink, err := c.Sinks[name].open()
		if err != nil {
			fault(path, "sinks.%s: %s", name, strings.ReplaceAll(err.Error(), "\n", "; "))
			continue
		}
		if checker, ok := sink.(relay.RouteChecker); ok {
			for i, r := range c.Routes {
				if err := checker.CheckRoute(r.route()); r.To == name && err != nil {
					fault([]any{"routes", i}, "routes[%d]: %s", i, err)
				}
			}
		}
		_ = sink.Close() // it has not connected
	}
}

// lineOf returns the line of a field, or of the last existing field on the path to it.
func lineOf(node *yaml.Node, path []any) int {
	if node.Kind == yaml.DocumentNode && len(node.Content) > 0 {
		node = node.Content[0]
	}
	line := max(1, node.Line)
	for _, step := range path {
		next := child(node, step)
		if next == nil {
			return line
		}
		node, line = next, next.Line
	}
	return line
}

func child(node *yaml.Node, step any) *yaml.Node {
	switch step := step.(type) {
	case int:
		if node.Kind == yaml.SequenceNode && step < len(node.Content) {
			return node.Content[step]
		}
	case string:
		for i := 0; node.Kind == yaml.MappingNode && i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == step {
				return node.Content[i+1]
			}
		}
	}
	return nil
}

func (r routeSpec) route() relay.Route {
	return relay.Route{
		Topics: r.Topics, Destination: r.Destination, CloudEvents: r.CloudEvents, OnRefused: r.OnRefused,
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
		s := relay.SinkConfig{Name: name, Sink: sink}
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
