package access

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/outbox"
)

// provider is an OpenID Connect provider with real keys.
type provider struct {
	*httptest.Server
	mu       sync.Mutex
	keys     []jose.JSONWebKey // with their private parts
	issuer   string
	jwksURL  string
	down     bool
	keyLooks atomic.Int32
}

func newProvider(t *testing.T, keys ...jose.JSONWebKey) *provider {
	t.Helper()
	p := &provider{keys: keys}
	p.Server = httptest.NewServer(p)
	p.issuer, p.jwksURL = p.URL, p.URL+"/keys"
	t.Cleanup(p.Close)
	return p
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.URL.Path == "/keys" {
		p.keyLooks.Add(1)
	}
	switch {
	case p.down:
		http.Error(w, "away", http.StatusServiceUnavailable)
	case r.URL.Path == "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": p.issuer, "jwks_uri": p.jwksURL})
	case r.URL.Path == "/keys":
		var set jose.JSONWebKeySet
		for _, k := range p.keys {
			if public := k.Public(); public.Key != nil {
				k = public
			}
			set.Keys = append(set.Keys, k)
		}
		_ = json.NewEncoder(w).Encode(set)
	default:
		http.NotFound(w, r)
	}
}

func (p *provider) set(change func(*provider)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

// Making RSA keys is slow: two for all tests.
var rsaKeys = sync.OnceValue(func() (keys [2]*rsa.PrivateKey) {
	for i := range keys {
		keys[i], _ = rsa.GenerateKey(rand.Reader, 2048)
	}
	return keys
})

func rsaKey(n int, id string) jose.JSONWebKey {
	return jose.JSONWebKey{Key: rsaKeys()[n], KeyID: id, Algorithm: "RS256", Use: "sig"}
}

func ecKey(id string) jose.JSONWebKey {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return jose.JSONWebKey{Key: key, KeyID: id, Algorithm: "ES256"}
}

type claims map[string]any

// good returns the claims of a JWT that is taken.
func (p *provider) good() claims {
	now := time.Now()
	return claims{
		"iss": p.issuer, "aud": "posthaste", "sub": "ada", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"scope": "openid jobs.read jobs.enqueue",
	}
}

func (c claims) with(more claims) claims {
	all := maps.Clone(c)
	for name, value := range more {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	return all
}

// sign makes a JWT. The key is the provider's or a forger's.
func sign(t *testing.T, key any, algorithm, keyID string, c claims) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithType("JWT")
	if keyID != "" {
		options = options.WithHeader("kid", keyID)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(algorithm), Key: key}, options)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(c)
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

func newOIDC(t *testing.T, p *provider, config OIDCConfig) *OIDC {
	t.Helper()
	config.Issuer, config.Audience = p.issuer, "posthaste"
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	config.Client = client
	o, err := NewOIDC(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestAJWTIsItsPrincipal(t *testing.T) {
	t.Parallel()
	rs, ec := rsaKey(0, "rsa"), ecKey("ec")
	p := newProvider(t, rs, ec)
	acme, other := outbox.NewID(), outbox.NewID()
	good := p.good()
	named := OIDCConfig{TenantClaim: "org", Tenants: map[string]outbox.ID{"acme": acme}}
	roles := OIDCConfig{CapabilityClaim: "roles", NameClaim: "email", Capabilities: map[string][]Capability{"operator": {AdminRead, AdminMutate}}, AllTenants: "operator"}
	for name, c := range map[string]struct {
		config OIDCConfig
		bearer string
		want   Principal
	}{
		"of RSA": {OIDCConfig{}, sign(t, rs.Key, "RS256", "rsa", good), Principal{Name: "ada", Tenant: outbox.RootTenant, Capabilities: map[Capability]bool{JobsRead: true, JobsEnqueue: true}}},
		"of an elliptic curve, for several": {
			OIDCConfig{Tenant: acme},
			sign(t, ec.Key, "ES256", "ec", good.with(claims{"aud": []string{"other", "posthaste"}, "scope": nil})),
			Principal{Name: "ada", Tenant: acme, Capabilities: map[Capability]bool{}},
		},
		"with a tenant by its id":   {OIDCConfig{TenantClaim: "tenant"}, sign(t, ec.Key, "ES256", "ec", good.with(claims{"tenant": other.String()})), Principal{Name: "ada", Tenant: other, Capabilities: map[Capability]bool{JobsRead: true, JobsEnqueue: true}}},
		"with a tenant by its name": {named, sign(t, ec.Key, "ES256", "ec", good.with(claims{"org": "acme", "scope": "jobs.read"})), Principal{Name: "ada", Tenant: acme, Capabilities: map[Capability]bool{JobsRead: true}}},
		"with roles": {
			roles,
			sign(t, ec.Key, "ES256", "ec", good.with(claims{"email": "ada@example.org", "email_verified": "true", "roles": []string{"operator", "jobs.cancel", "staff"}})),
			Principal{Name: "ada@example.org", Tenant: outbox.RootTenant, AllTenants: true, Capabilities: map[Capability]bool{AdminRead: true, AdminMutate: true}},
		},
		"a little late, a little early": {
			OIDCConfig{},
			sign(t, ec.Key, "ES256", "ec", good.with(claims{"exp": time.Now().Add(-20 * time.Second).Unix(), "nbf": time.Now().Add(20 * time.Second).Unix()})),
			Principal{Name: "ada", Tenant: outbox.RootTenant, Capabilities: map[Capability]bool{JobsRead: true, JobsEnqueue: true}},
		},
	} {
		o := newOIDC(t, p, c.config)
		got := wantAccepted(t, Combine(nil, o), name, c.bearer)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A user who may enter any address, without a proof that it is theirs, would be anybody.
func TestAnAddressIsANameOnceItIsVerified(t *testing.T) {
	t.Parallel()
	ec := ecKey("ec")
	p := newProvider(t, ec)
	for name, tenant := range map[string]outbox.ID{"root": outbox.RootTenant, "another tenant": outbox.NewID()} {
		byEmail, bySub := newOIDC(t, p, OIDCConfig{NameClaim: "email", Tenant: tenant}), newOIDC(t, p, OIDCConfig{Tenant: tenant})
		for _, verified := range []any{nil, false, "false", 1, "1", []bool{true}, true, "true"} {
			bearer := sign(t, ec.Key, "ES256", "ec", p.good().with(claims{"email": "ada@example.org", "email_verified": verified}))
			want := verified == true || verified == "true"
			who, err := byEmail.Authenticate(t.Context(), bearer)
			if want != (err == nil) || !want && (!errors.Is(err, ErrUnauthenticated) || !strings.Contains(err.Error(), "email_verified")) {
				t.Errorf("%s, email_verified %v: %+v, %v", name, verified, who, err)
			}
			if _, err := bySub.Authenticate(t.Context(), bearer); err != nil {
				t.Errorf("%s, by sub: %v", name, err)
			}
		}
	}
}

func TestAJWTThatIsNotGoodIsRefused(t *testing.T) {
	t.Parallel()
	rs, ec, tied := rsaKey(0, "rsa"), ecKey("ec"), rsaKey(1, "tied")
	p := newProvider(t, rs, ec, tied)
	o := newOIDC(t, p, OIDCConfig{TenantClaim: "org", Tenants: map[string]outbox.ID{"acme": outbox.NewID()}})
	good := p.good().with(claims{"org": "acme"})
	bearer := sign(t, ec.Key, "ES256", "ec", good)
	parts := strings.Split(bearer, ".")
	encode := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	publicDER, err := x509.MarshalPKIXPublicKey(&rsaKeys()[0].PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: publicDER})
	forger, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	at := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	with := func(more claims) string { return sign(t, ec.Key, "ES256", "ec", good.with(more)) }
	unsigned := encode(`{"alg":"none","kid":"ec"}`) + "." + parts[1] + "."

	for what, bearer := range map[string]string{
		"unsigned": unsigned, "unsigned, alg None": encode(`{"alg":"None"}`) + "." + parts[1] + ".", "unsigned with the signature": unsigned + parts[2],
		"signed with the RSA public key as a secret": sign(t, publicPEM, "HS256", "rsa", good), "the same, in DER": sign(t, publicDER, "HS256", "rsa", good),
		"signed by a forger":                 sign(t, forger, "ES256", "ec", good),
		"with a key for another algorithm":   sign(t, rsaKeys()[1], "RS512", "tied", good),
		"with a key of another kind":         sign(t, rsaKeys()[0], "RS256", "ec", good),
		"with a key that is unknown":         sign(t, forger, "ES256", "nobody", good),
		"with no key id, of several":         sign(t, ec.Key, "ES256", "", good),
		"with a path as its key id":          sign(t, forger, "ES256", "../../keys", good),
		"with SQL as its key id":             sign(t, forger, "ES256", "ec' OR '1'='1", good),
		"with its own key in the header":     signWithEmbeddedKey(t, forger, good),
		"for another audience":               with(claims{"aud": "other"}),
		"for no audience":                    with(claims{"aud": nil}),
		"for a part of the audience":         with(claims{"aud": "post"}),
		"of another issuer":                  with(claims{"iss": "https://example.org"}),
		"of the issuer with a slash":         with(claims{"iss": p.issuer + "/"}),
		"of no issuer":                       with(claims{"iss": nil}),
		"expired":                            with(claims{"exp": at(-time.Minute)}),
		"without an end":                     with(claims{"exp": nil}),
		"with an end that is no time":        with(claims{"exp": "tomorrow"}),
		"good in a minute":                   with(claims{"nbf": at(time.Minute)}),
		"good at no time":                    with(claims{"nbf": "soon"}),
		"of nobody":                          with(claims{"sub": nil}),
		"of an empty name":                   with(claims{"sub": ""}),
		"of a name that breaks lines":        with(claims{"sub": "ada\nlevel=ERROR"}),
		"of a long name":                     with(claims{"sub": strings.Repeat("a", 257)}),
		"of a number":                        with(claims{"sub": 7}),
		"of no tenant":                       with(claims{"org": nil}),
		"of an unknown tenant":               with(claims{"org": "evil"}),
		"of a tenant by its id beside names": with(claims{"org": outbox.NewID().String()}),
		"of several tenants":                 with(claims{"org": []string{"acme", "evil"}}),
		"cut off":                            bearer[:len(bearer)-4],
		"with another payload":               parts[0] + "." + encode(`{"iss":"`+p.issuer+`"}`) + "." + parts[2],
		"with another header":                encode(`{"alg":"ES256","kid":"rsa"}`) + "." + parts[1] + "." + parts[2],
		"with a critical header":             encode(`{"alg":"ES256","kid":"ec","crit":["x"],"x":1}`) + "." + parts[1] + "." + parts[2],
		"with duplicates in its header":      encode(`{"alg":"ES256","alg":"none","kid":"ec"}`) + "." + parts[1] + "." + parts[2],
		"of two parts":                       parts[0] + "." + parts[1], "of four": bearer + ".x", "encrypted": bearer + "..", "empty parts": "..",
		"of dots": strings.Repeat(".", 1<<20), "of 8 KiB and 1": with(claims{"pad": strings.Repeat("a", 8<<10)}), "no base64": "a+b/c.d.e",
		"JSON":        `{"payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` + parts[2] + `"}`,
		"with spaces": " " + bearer, "upper case": strings.ToUpper(bearer), "twice": bearer + "," + bearer,
	} {
		wantRefused(t, o, what, bearer)
		wantRefused(t, Combine(nil, o), what, bearer)
		wantLittleMemory(t, o, what, bearer)
	}
	wantAccepted(t, o, "the good one", bearer)
	wantRefused(t, Combine(nil, nil), "where none are taken", bearer)
	if n := p.keyLooks.Load(); n > 1 {
		t.Errorf("the provider was asked for its keys %d times, want once at the start: the battery took less than %s", n, keysRest)
	}
}

// wantLittleMemory looks at what the whole process allocates, with other tests in it: the
// least of several times is what the bearer takes, at most.
func wantLittleMemory(t *testing.T, a Authenticator, what, bearer string) {
	t.Helper()
	const enough = 1 << 20
	least := uint64(math.MaxUint64)
	for range 50 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = a.Authenticate(t.Context(), bearer) // refused: see above
		runtime.ReadMemStats(&after)
		if least = min(least, after.TotalAlloc-before.TotalAlloc); least <= enough {
			return
		}
	}
	t.Errorf("a token %s: it took %d bytes to refuse, want %d at most", what, least, enough)
}

func signWithEmbeddedKey(t *testing.T, key *ecdsa.PrivateKey, c claims) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, &jose.SignerOptions{EmbedJWK: true})
	if err != nil {
		t.Fatal(err)
	}
	payload, _ := json.Marshal(c)
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	compact, _ := signed.CompactSerialize()
	return compact
}

func TestAJWTWithoutAKeyIDMeansTheOnlyKey(t *testing.T) {
	t.Parallel()
	ec := ecKey("")
	p := newProvider(t, ec)
	wantAccepted(t, newOIDC(t, p, OIDCConfig{}), "of the only key", sign(t, ec.Key, "ES256", "", p.good()))
}

// rest lets the time pass that lies between two questions.
func (o *OIDC) rest(d time.Duration) {
	o.keys.mu.Lock()
	defer o.keys.mu.Unlock()
	o.keys.asked, o.keys.fetched = o.keys.asked.Add(-d), o.keys.fetched.Add(-d)
}

func TestKeysAreRotated(t *testing.T) {
	t.Parallel()
	old, young := ecKey("old"), ecKey("young")
	p := newProvider(t, old)
	o := newOIDC(t, p, OIDCConfig{})
	byOld, byYoung := sign(t, old.Key, "ES256", "old", p.good()), sign(t, young.Key, "ES256", "young", p.good())
	wantAccepted(t, o, "by the old key", byOld)
	wantRefused(t, o, "by a key that is not there yet", byYoung)

	p.set(func(p *provider) { p.keys = []jose.JSONWebKey{old, young} })
	wantRefused(t, o, "by the new key, a moment after the keys were fetched", byYoung)
	o.rest(keysRest)
	wantAccepted(t, o, "by the new key", byYoung)
	wantAccepted(t, o, "by the old key beside it", byOld)

	p.set(func(p *provider) { p.keys = []jose.JSONWebKey{young} })
	o.rest(keysFresh)
	wantAccepted(t, o, "by the old key, while the provider is asked whether it still is", byOld)
	for deadline := time.Now().Add(time.Minute); p.keyLooks.Load() < 3 || !o.knowsOnly("young"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the keys were not refreshed")
		}
	}
	wantRefused(t, o, "by the old key, which the provider took back", byOld)
}

