package api

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
)

// maxDepth limits nested values in a body.
const maxDepth = 64

// shape lists the members that an object may have; nil means any value. It is made from the schema of a body, so that
// names are compared exactly: encoding/json and huma accept KIND for kind.
type shape struct {
	members map[string]*shape // nil means any
	element *shape            // of an array or of a map
	form    form              // of a number or a string
	instead string            // advice about an empty value, which is refused; "" accepts one, see refuseEmpty
}

// unshaped stands for a place that the schema does not know, and will refuse.
var unshaped = &shape{}

// shapeOf returns the shape of a schema that does not refer to itself; nil if it accepts anything.
func shapeOf(registry huma.Registry, s *huma.Schema) *shape {
	if s == nil {
		return nil
	}
	var of reflect.Type
	if s.Ref != "" {
		of, s = registry.TypeFromRef(s.Ref), registry.SchemaFromRef(s.Ref)
	}
	switch {
	case s.Type == huma.TypeArray:
		return &shape{element: shapeOf(registry, s.Items)}
	case s.Type == huma.TypeObject && len(s.Properties) > 0:
		sh := &shape{members: map[string]*shape{}}
		for name, property := range s.Properties {
			sh.members[name] = shapeOf(registry, property)
		}
		for name, instead := range refusedEmpty(of) {
			sh.members[name].refuseEmpty(instead)
		}
		return sh
	case s.Type == huma.TypeObject:
		values, _ := s.AdditionalProperties.(*huma.Schema)
		return &shape{element: shapeOf(registry, values)}
	case s.Type == "":
		return nil
	}
	return &shape{form: formOf(s)}
}

// checkJSON scans one JSON value and refuses what encoding/json accepts: duplicate members (at any depth, also by
// escapes), members that the shape does not have, invalid UTF-8, NUL and lone surrogates in strings, values nested
// deeper than 64, and anything after the value. It returns nil, or what is wrong and where; and, if the body can be
// decoded, the values in it that do not have their form.
func checkJSON(data []byte, sh *shape) (fault *Fault, misfits []Fault) {
	s := scanner{data: data}
	s.space()
	if s.value(sh, 0) {
		if s.space(); s.at < len(s.data) {
			s.path = nil
			s.fail("has %s after the value, at byte %d", s.shown(), s.at)
		}
	}
	return s.fault, s.misfits
}

type scanner struct {
	data    []byte
	at      int
	path    []string // to the current value
	fault   *Fault
	misfits []Fault
}

// fail records the mistake and ends the scan.
func (s *scanner) fail(format string, args ...any) bool {
	s.fault = &Fault{Pointer: s.pointer(), Detail: fmt.Sprintf(format, args...)}
	return false
}

// shown returns the current byte, for a message.
func (s *scanner) shown() string {
	if s.at >= len(s.data) {
		return "the end"
	}
	return strconv.QuoteToASCII(string(s.data[s.at : s.at+1]))
}

func (s *scanner) space() {
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}

// take consumes one byte if it equals c.
func (s *scanner) take(c byte) bool {
	if s.at < len(s.data) && s.data[s.at] == c {
		s.at++
		return true
	}
	return false
}

func (s *scanner) value(sh *shape, depth int) bool {
	if depth > maxDepth {
		return s.fail("is nested deeper than %d values", maxDepth)
	}
	if s.at >= len(s.data) {
		return s.fail("ends where a value is wanted, at byte %d", s.at)
	}
	switch c := s.data[s.at]; {
	case c == '{':
		return s.object(sh, depth)
	case c == '[':
		return s.array(sh, depth)
	case c == '"':
		text, ok := s.text("the string")
		s.textFits(sh, text)
		return ok
	case c == '-' || c >= '0' && c <= '9':
		start := s.at
		ok := s.number()
		s.numberFits(sh, string(s.data[start:s.at]))
		return ok
	}
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(s.data[s.at:], []byte(word)) {
			s.at += len(word)
			return true
		}
	}
	return s.fail("has %s where a value is wanted, at byte %d", s.shown(), s.at)
}

func (s *scanner) object(sh *shape, depth int) bool {
	s.at++
	var seen names
	for first := true; ; first = false {
		s.space()
		if first && s.take('}') {
			return true
		}
		if s.at >= len(s.data) || s.data[s.at] != '"' {
			return s.fail("has %s where a name is wanted, at byte %d", s.shown(), s.at)
		}
		text, ok := s.text("a name")
		if !ok {
			return false
		}
		name := string(text)
		s.path = append(s.path, name)
		member, known := sh.member(name)
		if !known {
			return s.fail("is not a field")
		}
		if !seen.add(name) {
			return s.fail("is there twice")
		}
		if s.space(); !s.take(':') {
			return s.fail("has %s where a colon is wanted, at byte %d", s.shown(), s.at)
		}
		if s.space(); !s.value(member, depth+1) {
			return false
		}
		s.path = s.path[:len(s.path)-1]
		s.space()
		if s.take('}') {
			return true
		}
		if !s.take(',') {
			return s.fail("has %s where a comma or } is wanted, at byte %d", s.shown(), s.at)
		}
	}
}

