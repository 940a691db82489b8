package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"log/slog"
	"regexp"
	"strings"
)

// tokenPrefix begins every token of ours: secret scanners recognize it, and no JWT begins so.
const tokenPrefix = "ph_"

const (
	idBytes     = 10 // 16 characters: two tokens never get the same id
	secretBytes = 32 // 256 bits, 52 characters
)

var (
	letters   = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	tokenForm = regexp.MustCompile(`^ph_([a-z2-7]{16})_([a-z2-7]{52})$`)
	idForm    = regexp.MustCompile(`^[a-z2-7]{16}$`)
)

// Token is a bearer token, ph_<id>_<secret>. However it is printed, logged or encoded, it shows only its id; only
// [Token.Reveal] discloses it.
type Token struct{ id, secret string }

// newToken returns a token that nobody can guess.
func newToken() Token {
	var random [idBytes + secretBytes]byte
	_, _ = rand.Read(random[:]) // never fails: crypto/rand ends the process first
	return Token{letters.EncodeToString(random[:idBytes]), letters.EncodeToString(random[idBytes:])}
}

// parseToken parses a bearer that has exactly the form of a token. The secret is compared as written, so no second
// spelling of it is valid.
func parseToken(bearer string) (Token, bool) {
	parts := tokenForm.FindStringSubmatch(bearer)
	if parts == nil {
		return Token{}, false
	}
	return Token{parts[1], parts[2]}, true
}

// ID returns the part of the token that may be shown, by which tokens are listed and revoked.
func (t Token) ID() string { return t.id }

// TokenID returns the ID of the token that a bearer claims to be, valid or not; "" if it does not have the form of one.
// It is for logs.
func TokenID(bearer string) string {
	token, _ := parseToken(bearer)
	return token.id
}

// Reveal returns the token itself, for its user.
func (t Token) Reveal() string { return tokenPrefix + t.id + "_" + t.secret }

// String returns the token without its secret.
func (t Token) String() string { return tokenPrefix + t.id + "_REDACTED" }

// GoString returns t.String(): %#v must not disclose the secret.
func (t Token) GoString() string { return t.String() }

// LogValue returns t.String().
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText returns t.String().
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// hash returns what is stored. A fast hash is right: slow ones compensate for secrets that people choose, and no list
// of 256-bit secrets can be tried.
func (t Token) hash() [sha256.Size]byte { return sha256.Sum256([]byte(t.secret)) }

// isToken reports whether a bearer has the prefix of our tokens, well-formed or not.
func isToken(bearer string) bool { return strings.HasPrefix(bearer, tokenPrefix) }
