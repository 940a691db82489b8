package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"log/slog"
	"regexp"
	"strings"
)

// tokenPrefix is what every token of ours begins with: secret scanners find it,
// and no JWT begins so.
const tokenPrefix = "ph_"

const (
	idBytes     = 10 // 16 characters: two tokens with one id do not happen
	secretBytes = 32 // 256 bits, 52 characters
)

var (
	letters   = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	tokenForm = regexp.MustCompile(`^ph_([a-z2-7]{16})_([a-z2-7]{52})$`)
	idForm    = regexp.MustCompile(`^[a-z2-7]{16}$`)
)

// Token is a bearer token, ph_<id>_<secret>. It shows its id however it is
// printed, logged or encoded; only [Token.Reveal] gives it away.
type Token struct{ id, secret string }

// newToken makes a token that nobody can guess.
func newToken() Token {
	var random [idBytes + secretBytes]byte
	_, _ = rand.Read(random[:]) // never fails: crypto/rand ends the process first
	return Token{letters.EncodeToString(random[:idBytes]), letters.EncodeToString(random[idBytes:])}
}

// parseToken takes what has exactly the form of a token. The secret is compared
// as it is written, so that no second spelling of it is good.
func parseToken(bearer string) (Token, bool) {
	parts := tokenForm.FindStringSubmatch(bearer)
	if parts == nil {
		return Token{}, false
	}
	return Token{parts[1], parts[2]}, true
}

// ID is the part of the token that may be shown: it is what tokens are listed and
// revoked by.
func (t Token) ID() string { return t.id }

// TokenID is the ID of the token that a bearer says it is, good or not; "" if it does
// not have the form of one. It is for logs.
func TokenID(bearer string) string {
	token, _ := parseToken(bearer)
	return token.id
}

// Reveal returns the token itself, for the one who is to use it.
func (t Token) Reveal() string { return tokenPrefix + t.id + "_" + t.secret }

// String is the token without its secret.
func (t Token) String() string { return tokenPrefix + t.id + "_REDACTED" }

// GoString is String: %#v must not give the secret away.
func (t Token) GoString() string { return t.String() }

// LogValue is String.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText is String.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// hash is what is stored. A fast hash is right: slow ones make up for secrets
// that people choose, and there is no list of 256-bit secrets to try.
func (t Token) hash() [sha256.Size]byte { return sha256.Sum256([]byte(t.secret)) }

// isToken reports whether a bearer means to be a token of ours, well-formed or not.
func isToken(bearer string) bool { return strings.HasPrefix(bearer, tokenPrefix) }
