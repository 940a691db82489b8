package access

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestTokenHasItsForm(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 100 {
		token := newToken()
		got, ok := parseToken(token.Reveal())
		if !ok || got != token || seen[token.id] || seen[token.secret] {
			t.Errorf("%s is not itself, or not new", token)
		}
		seen[token.id], seen[token.secret] = true, true
	}
}

func TestATokenIsShownWithoutItsSecret(t *testing.T) {
	t.Parallel()
	token := newToken()
	var shown bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		fmt.Fprintf(&shown, verb+" "+verb+"\n", token, struct{ T Token }{token})
	}
	for _, handler := range []slog.Handler{slog.NewTextHandler(&shown, nil), slog.NewJSONHandler(&shown, nil)} {
		slog.New(handler).Info("a", slog.Any("token", token), slog.Any("in", struct{ T Token }{token}), slog.Any("many", []Token{token}))
	}
	encoded, err := json.Marshal(map[string]any{"token": token})
	if err != nil {
		t.Fatal(err)
	}
	shown.Write(encoded)
	for _, form := range []string{token.secret, fmt.Sprintf("%x", token.secret)} {
		if strings.Contains(shown.String(), form) {
			t.Errorf("the secret is shown in\n%s", shown.String())
		}
	}
	if !strings.Contains(shown.String(), "ph_"+token.id+"_REDACTED") {
		t.Errorf("got %s, want the id in it", shown.String())
	}
}

// Whatever is parsed is exactly what was written, and has one spelling.
func FuzzParseToken(f *testing.F) {
	good := newToken().Reveal()
	for _, seed := range []string{"", "ph_", good, strings.ToUpper(good), good + "\n", " " + good, good[:len(good)-1], good + "a", "ph__", "ph_\x00_", good + "_crc"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, bearer string) {
		if token, ok := parseToken(bearer); ok && (token.Reveal() != bearer || len(bearer) != len(good)) {
			t.Errorf("%q was taken as %q", bearer, token.Reveal())
		}
	})
}
