package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/posthaste-dev/posthaste/outbox"
)

// places collects the mistakes of a file, each with its line and field.
type places struct {
	file string
	root *yaml.Node
	errs []error
}

// add adds a mistake in the field at the end of the path.
func (p *places) add(path []any, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("%s: line %d: %s%s", p.file, p.line(path), fieldName(path), fmt.Sprintf(format, args...)))
}

// addAll adds every mistake in err, which is about the mapping at the path. An [outbox.InvalidError] is about a field
// of a Go struct: its mistake is in the key of that name, in the mapping or in one around it.
func (p *places) addAll(path []any, err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			p.addAll(path, one)
		}
		return
	}
	if field, ok := err.(*outbox.InvalidError); ok {
		p.add(p.keyOf(path, field.Field), " %s", field.Reason)
		return
	}
	if inner := errors.Unwrap(err); inner != nil && isAboutFields(inner) {
		p.addAll(path, inner)
		return
	}
	if err != nil {
		p.add(path, ": %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

// below returns the path with the only one of the keys that is there, or the path itself.
func (p *places) below(path []any, keys ...string) []any {
	all := slices.DeleteFunc(keys, func(key string) bool { return child(p.find(path), key) == nil })
	if len(all) != 1 {
		return path
	}
	return append(path[:len(path):len(path)], all[0])
}

// isAboutFields reports whether an error is an [outbox.InvalidError], or a list that contains one.
func isAboutFields(err error) bool {
	_, ok := errors.AsType[*outbox.InvalidError](err)
	return ok
}

// keyOf returns the path of a Go struct's field, such as URLs[1]: below the innermost mapping that has its key, else
// below the path itself.
func (p *places) keyOf(path []any, field string) []any {
	field = strings.TrimSuffix(field[strings.LastIndexByte(field, '.')+1:], "()") // queue for Options.Queue
	name, index, _ := strings.Cut(field, "[")
	at := func(mapping []any, key string) []any {
		found := append(mapping[:len(mapping):len(mapping)], key)
		var i int
		if _, err := fmt.Sscanf(index, "%d]", &i); err == nil && p.find(append(found, i)) != nil {
			found = append(found, i)
		}
		return found
	}
	for mapping := path; len(mapping) > 0; mapping = mapping[:len(mapping)-1] {
		for _, word := range []string{name, strings.TrimSuffix(name, "s")} { // url stands for urls
			if key := keyLike(p.find(mapping), word); key != "" {
				return at(mapping, key)
			}
		}
	}
	return at(path, lowerCamel(name))
}

// lowerCamel returns a field's name as the file spells it: urls for URLs, and maxHeld for MaxHeld.
func lowerCamel(name string) string {
	if initials := strings.TrimSuffix(name, "s"); initials == strings.ToUpper(initials) {
		return strings.ToLower(name)
	}
	return strings.ToLower(name[:1]) + name[1:]
}

// keyLike returns the key of a mapping that is the name but for its capitals, or "".
func keyLike(mapping *yaml.Node, name string) string {
	if mapping == nil || mapping.Kind != yaml.MappingNode {
		return ""
	}
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if strings.EqualFold(mapping.Content[i].Value, name) {
			return mapping.Content[i].Value
		}
	}
	return ""
}

// fieldName returns a path as text, such as sinks.a.nats.urls[1].
func fieldName(path []any) string {
	var b strings.Builder
	for i, step := range path {
		if _, ok := step.(int); ok {
			fmt.Fprintf(&b, "[%d]", step)
			continue
		}
		if i > 0 {
			b.WriteByte('.')
		}
		fmt.Fprint(&b, step)
	}
	return b.String()
}

// find returns the value at the path, or nil.
func (p *places) find(path []any) *yaml.Node {
	node := p.top()
	for _, step := range path {
		node = child(node, step)
	}
	return node
}

// line returns the line of the value at the path, or of the last existing one on the way to it.
func (p *places) line(path []any) int {
	for ; len(path) > 0; path = path[:len(path)-1] {
		if node := p.find(path); node != nil {
			return node.Line
		}
	}
	return max(1, p.top().Line)
}

func (p *places) top() *yaml.Node {
	if p.root.Kind == yaml.DocumentNode && len(p.root.Content) > 0 {
		return p.root.Content[0]
	}
	return p.root
}

// child returns the value of a key, or of an index; nil where the node is nil or has none.
func child(node *yaml.Node, step any) *yaml.Node {
	if node == nil {
		return nil
	}
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
