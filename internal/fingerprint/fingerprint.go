// Package fingerprint tells failures alike: those of one kind and one error code
// whose messages differ only in numbers, ids, addresses and quoted values have the
// same fingerprint.
package fingerprint

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// maxBytes of a message are looked at; what makes two failures different is
// usually said first.
const maxBytes = 1 << 10

// Of returns 16 hex digits. The reaper makes the same of a lapsed lease in SQL,
// with an empty message (queries/expire.sql).
func Of(kind, code, message string) string {
	sum := sha256.Sum256([]byte(kind + "\n" + code + "\n" + normalise(message)))
	return hex.EncodeToString(sum[:8])
}

var (
	doubleQuoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	backQuoted   = regexp.MustCompile("`[^`]*`")
	singleQuoted = regexp.MustCompile(`\B'[^']*'\B`) // not the apostrophe in can't
	uuid         = regexp.MustCompile(`[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}`)
	word         = regexp.MustCompile(`[0-9A-Za-z_]+`)
	hexadecimal  = regexp.MustCompile(`^(?:0[xX])?[0-9a-fA-F]+$`)
	digits       = regexp.MustCompile(`[0-9]+`)
	joined       = regexp.MustCompile(`#(?:(?:[-.:/,_+]|, )*#)+`) // an address, a time, a list
)

// normalise replaces what changes from one failure to the next of its sort: a # is
// a number, an id, an address or a list of them, and quotes are empty. The result
// is not longer than the message, and is its own normal form.
func normalise(message string) string {
	if len(message) > maxBytes {
		message = message[:maxBytes]
	}
	message = strings.Join(strings.Fields(strings.ToValidUTF8(message, "")), " ")
	// A replaced number may make an apostrophe beside it a quote, so once is not
	// always enough. Nothing grows, so it ends; no text is known to need four rounds.
	for range 10 {
		before := message
		message = doubleQuoted.ReplaceAllLiteralString(message, `""`)
		message = backQuoted.ReplaceAllLiteralString(message, "``")
		message = singleQuoted.ReplaceAllLiteralString(message, `''`)
		message = uuid.ReplaceAllLiteralString(message, "#")
		message = word.ReplaceAllStringFunc(message, withoutDigits)
		message = joined.ReplaceAllLiteralString(message, "#")
		if message == before {
			break
		}
	}
	return message
}

// longID is from which length on a word with a digit in it is taken for an id.
const longID = 8

// withoutDigits returns # for a number or an id, and keeps the letters of names like http2 and x509.
func withoutDigits(word string) string {
	switch {
	case !strings.ContainsAny(word, "0123456789"):
		return word
	case len(word) >= longID || hexadecimal.MatchString(word):
		return "#"
	}
	return digits.ReplaceAllLiteralString(word, "#")
}
