// Package cloudevents contains what the protocol bindings of CloudEvents 1.0 share.
package cloudevents

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// Prefix begins the names of attributes in [relay.Message], and in the bindings for HTTP and NATS.
const Prefix = "ce-"

// Escape encodes the value of an attribute as the bindings for HTTP and NATS require: it percent-encodes, byte by byte,
// everything but printable ASCII characters, and spaces, quotes and percent signs.
func Escape(value string) string {
	plain := func(c byte) bool { return c > ' ' && c < 0x7f && c != '"' && c != '%' }
	i := 0
	for i < len(value) && plain(value[i]) {
		i++
	}
	if i == len(value) {
		return value
	}
	var b strings.Builder
	b.WriteString(value[:i])
	for _, c := range []byte(value[i:]) {
		if plain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// Unescape decodes the value of an attribute as these bindings require: each percent sign with two hexadecimal digits
// is a byte. Other percent signs, which no binding writes, remain.
func Unescape(value string) string {
	if !strings.Contains(value, "%") {
		return value
	}
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		if i+2 < len(value) && value[i] == '%' {
			if c, err := hex.DecodeString(value[i+1 : i+3]); err == nil {
				b.Write(c)
				i += 2
				continue
			}
		}
		b.WriteByte(value[i])
	}
	return b.String()
}