func (o *OIDC) knowsOnly(id string) bool {
	o.keys.mu.Lock()
	defer o.keys.mu.Unlock()
	_, ok := o.keys.known[id]
	return ok && len(o.keys.known) == 1
}

// The provider is away: known bearers go on; others cannot be judged, which is
// not the same as refused.
func TestKnownKeysOutliveTheProvider(t *testing.T) {
	t.Parallel()
	ec, unknown := ecKey("ec"), ecKey("unknown")
	p := newProvider(t, ec)
	o := newOIDC(t, p, OIDCConfig{})
	good, other := sign(t, ec.Key, "ES256", "ec", p.good()), sign(t, unknown.Key, "ES256", "unknown", p.good())
	p.set(func(p *provider) { p.down = true })
	for _, later := range []time.Duration{keysRest, keysFresh, time.Hour} {
		o.rest(later)
		wantAccepted(t, o, fmt.Sprint("after ", later), good)
	}
	o.rest(keysRest)
	if _, err := o.Authenticate(t.Context(), other); err == nil || errors.Is(err, ErrUnauthenticated) || !strings.Contains(err.Error(), "503") {
		t.Errorf("by a key that may be new: %v, want an error that is not ErrUnauthenticated and names the answer", err)
	}
	o.rest(keysStale)
	if _, err := o.Authenticate(t.Context(), good); err == nil || errors.Is(err, ErrUnauthenticated) {
		t.Errorf("after a day: %v, want an error that is not ErrUnauthenticated", err)
	}
	p.set(func(p *provider) { p.down = false })
	o.rest(keysRest)
	wantAccepted(t, o, "when the provider is back", good)
}