func (sh *shape) member(name string) (*shape, bool) {
	switch {
	case sh == nil:
		return nil, true
	case sh.members == nil:
		return cmp.Or(sh.element, unshaped), true
	}
	m, known := sh.members[name]
	return m, known
}

func (s *scanner) array(sh *shape, depth int) bool {
	s.at++
	var element *shape
	if sh != nil {
		element = cmp.Or(sh.element, unshaped)
	}
	for i := 0; ; i++ {
		s.space()
		if i == 0 && s.take(']') {
			s.emptyFits(sh)
			return true
		}
		s.path = append(s.path, strconv.Itoa(i))
		if !s.value(element, depth+1) {
			return false
		}
		s.path = s.path[:len(s.path)-1]
		s.space()
		if s.take(']') {
			return true
		}
		if !s.take(',') {
			return s.fail("has %s where a comma or ] is wanted, at byte %d", s.shown(), s.at)
		}
	}
}

// number follows the grammar of RFC 8259.
func (s *scanner) number() bool {
	start := s.at
	s.take('-')
	digits := func() bool {
		from := s.at
		for s.at < len(s.data) && s.data[s.at] >= '0' && s.data[s.at] <= '9' {
			s.at++
		}
		return s.at > from
	}
	if !s.take('0') && !digits() {
		return s.fail("has no number at byte %d", start)
	}
	if s.take('.') && !digits() {
		return s.fail("has no digit after the point at byte %d", s.at)
	}
	if s.take('e') || s.take('E') {
		if !s.take('+') {
			s.take('-')
		}
		if !digits() {
			return s.fail("has no digit in the exponent at byte %d", s.at)
		}
	}
	return true
}

// text scans a string and returns its value; what names it in a message.
func (s *scanner) text(what string) ([]byte, bool) {
	s.at++
	start := s.at
	var decoded []byte // set once there is an escape
	for s.at < len(s.data) {
		switch c := s.data[s.at]; {
		case c == '"':
			text := s.data[start:s.at]
			s.at++
			if decoded != nil {
				text = decoded
			}
			return text, true
		case c < ' ':
			return nil, s.fail("has the control character %#02x in %s, at byte %d", c, what, s.at)
		case c == '\\':
			if decoded == nil {
				decoded = append(make([]byte, 0, 64), s.data[start:s.at]...)
			}
			r, ok := s.escape(what)
			if !ok {
				return nil, false
			}
			decoded = utf8.AppendRune(decoded, r)
		default:
			size := 1
			if c >= utf8.RuneSelf {
				if _, size = utf8.DecodeRune(s.data[s.at:]); size == 1 {
					return nil, s.fail("is not valid UTF-8 in %s, at byte %d", what, s.at)
				}
			}
			if decoded != nil {
				decoded = append(decoded, s.data[s.at:s.at+size]...)
			}
			s.at += size
		}
	}
	return nil, s.fail("ends within %s", what)
}

const escapes, escaped = `"\/bfnrt`, "\"\\/\b\f\n\r\t"

func (s *scanner) escape(what string) (rune, bool) {
	at := s.at
	s.at++
	if s.at >= len(s.data) {
		return 0, s.fail("ends within %s", what)
	}
	c := s.data[s.at]
	s.at++
	if i := strings.IndexByte(escapes, c); i >= 0 {
		return rune(escaped[i]), true
	}
	if c != 'u' {
		return 0, s.fail("has an escape that JSON does not have in %s, at byte %d", what, at)
	}
	r, ok := s.hex()
	switch {
	case !ok:
		return 0, s.fail("has no four hex digits after \\u in %s, at byte %d", what, at)
	case r == 0:
		return 0, s.fail("has a NUL in %s, at byte %d", what, at)
	case r >= 0xdc00 && r <= 0xdfff:
		return 0, s.fail("has a lone surrogate in %s, at byte %d", what, at)
	case r < 0xd800 || r > 0xdbff:
		return r, true
	}
	if s.take('\\') && s.take('u') {
		if low, ok := s.hex(); ok && low >= 0xdc00 && low <= 0xdfff {
			return (r-0xd800)<<10 | (low - 0xdc00) + 0x10000, true
		}
	}
	return 0, s.fail("has a lone surrogate in %s, at byte %d", what, at)
}

func (s *scanner) hex() (rune, bool) {
	if s.at+4 > len(s.data) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(s.data[s.at:s.at+4]), 16, 16)
	s.at += 4
	return rune(n), err == nil
}

// names is a set that is usually small.
type names struct {
	few  []string
	many map[string]bool
}

func (n *names) add(name string) bool {
	if n.many != nil {
		known := n.many[name]
		n.many[name] = true
		return !known
	}
	if slices.Contains(n.few, name) {
		return false
	}
	if n.few = append(n.few, name); len(n.few) > 16 {
		n.many = map[string]bool{}
		for _, f := range n.few {
			n.many[f] = true
		}
	}
	return true
}
