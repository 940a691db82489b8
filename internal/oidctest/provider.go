// Package oidctest is an OpenID Connect provider for tests: real keys, and the authorization code flow with PKCE over
// HTTP. Every person who comes to it is signed in already.
package oidctest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Provider knows one client.
type Provider struct {
	*httptest.Server
	// Client and Secret identify the client; a public client has no Secret.
	Client, Secret string

	mu      sync.Mutex
	claims  map[string]any // of who is signed in
	change  func(*Answer)
	back    []string // addresses that people may be sent to
	down    bool
	removed bool
	codes   map[string]grant
	refresh map[string]grant
	asked   []string // what the token endpoint was asked for
	hints   []string // ID tokens with which people signed out
	life    time.Duration
	key     jose.JSONWebKey
}

// grant is what a person has agreed to.
type grant struct {
	nonce, challenge, callback string
}

// Answer is a response that the token endpoint is about to send.
type Answer struct {
	NoIDToken bool            // in the answer, as a provider may leave it out of a refresh
	Claims    map[string]any  // of the ID token
	Key       jose.JSONWebKey // that signs it
	IDToken   string          // replaces what Claims and Key make, unless it is ""
	Refresh   string          // "" leaves it out
	Status    int             // 0 is 200
	Error     string          // with a Status
}

var rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, _ := rsa.GenerateKey(rand.Reader, 2048)
	return key
})

// RSA returns a key for RS256.
func RSA(id string) jose.JSONWebKey {
	return jose.JSONWebKey{Key: rsaKey(), KeyID: id, Algorithm: "RS256", Use: "sig"}
}

// ES returns a new key for ES256.
func ES(id string) jose.JSONWebKey {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return jose.JSONWebKey{Key: key, KeyID: id, Algorithm: "ES256", Use: "sig"}
}

// New starts a provider whose client is the console.
func New(t testing.TB, key jose.JSONWebKey) *Provider {
	t.Helper()
	p := &Provider{
		Client: "console", Secret: "hush & keep=it", key: key, codes: map[string]grant{}, refresh: map[string]grant{},
		life: 5 * time.Minute,
		claims: map[string]any{
			"sub": "u-1", "email": "ada@example.org", "email_verified": true,
			"roles": []string{"operator"},
		},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", p.about)
	mux.HandleFunc("GET /keys", p.keys)
	mux.HandleFunc("GET /authorize", p.authorize)
	mux.HandleFunc("POST /token", p.token)
	mux.HandleFunc("GET /end", p.end)
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.down {
			http.Error(w, "away", http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

// Set sets who is signed in: the claims besides those of every ID token.
func (p *Provider) Set(claims map[string]any) { p.do(func() { p.claims = claims }) }

// Change sets a function that changes every response of the token endpoint; nil changes none.
func (p *Provider) Change(f func(*Answer)) { p.do(func() { p.change = f }) }

// Allow registers addresses to which people may be sent back.
func (p *Provider) Allow(back ...string) { p.do(func() { p.back = append(p.back, back...) }) }

// Down sets whether the provider is down: then it answers no requests.
func (p *Provider) Down(down bool) { p.do(func() { p.down = down }) }

// Remove removes all people: the provider does not confirm sign-ins any more.
func (p *Provider) Remove() { p.do(func() { p.removed = true }) }

// Life sets how long ID tokens are valid.
func (p *Provider) Life(d time.Duration) { p.do(func() { p.life = d }) }

// Asked returns the requests to the token endpoint since the start.
func (p *Provider) Asked() (asked []string) {
	p.do(func() { asked = slices.Clone(p.asked) })
	return asked
}

// SignedOut returns the ID tokens with which people signed out.
func (p *Provider) SignedOut() (hints []string) {
	p.do(func() { hints = slices.Clone(p.hints) })
	return hints
}

func (p *Provider) do(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *Provider) about(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{
		"issuer": p.URL, "jwks_uri": p.URL + "/keys", "authorization_endpoint": p.URL + "/authorize",
		"token_endpoint":       p.URL + "/token",
		"end_session_endpoint": p.URL + "/end", "code_challenge_methods_supported": []string{"S256"},
		"authorization_response_iss_parameter_supported": true,
	})
}

func (p *Provider) keys(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{p.key.Public()}})
}

// authorize sends people back with a code. For what it would have to tell the person, it responds with a 400: it sends
// nobody to an address that is not registered.
func (p *Provider) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	callback := q.Get("redirect_uri")
	if q.Get("client_id") != p.Client || !slices.Contains(p.back, callback) {
		http.Error(w, "no such client, or not its address", http.StatusBadRequest)
		return
	}
	back := url.Values{"state": {q.Get("state")}, "iss": {p.URL}, "session_state": {"x"}}
	if q.Get("response_type") != "code" || !slices.Contains(strings.Fields(q.Get("scope")), "openid") ||
		q.Get("code_challenge_method") != "S256" || len(q.Get("code_challenge")) != 43 {
		back.Set("error", "invalid_request")
	} else {
		code := rand.Text()
		p.codes[code] = grant{q.Get("nonce"), q.Get("code_challenge"), callback}
		back.Set("code", code)
	}
	http.Redirect(w, r, callback+"?"+back.Encode(), http.StatusFound)
}

