package access

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/posthaste-dev/posthaste/outbox"
)

// wired is a provider without a network: what it answers by path. It notes where else
// it was asked.
type wired struct {
	t       testing.TB
	answers map[string][]byte
}

func (w wired) RoundTrip(r *http.Request) (*http.Response, error) {
	if !isTrustworthy(r.URL.String()) {
		w.t.Errorf("asked %s, where anybody could answer", r.URL)
	}
	body, known := w.answers[r.URL.String()]
	status := http.StatusOK
	if !known {
		status = http.StatusNotFound
	}
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}, nil
}

const (
	fuzzIssuer = "https://id.example.org"
	fuzzKeys   = fuzzIssuer + "/keys"
)

// fuzzKey is the same in every process: the corpus has JWTs that it signed.
var fuzzKey = ed25519.NewKeyFromSeed([]byte("a seed for ed25519 of 32 bytes ."))

func keySet(t testing.TB, keys ...jose.JSONWebKey) []byte {
	t.Helper()
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func fuzzOIDC(t testing.TB, config OIDCConfig) *OIDC {
	t.Helper()
	config.Issuer, config.Audience = fuzzIssuer, "posthaste"
	config.Client = &http.Client{Transport: wired{t, map[string][]byte{
		fuzzIssuer + "/.well-known/openid-configuration": []byte(`{"issuer":"` + fuzzIssuer + `","jwks_uri":"` + fuzzKeys + `"}`),
		fuzzKeys: keySet(t, jose.JSONWebKey{Key: fuzzKey.Public(), KeyID: "k", Algorithm: "EdDSA", Use: "sig"}),
	}}}
	o, err := NewOIDC(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// fuzzClaims never expire.
const fuzzClaims = `{"iss":"` + fuzzIssuer + `","aud":"posthaste","sub":"ada","exp":99999999999,"scope":"jobs.read"}`

func signText(t testing.TB, payload []byte) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: fuzzKey}, (&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", "k"))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	compact, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return compact
}

// Without the provider's key nobody makes a JWT that is taken: whatever is taken has
// the payload that was signed.
func FuzzJWT(f *testing.F) {
	o := fuzzOIDC(f, OIDCConfig{})
	good := signText(f, []byte(fuzzClaims))
	part := strings.Split(good, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))
	embedded := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"EdDSA","jwk":{"kty":"OKP","crv":"Ed25519","x":"AAAA"}}`))
	critical := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"EdDSA","kid":"k","crit":["b64"],"b64":false}`))
	for _, seed := range []string{
		good, "", "..", part[0] + "." + part[1] + ".", none + "." + part[1] + ".", embedded + "." + part[1] + "." + part[2],
		critical + "." + part[1] + "." + part[2], good + "=", good + ".", good[:len(good)-1] + "B", part[0] + "." + part[2] + "." + part[1],
		`{"payload":"` + part[1] + `","protected":"` + part[0] + `","signature":"` + part[2] + `"}`, strings.Repeat("a", maxBearerBytes+1),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, bearer string) {
		who, err := o.Authenticate(t.Context(), bearer)
		if err != nil {
			if !errors.Is(err, ErrUnauthenticated) {
				t.Errorf("%q is refused with %v, want ErrUnauthenticated", bearer, err)
			}
			return
		}
		sent := strings.Split(bearer, ".")
		if len(sent) != 3 || sent[0] != part[0] || sent[1] != part[1] || who.Name != "ada" {
			t.Errorf("%q is taken as %+v", bearer, who)
		}
	})
}

// Whatever a provider signs: who is taken has a name that can be stored, comes from
// this issuer, for this audience, in time, and has no more than is listed. The claims
// are read here once more, and strictly: a claim counts under its exact name.
func FuzzClaims(f *testing.F) {
	for _, seed := range []string{
		fuzzClaims,
		strings.Replace(fuzzClaims, `"posthaste"`, `["other","posthaste"]`, 1),
		strings.Replace(fuzzClaims, `"aud"`, `"aud":"other","Aud"`, 1),
		strings.Replace(fuzzClaims, `"exp":99999999999`, `"exp":1,"EXP":99999999999`, 1),
		strings.Replace(fuzzClaims, `"iss":"`, `"iss":"https://evil.example.org","iſs":"`, 1),
		strings.Replace(fuzzClaims, `99999999999`, `1e400`, 1),
		strings.Replace(fuzzClaims, `99999999999`, `"99999999999"`, 1),
		strings.Replace(fuzzClaims, `"ada"`, `"a\u0000b"`, 1),
		strings.Replace(fuzzClaims, `"ada"`, `"\ud800"`, 1),
		strings.Replace(fuzzClaims, `"jobs.read"`, `["jobs.read","every","jobs.read admin.mutate"]`, 1),
		strings.Replace(fuzzClaims, `"jobs.read"`, `"every jobs.cancel"`, 1),
		strings.Replace(fuzzClaims, `"sub"`, `"nbf":1e30,"sub"`, 1),
		strings.Replace(fuzzClaims, `"sub"`, `"nbf":null,"tenant":"01976f0e-0000-7000-8000-000000000001","sub"`, 1),
		`{}`, `[]`, `null`, "",
	} {
		f.Add([]byte(seed))
	}
	o := fuzzOIDC(f, OIDCConfig{AllTenants: "every"})
	f.Fuzz(func(t *testing.T, payload []byte) {
		who, err := o.Authenticate(t.Context(), signText(t, payload))
		if err != nil {
			if !errors.Is(err, ErrUnauthenticated) {
				t.Errorf("%q is refused with %v, want ErrUnauthenticated", payload, err)
			}
			return
		}
		var claims map[string]json.RawMessage
		if err := json.Unmarshal(payload, &claims); err != nil {
			t.Fatalf("%q is taken: %v", payload, err)
		}
		var number json.Number // which may be in quotes
		_ = json.Unmarshal(claims["exp"], &number)
		expires, _ := number.Float64()
		if text(claims["iss"]) != fuzzIssuer || !slices.Contains(list(claims["aud"]), "posthaste") || expires < float64(time.Now().Unix())-60 {
			t.Errorf("%q is taken as %+v", payload, who)
		}
		if who.Name == "" || who.Name != text(claims["sub"]) || len(who.Name) > maxActorBytes || strings.ContainsRune(who.Name, 0) || who.Tenant != outbox.RootTenant {
			t.Errorf("%q is taken as %+v", payload, who)
		}
		scope := list(claims["scope"])
		for c := range who.Capabilities {
			if !slices.Contains(scope, string(c)) {
				t.Errorf("%q may %s", payload, c)
			}
		}
		if who.AllTenants && !slices.Contains(scope, "every") {
			t.Errorf("%q sees all tenants", payload)
		}
	})
}

