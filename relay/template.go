package relay

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// A template makes the destination of an event's message: text with placeholders such as {topic} and {key|token}.
type template struct {
	text  string
	parts []part
}

type part struct {
	text   string // before the placeholder
	name   string // of the placeholder
	value  func(*Event) (string, error)
	filter func(string) string
	hashes bool // the filter is |hash
}

// parseTemplate parses a template. Its errors name the place of the mistake.
func parseTemplate(text string) (template, error) {
	t := template{text: text}
	rest := text
	for {
		before, after, found := strings.Cut(rest, "{")
		if strings.Contains(before, "}") {
			return t, fmt.Errorf("template %q: a } at byte %d closes nothing", text,
				len(text)-len(rest)+strings.Index(before, "}"))
		}
		if !found {
			t.parts = append(t.parts, part{text: before})
			return t, nil
		}
		name, remaining, closed := strings.Cut(after, "}")
		if !closed {
			return t, fmt.Errorf("template %q: the { at byte %d is not closed", text, len(text)-len(after)-1)
		}
		p, err := parsePlaceholder(name)
		if err != nil {
			return t, fmt.Errorf("template %q: %w", text, err)
		}
		p.text = before
		t.parts = append(t.parts, p)
		rest = remaining
	}
}

func parsePlaceholder(text string) (p part, err error) {
	name, filter, filtered := strings.Cut(text, "|")
	p.name = name
	switch name {
	case "topic":
		p.value = func(e *Event) (string, error) { return e.Topic, nil }
	case "tenant":
		p.value = func(e *Event) (string, error) { return e.Tenant.String(), nil }
	case "id":
		p.value = func(e *Event) (string, error) { return e.ID.String(), nil }
	case "key":
		p.value = func(e *Event) (string, error) { return e.Key, nil }
	case "queue", "kind", "event":
		p.value = jobField(name)
	default:
		header, is := strings.CutPrefix(name, "header.")
		if !is || header == "" {
			return p, fmt.Errorf(
				"{%s} is no placeholder: there are {topic}, {tenant}, {key}, {id} and {header.NAME}, and of jobs {queue}, {kind} and {event}", text)
		}
		p.value = func(e *Event) (string, error) {
			value, ok := e.Headers[header]
			if !ok {
				return "", fmt.Errorf("the event has no header %q", header)
			}
			return value, nil
		}
	}
	if !filtered {
		return p, nil
	}
	p.filter, err = parseFilter(filter)
	p.hashes = strings.HasPrefix(filter, "hash(")
	return p, err
}

func parseFilter(text string) (func(string) string, error) {
	name, argument, hasArgument := strings.Cut(strings.TrimSuffix(text, ")"), "(")
	switch {
	case text == "token":
		return Token, nil
	case text == "kafka":
		return kafkaName, nil
	case text == "path":
		return pathSegment, nil
	case name == "hash" && hasArgument && strings.HasSuffix(text, ")"):
		n, err := strconv.ParseUint(argument, 10, 32)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("|%s: want a number of at least 1 between the brackets", text)
		}
		return func(s string) string {
			sum := fnv.New64a()
			_, _ = sum.Write([]byte(s))
			return strconv.FormatUint(sum.Sum64()%n, 10)
		}, nil
	}
	return nil, fmt.Errorf("|%s is no filter: there are |token, |kafka, |path and |hash(N)", text)
}

// Token returns s as one token of a NATS subject, as |token does in a template: dots, wildcards and spaces become _.
func Token(s string) string {
	if s == "" {
		return "_"
	}
	return strings.Map(func(r rune) rune {
		if r == '.' || r == '*' || r == '>' || r <= ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, s)
}

// kafkaName returns s as a valid topic name.
func kafkaName(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '_'
	}, s)
	return s[:min(len(s), 249)]
}

// spells reports whether a filter encodes the value of a placeholder. |hash does not count: it is there to map many
// values to one.
func (t *template) spells(placeholder string) bool {
	return slices.ContainsFunc(t.parts,
		func(p part) bool { return p.name == placeholder && p.filter != nil && !p.hashes })
}

// pathSegment returns s as one segment of a URL's path. It never contains %2F, because some servers read that as a
// slash.
func pathSegment(s string) string {
	if name, _, _ := strings.Cut(s, ";"); s == "" || name == "." || name == ".." {
		s = "_" + s
	}
	return url.PathEscape(strings.Map(func(r rune) rune {
		if r == '/' || r == '\\' || r < ' ' || r == 0x7f {
			return '_'
		}
		return r
	}, s))
}

// Unfiltered returns the destination's placeholders that an event may fill with any text and that no filter encodes. It
// leaves out one at the beginning: that counts as if the event set the destination.
func (r Route) Unfiltered() (all []string) {
	t, err := parseTemplate(cmp.Or(r.Destination, "{topic}"))
	if err != nil {
		return nil
	}
	for i, p := range t.parts {
		if any := p.name == "key" || strings.HasPrefix(p.name, "header."); any && p.filter == nil && (i > 0 ||
			p.text != "") {
			all = append(all, "{"+p.name+"}")
		}
	}
	return all
}

// Destinations returns the names that the route's templates produce, as far as they are known without an event: a *
// stands for what events fill in.
func (r Route) Destinations() (all []string) {
	r, unknown := r.withPreset()
	t, err := parseTemplate(cmp.Or(r.Destination, "{topic}"))
	if err != nil || unknown != nil {
		return nil
	}
	for _, topic := range r.Topics {
		var b strings.Builder
		for i := range t.parts {
			p := &t.parts[i]
			b.WriteString(p.text)
			switch {
			case p.value == nil:
			case p.name == "topic" && p.filter == nil:
				b.WriteString(topic)
			case p.name == "topic" && !strings.Contains(topic, "*"):
				b.WriteString(p.filter(topic))
			default:
				b.WriteByte('*')
			}
		}
		all = append(all, b.String())
	}
	return all
}

// isOfJobs reports whether only events of streamed jobs have what the template is filled with.
func (t *template) isOfJobs() bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.name == "queue" || p.name == "kind" || p.name == "event" })
}

// fill returns the destination of an event.
func (t *template) fill(e *Event) (string, error) {
	if len(t.parts) == 1 {
		return t.parts[0].text, nil
	}
	var b strings.Builder
	for i := range t.parts {
		p := &t.parts[i]
		b.WriteString(p.text)
		if p.value == nil {
			continue
		}
		value, err := p.value(e)
		if err != nil {
			return "", fmt.Errorf("destination %q: %w", t.text, err)
		}
		if p.filter != nil {
			value = p.filter(value)
		}
		b.WriteString(value)
	}
	if b.Len() == 0 {
		return "", errors.New("destination " + strconv.Quote(t.text) + " is empty for this event")
	}
	return b.String(), nil
}
