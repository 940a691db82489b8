package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"
)

// NameFault returns "" if name is valid for a kind or a queue: 1 to 128 letters, digits and _ . : / -, first a letter
// or digit, which are safe in a URL, a metric label and a shell. Otherwise it returns what is wrong, to follow the
// field's name. outbox.enqueue in SQL has the same rule.
func NameFault(name string) string {
	if name == "" {
		return fmt.Sprintf("is empty, want 1 to %d characters", MaxNameBytes)
	}
	if len(name) > MaxNameBytes {
		return fmt.Sprintf("is %d bytes long, want at most %d", len(name), MaxNameBytes)
	}
	for i := range len(name) {
		c := name[i]
		letterOrDigit := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letterOrDigit && (i == 0 || !strings.ContainsRune("_.:/-", rune(c))) {
			return fmt.Sprintf("is %q: byte %d is %q, want ASCII letters, digits and _ . : / -, first a letter or digit", name, i, characterAt(name, i))
		}
	}
	return ""
}

// QueueFault returns "" if a job may be enqueued into the queue. Otherwise it returns what is wrong, to follow the
// field's name. A job in a sink's queue could share a key with its messages, and hold them up or replace them.
// outbox.enqueue in SQL and the policies of outbox.secure have the same rule.
func QueueFault(queue string) string {
	if strings.HasPrefix(queue, HeldKind("")) {
		return fmt.Sprintf("is %.200q: queues that begin with relay: are those of messages that a sink has refused",
			queue)
	}
	return NameFault(queue)
}

// KindFault returns "" if a job of the kind may be enqueued. Otherwise it returns what is wrong, to follow the field's
// name. Only a relay stores jobs of its sinks: it treats an idempotency key of such a kind as one that it has stored
// itself, and waits for a transaction that stores one. outbox.enqueue in SQL and the policies of outbox.secure have the
// same rule.
func KindFault(kind string) string {
	if strings.HasPrefix(kind, HeldKind("")) {
		return fmt.Sprintf("is %.200q: kinds that begin with relay: are those of messages that a sink has refused",
			kind)
	}
	return NameFault(kind)
}

// characterAt returns the character of s that begins at byte i, or the byte if no character begins there.
func characterAt(s string, i int) string {
	_, size := utf8.DecodeRuneInString(s[i:])
	return s[i : i+size]
}

// WorkerFault returns "" if name is valid for a worker: up to 128 bytes of text without spaces and control characters.
// Otherwise it returns what is wrong, to follow the field's name.
func WorkerFault(name string) string {
	if len(name) <= MaxNameBytes &&
		!strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\uFFFD' }) {
		return ""
	}
	return fmt.Sprintf("is %.200q, want up to %d characters without spaces", name, MaxNameBytes)
}

// KeyHash returns the SHA-256 of a key in hexadecimal, as Trellis' clients receive it in events and in answers.
func KeyHash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