// Of a key set only public keys are kept that are strong enough, and not so large that
// a signature takes long to check. A set that is written anew reads the same.
func FuzzKeySet(f *testing.F) {
	ed := jose.JSONWebKey{Key: fuzzKey.Public(), KeyID: "k", Algorithm: "EdDSA", Use: "sig"}
	rs, ec := rsaKey(0, "rsa"), ecKey("ec")
	f.Add(keySet(f, ed, rs.Public(), jose.JSONWebKey{Key: fuzzKey.Public(), Use: "enc"}, ec.Public()))
	for _, seed := range []string{
		`{}`, `[]`, `null`, `{"keys":null}`, `{"keys":[null,{},1]}`,
		`{"keys":[{"kty":"oct","k":"AAAA","kid":"a"}]}`,
		`{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}`,
		`{"keys":[{"kty":"RSA","n":"` + strings.Repeat("_", 100_000) + `","e":"AQAB"}]}`,
		`{"keys":[{"kty":"RSA","n":"` + strings.Repeat("_", 400) + `","e":"AQ"}]}`,
		`{"keys":[{"kty":"OKP","crv":"Ed25519","x":""}]}`,
		`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AA"}]}`,
		`{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		known, err := parseKeys(body)
		if err != nil {
			return
		}
		var kept []jose.JSONWebKey
		for id, key := range known {
			kept = append(kept, jose.JSONWebKey{Key: key.key, KeyID: id, Algorithm: key.algorithm})
			switch k := key.key.(type) {
			case *rsa.PublicKey:
				if k.N.BitLen() < minRSABits || k.N.BitLen() > maxRSABits || k.E < 3 {
					t.Errorf("a key of %d bits with the exponent %d is kept", k.N.BitLen(), k.E)
				}
			case *ecdsa.PublicKey, ed25519.PublicKey:
			default:
				t.Errorf("a %T is kept", k)
			}
		}
		again, err := parseKeys(keySet(t, kept...))
		if err != nil || !maps.EqualFunc(known, again, func(a, b signingKey) bool {
			return a.algorithm == b.algorithm && a.key.(interface{ Equal(crypto.PublicKey) bool }).Equal(b.key)
		}) || len(known) > maxKeys {
			t.Errorf("%q is read as %v, and that as %v, %v", body, known, again, err)
		}
	})
}

// A discovery document leads to keys in a place where nobody on the way can have
// changed them, or is refused. Wired tells if anybody else was asked.
func FuzzDiscovery(f *testing.F) {
	const good = `{"issuer":"` + fuzzIssuer + `","jwks_uri":"` + fuzzKeys + `"}`
	for _, seed := range []string{
		good, `{}`, `null`, `[]`, `{"issuer":"` + fuzzIssuer + `"}`,
		strings.Replace(good, fuzzKeys, "http://id.example.org/keys", 1),
		strings.Replace(good, fuzzKeys, "http://localhost/keys", 1),
		strings.Replace(good, fuzzKeys, "//id.example.org/keys", 1),
		strings.Replace(good, fuzzKeys, "https://ada:hush@id.example.org/keys", 1),
		strings.Replace(good, fuzzKeys, "file:///etc/passwd", 1),
		strings.Replace(good, `"issuer"`, `"Issuer"`, 1),
		strings.Replace(good, fuzzIssuer, "https://evil.example.org", 1),
		strings.Replace(good, `}`, `,"JWKS_URI":"http://evil.example.org/"}`, 1),
	} {
		f.Add([]byte(seed))
	}
	keys := keySet(f, jose.JSONWebKey{Key: fuzzKey.Public(), KeyID: "k", Algorithm: "EdDSA"})
	f.Fuzz(func(t *testing.T, document []byte) {
		o, err := NewOIDC(t.Context(), OIDCConfig{Issuer: fuzzIssuer, Audience: "posthaste", Client: &http.Client{Transport: wired{t, map[string][]byte{
			fuzzIssuer + "/.well-known/openid-configuration": document, fuzzKeys: keys,
		}}}})
		if err != nil {
			if len(err.Error()) > 1000+len(document) {
				t.Errorf("the error is %d bytes long", len(err.Error()))
			}
			return
		}
		if o.keys.url != fuzzKeys || len(o.keys.known) != 1 {
			t.Errorf("%q leads to %q with %d keys", document, o.keys.url, len(o.keys.known))
		}
	})
}
