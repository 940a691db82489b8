package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/posthaste-dev/posthaste/internal/apitest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// issuer is an OpenID Connect provider with keys of its own.
type issuer struct {
	*httptest.Server
	mu   sync.Mutex
	keys map[string]*rsa.PrivateKey // that it publishes
	down bool
}

func newIssuer(t *testing.T, keys map[string]*rsa.PrivateKey) *issuer {
	t.Helper()
	i := &issuer{keys: keys}
	i.Server = httptest.NewServer(i)
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.down {
		http.Error(w, "away", http.StatusServiceUnavailable)
		return
	}
	if r.URL.Path == "/.well-known/openid-configuration" {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys"})
		return
	}
	var set jose.JSONWebKeySet
	for id, key := range i.keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id, Algorithm: "RS256", Use: "sig"})
	}
	_ = json.NewEncoder(w).Encode(set)
}

func (i *issuer) set(change func(*issuer)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change(i)
}

func newKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// jwt returns a JWT of the claims, signed with the key.
func jwt(t *testing.T, algorithm jose.SignatureAlgorithm, key any, keyID string, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", keyID))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(text)
	if err != nil {
		t.Fatal(err)
	}
	compact, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return compact
}

// unsigned returns a JWT that says it needs no signature.
func unsigned(algorithm string, claims map[string]any) string {
	header, _ := json.Marshal(map[string]string{"alg": algorithm, "typ": "JWT", "kid": "first"})
	body, _ := json.Marshal(claims)
	return base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(body) + "."
}

func with(claims map[string]any, name string, value any) map[string]any {
	changed := maps.Clone(claims)
	changed[name] = value
	return changed
}

// asked returns what the API answers to a bearer, held against its description: the status and the body.
func asked(t *testing.T, method, url, bearer, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	apitest.Check(t, req, res.StatusCode, res.Header, text)
	return res.StatusCode, string(text)
}