// A thousand made-up key ids are one question to the provider.
func TestMadeUpKeyIDsAskTheProviderOnce(t *testing.T) {
	t.Parallel()
	ec := ecKey("ec")
	p := newProvider(t, ec)
	o := newOIDC(t, p, OIDCConfig{})
	bearers := make([]string, 200)
	for i := range bearers {
		bearers[i] = sign(t, ec.Key, "ES256", fmt.Sprint("made up ", i), p.good())
	}
	o.rest(keysRest)
	before := p.keyLooks.Load()
	var callers sync.WaitGroup
	for _, bearer := range bearers {
		callers.Go(func() {
			if _, err := o.Authenticate(context.WithoutCancel(t.Context()), bearer); !errors.Is(err, ErrUnauthenticated) {
				t.Errorf("a made-up key id: %v, want it refused", err)
			}
		})
	}
	callers.Wait()
	if n := p.keyLooks.Load() - before; n != 1 {
		t.Errorf("the provider was asked %d times, want once", n)
	}
}

// What is in a key set beside public keys for signatures is left out.
func TestOnlyPublicKeysForSignaturesAreTaken(t *testing.T) {
	t.Parallel()
	weak, _ := rsa.GenerateKey(rand.Reader, 1024)
	ec := ecKey("ec")
	encryption := ecKey("enc")
	encryption.Use = "enc"
	secret := []byte(strings.Repeat("s", 32))
	p := newProvider(t, ec, encryption, jose.JSONWebKey{Key: secret, KeyID: "oct", Algorithm: "HS256"}, jose.JSONWebKey{Key: weak, KeyID: "weak", Algorithm: "RS256"})
	o := newOIDC(t, p, OIDCConfig{})
	if !o.knowsOnly("ec") {
		t.Errorf("the keys are %v, want ec alone", o.keys.known)
	}
	wantRefused(t, o, "with the secret that it publishes", sign(t, secret, "HS256", "oct", p.good()))
}

