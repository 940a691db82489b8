// Package fingerprint recognizes equal failures: failures with the same kind and error code, whose messages differ only
// in numbers, ids, addresses and quoted values, have the same fingerprint.
package fingerprint

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// maxBytes is how much of a message counts: what distinguishes two failures usually comes first.
const maxBytes = 1 << 10

// Of returns a fingerprint of 16 hex digits. For a lapsed lease the reaper computes the same in SQL, with an empty
// message (queries/expire.sql).
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

// normalise replaces what differs between failures of the same sort: a # stands for a number, an id, an address or a
// list of them, and quotes are emptied. The result is not longer than the message, and normalising it again does not
// change it.
func normalise(message string) string {
	if len(message) > maxBytes {
		message = message[:maxBytes]
	}
	message = strings.Join(strings.Fields(strings.ToValidUTF8(message, "")), " ")
	// Replacing a number may turn an apostrophe beside it into a quote, so one round is not always enough. The text
	// never grows, so this ends; no text is known to need four rounds.
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

// longID is the length from which a word that contains a digit counts as an id.
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