// apiURL reads the API's address from the logs.
func apiURL(t *testing.T, logs *lockedBuffer) string {
	t.Helper()
	for line := range strings.Lines(awaitText(t, "API listens", logs.String)) {
		var entry struct{ Msg, Addr string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "API listens" {
			return "http://" + entry.Addr
		}
	}
	t.Fatal("no address in the logs")
	return ""
}

// G4, through the real process: JWTs of a provider beside tokens of our own, and
// every forgery that can be made with what is public.
func TestG4ServeTakesTheProvidersJWTsAndNoOthers(t *testing.T) {
	t.Parallel()
	first, second, forger := newKey(t), newKey(t), newKey(t)
	provider := newIssuer(t, map[string]*rsa.PrivateKey{"first": first, "second": second})
	acme := outbox.NewID()
	owner := pgtest.URL(t)
	_, logs := serving(t, "--database-url", pgtest.LoginURL(t, owner, "outbox_api"), "--role", "api", "--api-addr", "127.0.0.1:0",
		"--oidc-issuer", provider.URL, "--oidc-audience", "posthaste", "--oidc-algorithms", "RS256,ES256", "--oidc-name-claim", "email",
		"--oidc-tenant-claim", "org", "--oidc-tenants", "acme="+acme.String(), "--oidc-capability-claim", "roles",
		"--oidc-capabilities", "client=jobs.enqueue+jobs.read,operator=admin.read+admin.mutate")
	jobs := apiURL(t, logs) + "/jobs"
	now := time.Now()
	good := map[string]any{
		"iss": provider.URL, "aud": "posthaste", "sub": "7", "email": "ada@example.org", "email_verified": true, "org": "acme", "roles": []string{"client"},
		"exp": now.Add(time.Hour).Unix(), "iat": now.Unix(),
	}
	sign := func(claims map[string]any) string { return jwt(t, jose.RS256, first, "first", claims) }
	enqueue := func(bearer string) (int, string) { return asked(t, "POST", jobs, bearer, `{"kind":"mail"}`) }
	// Until the provider is discovered.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		code, text := enqueue(sign(good))
		if code == http.StatusAccepted {
			break
		}
		if code != http.StatusServiceUnavailable || time.Now().After(deadline) {
			t.Fatalf("a good JWT: %d %s", code, text)
		}
	}
	if code, text := asked(t, "GET", jobs, sign(good), ""); code != http.StatusOK || !strings.Contains(text, "mail") {
		t.Errorf("its jobs: %d %s, want its own one", code, text)
	}
	public := x509.MarshalPKCS1PublicKey(&first.PublicKey)
	spki, err := x509.MarshalPKIXPublicKey(&first.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	pemText := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki})
	for name, bearer := range map[string]string{
		"of another issuer":               sign(with(good, "iss", "https://elsewhere.example")),
		"of the issuer with a slash more": sign(with(good, "iss", provider.URL+"/")),
		"for another audience":            sign(with(good, "aud", "other")),
		"for no audience":                 sign(with(good, "aud", nil)),
		"for the audience in capitals":    sign(with(good, "aud", "POSTHASTE")),
		"expired":                         sign(with(good, "exp", now.Add(-time.Hour).Unix())),
		"without an end":                  sign(with(good, "exp", nil)),
		"not good yet":                    sign(with(good, "nbf", now.Add(time.Hour).Unix())),
		"unsigned":                        unsigned("none", good),
		"unsigned, in capitals":           unsigned("NONE", good),
		"without its signature":           unsigned("RS256", good),
		"HS256 with the public key":       jwt(t, jose.HS256, public, "first", good),
		"HS256 with the key as PEM":       jwt(t, jose.HS256, pemText, "first", good),
		"of an unknown key":               jwt(t, jose.RS256, forger, "forger", good),
		"of another under a known id":     jwt(t, jose.RS256, forger, "first", good),
		"with a path as key id":           jwt(t, jose.RS256, forger, "../../../dev/null", good),
		"with SQL as key id":              jwt(t, jose.RS256, forger, "' OR 1=1 --", good),
		"with an algorithm not taken":     jwt(t, jose.RS512, first, "first", good),
		"of no tenant":                    sign(with(good, "org", nil)),
		"of an unknown tenant":            sign(with(good, "org", "umbrella")),
		"of a tenant by its id":           sign(with(good, "org", acme.String())),
		"of nobody":                       sign(with(good, "email", "")),
		"of an address of anybody's":      sign(with(good, "email_verified", false)),
		"changed":                         strings.Replace(sign(good), ".", ".e", 1),
	} {
		if code, text := enqueue(bearer); code != http.StatusUnauthorized || !strings.Contains(text, "unauthenticated") {
			t.Errorf("a JWT %s: %d %s, want a 401", name, code, text)
		}
	}
	if code, _ := enqueue(sign(with(good, "roles", []string{"operator", "jobs.enqueue"}))); code != http.StatusForbidden {
		t.Errorf("a role that is not for enqueueing: %d, want 403", code)
	}

	// The provider goes on to its other key, as it announced, and then is away. (How
	// soon a key is asked for that was not announced, and refused once it is withdrawn,
	// is tested where the clock can be: access, TestKeysAreRotated.)
	rotated := jwt(t, jose.RS256, second, "second", good)
	if code, _ := enqueue(rotated); code != http.StatusAccepted {
		t.Errorf("a JWT of the next key: %d, want 202", code)
	}
	provider.set(func(i *issuer) { i.down = true })
	if code, _ := enqueue(rotated); code != http.StatusAccepted {
		t.Errorf("while the provider is away, a JWT of a known key: %d, want 202", code)
	}

	// Its own tokens are taken as before.
	token := strings.TrimSpace(ok(t, env{"DATABASE_URL": owner}, "tokens", "create", "shop", "-c", "jobs.enqueue,jobs.read"))
	if code, text := enqueue(token); code != http.StatusAccepted {
		t.Errorf("a token: %d %s, want 202", code, text)
	}
	if _, text := asked(t, "GET", jobs, token, ""); strings.Count(text, `"id"`) != 1 {
		t.Errorf("the token's tenant has %s, want the one job", text)
	}
}

// A provider that is away keeps nobody from starting, and tokens go on.
func TestServeStartsWithoutItsProvider(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	provider := newIssuer(t, map[string]*rsa.PrivateKey{"k": key})
	provider.set(func(i *issuer) { i.down = true })
	url := pgtest.URL(t)
	_, logs := serving(t, "--database-url", url, "--role", "api", "--api-addr", "127.0.0.1:0", "--oidc-issuer", provider.URL, "--oidc-audience", "posthaste")
	jobs := apiURL(t, logs) + "/jobs"
	bearer := jwt(t, jose.RS256, key, "k", map[string]any{"iss": provider.URL, "aud": "posthaste", "sub": "ada", "scope": "jobs.read", "exp": time.Now().Add(time.Hour).Unix()})
	if code, text := asked(t, "GET", jobs, bearer, ""); code != http.StatusServiceUnavailable {
		t.Errorf("while the provider is away: %d %s, want 503", code, text)
	}
	token := strings.TrimSpace(ok(t, env{"DATABASE_URL": url}, "tokens", "create", "shop", "-c", "jobs.read"))
	if code, text := asked(t, "GET", jobs, token, ""); code != http.StatusOK {
		t.Errorf("a token: %d %s, want 200", code, text)
	}
	provider.set(func(i *issuer) { i.down = false })
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if code, _ := asked(t, "GET", jobs, bearer, ""); code == http.StatusOK {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("with the provider back: %d, want 200", code)
		}
	}
	r := posthaste(t, env{"DATABASE_URL": url}, "", "serve", "--role", "api", "--oidc-issuer", "http://elsewhere.example", "--oidc-algorithms", "HS256")
	if r.code != exitUsage || !strings.Contains(r.errOut, "Audience") || !strings.Contains(r.errOut, "HS256") || !strings.Contains(r.errOut, "Issuer") {
		t.Errorf("got %+v, want every mistake and exit status 2", r)
	}
}