func (p *Provider) token(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, code string) { answer(w, status, map[string]string{"error": code}) }
	_ = r.ParseForm()
	kind := r.PostForm.Get("grant_type")
	p.asked = append(p.asked, kind)
	if !p.isClient(r) {
		refuse(http.StatusUnauthorized, "invalid_client")
		return
	}
	given, grants, nonce := r.PostForm.Get("refresh_token"), p.refresh, ""
	if kind == "authorization_code" {
		given, grants = r.PostForm.Get("code"), p.codes
	}
	g, ok := grants[given]
	delete(grants, given) // each is good once
	if kind == "authorization_code" {
		sum := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
		nonce = g.nonce
		ok = ok && g.callback == r.PostForm.Get("redirect_uri") && g.challenge == base64.RawURLEncoding.EncodeToString(
			sum[:])
	}
	if !ok || p.removed {
		refuse(http.StatusBadRequest, "invalid_grant")
		return
	}
	p.issue(w, nonce)
}

// isClient reports whether the request is the client's: it has the client's secret in the header, or only its name if
// the client has no secret.
func (p *Provider) isClient(r *http.Request) bool {
	if p.Secret == "" {
		return r.PostForm.Get("client_id") == p.Client
	}
	id, secret, _ := r.BasicAuth()
	id, _ = url.QueryUnescape(id)
	secret, _ = url.QueryUnescape(secret)
	return id == p.Client && secret == p.Secret
}

func (p *Provider) issue(w http.ResponseWriter, nonce string) {
	now := time.Now()
	a := Answer{Key: p.key, Refresh: rand.Text(), Claims: maps.Clone(p.claims)}
	maps.Copy(a.Claims, map[string]any{"iss": p.URL, "aud": p.Client, "iat": now.Unix(), "exp": now.Add(p.life).Unix()})
	if nonce != "" {
		a.Claims["nonce"] = nonce
	}
	if p.change != nil {
		p.change(&a)
	}
	if a.Status != 0 {
		answer(w, a.Status, map[string]string{"error": a.Error})
		return
	}
	if a.IDToken == "" && !a.NoIDToken {
		a.IDToken = Sign(a.Key, a.Claims)
	}
	if a.Refresh != "" {
		p.refresh[a.Refresh] = grant{}
	}
	answer(w, http.StatusOK, map[string]any{
		"access_token": rand.Text(), "token_type": "Bearer", "expires_in": 60,
		"id_token": a.IDToken, "refresh_token": a.Refresh,
	})
}

func (p *Provider) end(w http.ResponseWriter, r *http.Request) {
	back := r.URL.Query().Get("post_logout_redirect_uri")
	if r.URL.Query().Get("client_id") != p.Client || !slices.Contains(p.back, back) {
		http.Error(w, "no such client, or not its address", http.StatusBadRequest)
		return
	}
	p.hints = append(p.hints, r.URL.Query().Get("id_token_hint"))
	http.Redirect(w, r, back, http.StatusFound)
}

// Sign returns a signed JWT.
func Sign(key jose.JSONWebKey, claims map[string]any) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(key.Algorithm), Key: key.Key},
		(&jose.SignerOptions{}).WithHeader("kid", key.KeyID))
	if err != nil {
		panic(err)
	}
	payload, _ := json.Marshal(claims)
	signed, err := signer.Sign(payload)
	if err != nil {
		panic(err)
	}
	text, _ := signed.CompactSerialize() // it has one signature
	return text
}

func answer(w http.ResponseWriter, status int, what any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(what)
}