func TestWhatIsWrongWithAProviderIsSaidAtTheStart(t *testing.T) {
	t.Parallel()
	elsewhere := newProvider(t, ecKey("ec"))
	for name, c := range map[string]struct {
		change func(*provider, *OIDCConfig)
		want   []string
	}{
		"nothing is given":              {func(_ *provider, c *OIDCConfig) { *c = OIDCConfig{} }, []string{"Issuer is", "Audience is empty"}},
		"http elsewhere":                {func(_ *provider, c *OIDCConfig) { c.Issuer = "http://example.org" }, []string{"want an https URL"}},
		"a symmetric algorithm":         {func(_ *provider, c *OIDCConfig) { c.Algorithms = []string{"RS256", "HS256", "none"} }, []string{`"HS256" is not one of`, `"none" is not one of`}},
		"too much leeway":               {func(_ *provider, c *OIDCConfig) { c.Leeway = time.Hour }, []string{"Leeway is 1h0m0s"}},
		"an unknown capability":         {func(_ *provider, c *OIDCConfig) { c.Capabilities = map[string][]Capability{"x": {"root"}} }, []string{`Capabilities["x"]`}},
		"tenants without a claim":       {func(_ *provider, c *OIDCConfig) { c.Tenants = map[string]outbox.ID{"a": outbox.NewID()} }, []string{"without a TenantClaim"}},
		"nobody there":                  {func(p *provider, _ *OIDCConfig) { p.Close() }, []string{"discover http://127.0.0.1", "refused"}},
		"it is away":                    {func(p *provider, _ *OIDCConfig) { p.down = true }, []string{"discover", "503"}},
		"another issuer":                {func(p *provider, _ *OIDCConfig) { p.issuer = "https://example.org" }, []string{"https://example.org"}},
		"keys where anybody may change": {func(p *provider, _ *OIDCConfig) { p.jwksURL = "http://example.org/keys" }, []string{"jwks_uri", "want an https URL"}},
		"no keys":                       {func(p *provider, _ *OIDCConfig) { p.keys = nil }, []string{"has none that can be used"}},
		"no key set":                    {func(p *provider, _ *OIDCConfig) { p.jwksURL = elsewhere.URL + "/other" }, []string{"404"}},
	} {
		p := newProvider(t, ecKey("ec"))
		config := OIDCConfig{Issuer: p.URL, Audience: "posthaste", Client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
		c.change(p, &config)
		_, err := NewOIDC(t.Context(), config)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q in it", name, err, want)
			}
		}
	}
}