// The issuer may be there for people at the console alone; what is missing for them is a mistake found at the start.
func TestServeChecksHowPeopleSignInToTheConsole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ flags, want string }{
		{"--console-oidc-client c --oidc-issuer https://login.example.org", "needs --console-url"},
		{"--console-oidc-client c --console-url https://ops.example.org", "needs --oidc-issuer"},
		{"--console-oidc-client c --console-url http://ops.example.org --oidc-issuer http://elsewhere.example --oidc-algorithms HS256", "CallbackURL is"},
		{"--console-oidc-client c --console-url https://ops.example.org --oidc-issuer http://elsewhere.example --oidc-algorithms HS256", "HS256"},
		{"--console-oidc-scopes profile,\"x", "is no scope"},
		{"--console-oidc-recheck 1h", "console-oidc-recheck"},
	} {
		args := append([]string{"serve", "--role", "console", "--console-addr", "127.0.0.1:0"}, strings.Fields(c.flags)...)
		r := posthaste(t, env{"DATABASE_URL": "postgres://127.0.0.1:1/x"}, "", args...)
		if r.code != exitUsage || !strings.Contains(r.errOut, c.want) || strings.Contains(r.errOut, "Audience") {
			t.Errorf("%s: got %+v, want %q and exit status 2", c.flags, r, c.want)
		}
	}
}

// A token that asks too often gets the time of its next request, from the real process,
// and others go on.
func TestServeBoundsTheRequestsOfAToken(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := env{"DATABASE_URL": url}
	one, other := strings.TrimSpace(ok(t, e, "tokens", "create", "one", "-c", "jobs.read")), strings.TrimSpace(ok(t, e, "tokens", "create", "other", "-c", "jobs.read"))
	_, logs := serving(t, "--database-url", url, "--role", "api", "--api-addr", "127.0.0.1:0", "--api-rate", "0.01")
	jobs := apiURL(t, logs) + "/jobs"
	if code, text := asked(t, "GET", jobs, one, ""); code != http.StatusOK {
		t.Errorf("the first request: %d %s, want 200", code, text)
	}
	if code, text := asked(t, "GET", jobs, one, ""); code != http.StatusTooManyRequests || !strings.Contains(text, "rate_limited") {
		t.Errorf("the second: %d %s, want a 429", code, text)
	}
	if code, text := asked(t, "GET", jobs, other, ""); code != http.StatusOK {
		t.Errorf("of another token: %d %s, want 200", code, text)
	}
}

// What a login may see that is a member of outbox_api and of nothing else is what
// the API serves: everything, tenant by tenant.
func TestServeWithTheAPIsRoleAlone(t *testing.T) {
	t.Parallel()
	owner := pgtest.URL(t)
	e := env{"DATABASE_URL": owner}
	a, b := outbox.NewID().String(), outbox.NewID().String()
	create := func(args ...string) string {
		return strings.TrimSpace(ok(t, e, append([]string{"tokens", "create", "x", "-c", "jobs.enqueue,jobs.read,jobs.cancel,admin.read,admin.mutate,payload.read"}, args...)...))
	}
	ofA, ofB, root := create("--tenant", a), create("--tenant", b), create("--all-tenants")
	_, logs := serving(t, "--database-url", pgtest.LoginURL(t, owner, "outbox_api"), "--role", "api", "--api-addr", "127.0.0.1:0")
	at := apiURL(t, logs)
	code, text := asked(t, "POST", at+"/jobs", ofA, `{"kind":"mail"}`)
	var job struct{ ID string }
	if err := json.Unmarshal([]byte(text), &job); err != nil || code != http.StatusAccepted {
		t.Fatalf("POST /jobs: %d %s", code, text)
	}
	for _, c := range []struct {
		method, path, token string
		want                int
	}{
		{"GET", "/jobs/" + job.ID, ofA, 200},
		{"GET", "/jobs/" + job.ID, ofB, 404},
		{"GET", "/jobs/" + job.ID, root, 200},
		{"POST", "/jobs/" + job.ID + "/retry", ofB, 404},
		{"POST", "/jobs/" + job.ID + "/retry", ofA, 200},
		{"GET", "/stats", ofB, 200},
		{"POST", "/queues/mail/pause", ofA, 403},
		{"POST", "/queues/mail/pause", root, 200},
	} {
		if code, text := asked(t, c.method, at+c.path, c.token, ""); code != c.want {
			t.Errorf("%s %s: %d %s, want %d", c.method, c.path, code, text, c.want)
		}
	}
	if out := ok(t, e, "audit"); !strings.Contains(out, "queue.pause") || !strings.Contains(out, "job.retry") || strings.Count(out, "token.create") != 3 {
		t.Errorf("the audit has\n%s\nwant the acts and the tokens", out)
	}
	if strings.Contains(logs.String(), "permission denied") {
		t.Error("something that it tried is denied")
	}
}
