package access

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/posthaste-dev/posthaste/outbox"
)

// OIDCConfig sets how JWTs of an OpenID Connect provider are verified. Issuer and Audience are required.
type OIDCConfig struct {
	Issuer   string // exactly as in the claim iss; https, or http on this machine
	Audience string // must be in the claim aud: the provider's name for this API

	// Algorithms are the accepted ones; nil accepts the usual asymmetric ones.
	Algorithms []string
	Leeway     time.Duration // for exp and nbf, between the provider's clock and ours; 0 means 30 s, at most a minute

	// NameClaim is the claim with the caller's name, which nobody may be able to choose for themselves; "" means sub.
	// With email, a JWT whose email_verified is not true is refused.
	NameClaim string

	// TenantClaim is the claim that names the tenant, by its id or by a name in Tenants. A JWT without it, or with
	// another value, is refused. "" gives every JWT the tenant Tenant.
	TenantClaim string
	Tenants     map[string]outbox.ID
	Tenant      outbox.ID // zero means the root tenant

	// CapabilityClaim is the claim that lists what the caller may do, separated by spaces or as an array; "" means
	// scope. Capabilities maps each value to what it grants; if it is nil, a value grants the capability of that name.
	// Other values grant nothing.
	CapabilityClaim string
	Capabilities    map[string][]Capability
	// AllTenants is the value of that claim with which the caller sees and acts on the jobs of every tenant; "" means
	// none.
	AllTenants string

	Client *http.Client // for requests to the provider; nil means one with a timeout of 5 s
	Logger *slog.Logger // nil logs nothing
}

const (
	defaultLeeway   = 30 * time.Second
	maxLeeway       = time.Minute
	providerTimeout = 5 * time.Second
	maxAnswerBytes  = 1 << 20
)

// asymmetric lists the algorithms with which a provider signs and we can only verify. With HS256 and the like, anybody
// who can verify a JWT could also make one.
var asymmetric = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512,
	oidc.EdDSA,
}

func (c OIDCConfig) withDefaults() OIDCConfig {
	if c.Algorithms == nil {
		c.Algorithms = asymmetric
	}
	c.Leeway = cmp.Or(c.Leeway, defaultLeeway)
	c.NameClaim = cmp.Or(c.NameClaim, "sub")
	c.CapabilityClaim = cmp.Or(c.CapabilityClaim, "scope")
	c.Tenant = cmp.Or(c.Tenant, outbox.RootTenant)
	client := http.Client{Timeout: providerTimeout}
	if c.Client != nil {
		client = *c.Client
	}
	client.CheckRedirect = followWithinReason
	client.Transport = boundedAnswers{cmp.Or(client.Transport, http.DefaultTransport)}
	c.Client = &client
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate returns every mistake in the configuration that shows without asking the provider.
func (c OIDCConfig) Validate() error { return c.withDefaults().validate() }

func (c OIDCConfig) validate() error {
	var errs []error
	note := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	note(!isTrustworthy(c.Issuer), "Issuer is %q, want an https URL, or http on this machine", c.Issuer)
	note(c.Audience == "", "Audience is empty, want what the provider calls this API")
	note(len(c.Algorithms) == 0, "Algorithms is empty, want at least one, or nil for the usual ones")
	for _, a := range c.Algorithms {
		note(!slices.Contains(asymmetric, a), "Algorithms: %q is not one of %s", a, strings.Join(asymmetric, ", "))
	}
	note(c.Leeway < 0 || c.Leeway > maxLeeway, "Leeway is %s, want up to %s", c.Leeway, maxLeeway)
	for value, capabilities := range c.Capabilities {
		for _, capability := range capabilities {
			_, err := ParseCapability(string(capability))
			note(err != nil, "Capabilities[%q]: %w", value, err)
		}
	}
	for name, id := range c.Tenants {
		note(id.IsZero(), "Tenants[%q] is zero", name)
	}
	note(c.TenantClaim == "" && len(c.Tenants) > 0, "Tenants is given without a TenantClaim")
	return errors.Join(errs...)
}

// isTrustworthy reports whether keys from this address must be the provider's: nobody on the way can have changed them.
func isTrustworthy(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Scheme == "https" || u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback())
}

// followWithinReason follows a redirect only to an address whose answer can be trusted, too.
func followWithinReason(r *http.Request, via []*http.Request) error {
	if len(via) > 3 || !isTrustworthy(r.URL.String()) {
		return fmt.Errorf("redirected to %s, which is not followed", r.URL.Redacted())
	}
	return nil
}

// boundedAnswers limits how much of an answer is read.
type boundedAnswers struct{ http.RoundTripper }

func (b boundedAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(r)
	// The body is the connection, which no timeout closes.
	if err == nil && response.StatusCode == http.StatusSwitchingProtocols {
		response.Body.Close()
		return nil, fmt.Errorf("the provider answered %s", response.Status)
	}
	if err == nil {
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, maxAnswerBytes), response.Body}
	}
	return response, err
}

// OIDC authenticates JWTs of one provider.
type OIDC struct {
	config     OIDCConfig
	provider   *oidc.Provider
	algorithms []jose.SignatureAlgorithm
	keys       *providerKeys
}

var _ Authenticator = (*OIDC)(nil)

// NewOIDC asks the provider where its keys are and fetches them, so that mistakes show at the start. From then on the
// provider may be unavailable: the known keys remain in use.
func NewOIDC(ctx context.Context, config OIDCConfig) (*OIDC, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("oidc: %w", err)
	}
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, config.Client), config.Issuer)
	if err != nil {
		return nil, fmt.Errorf("oidc: discover %s: %w", config.Issuer, short(err))
	}
	var found struct {
		JWKS string `json:"jwks_uri"`
	}
	if err := provider.Claims(&found); err != nil || !isTrustworthy(found.JWKS) {
		return nil, fmt.Errorf("oidc: discover %s: its jwks_uri is %q, want an https URL", config.Issuer, found.JWKS)
	}
	o := &OIDC{config: config, provider: provider, keys: newProviderKeys(found.JWKS, config.Client, config.Logger)}
	for _, a := range config.Algorithms {
		o.algorithms = append(o.algorithms, jose.SignatureAlgorithm(a))
	}
	if err := o.keys.refresh(ctx); err != nil {
		return nil, fmt.Errorf("oidc: %w", err)
	}
	return o, nil
}

// short cuts an error that quotes a provider's whole answer.
func short(err error) error {
	if text := err.Error(); len(text) > 300 {
		return errors.New(text[:300] + "…")
	}
	return err
}

// Authenticate identifies the bearer of a JWT, which must be issued by the provider for this API, valid now, and signed
// with a key that the provider publishes.
func (o *OIDC) Authenticate(ctx context.Context, bearer string) (Principal, error) {
	if len(bearer) > maxBearerBytes {
		return Principal{}, refused("the JWT is %d bytes long", len(bearer))
	}
	claims, err := o.verify(ctx, bearer)
	if err != nil {
		return Principal{}, err
	}
	return o.principal(claims)
}

// errClocks reports that a JWT is not valid yet or any more.
var errClocks = errors.New("it is not the time of the JWT")

// verify returns the claims of a JWT that the provider has issued for the audience, and that is valid now.
func (o *OIDC) verify(ctx context.Context, bearer string) (map[string]json.RawMessage, error) {
	signed, err := jose.ParseSignedCompact(bearer, o.algorithms)
	if err != nil || len(signed.Signatures) != 1 {
		return nil, refused("the JWT is malformed or signed in a way that is not taken: %v", err)
	}
	header := signed.Signatures[0].Header
	key, err := o.keys.find(ctx, header.KeyID, header.Algorithm)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	verifier := oidc.NewVerifier(o.config.Issuer, &oidc.StaticKeySet{PublicKeys: key}, &oidc.Config{
		ClientID: o.config.Audience, SupportedSigningAlgs: o.config.Algorithms,
		Now: func() time.Time { return now.Add(-o.config.Leeway) }, // for exp; nbf is below
	})
	token, err := verifier.Verify(ctx, bearer)
	if _, late := errors.AsType[*oidc.TokenExpiredError](err); late {
		return nil, fmt.Errorf("%w: %w: %w", ErrUnauthenticated, errClocks, err)
	}
	if err != nil {
		return nil, refused("%v", err)
	}
	var claims map[string]json.RawMessage
	if err := token.Claims(&claims); err != nil {
		return nil, refused("the claims are no JSON object")
	}
	if name, found := misspelt(claims); found {
		return nil, refused("the claim %.64q is not as it is spelt", name)
	}
	if early, err := o.isEarly(claims, now); err != nil || early {
		return nil, fmt.Errorf("%w: %w: it is not good yet", ErrUnauthenticated, errClocks)
	}
	return claims, nil
}

// misspelt returns a claim that differs only in case from a verified one: encoding/json, with which package oidc
// decodes them, accepts AUD for aud, and uses the last of both. A provider may let its users name claims.
func misspelt(claims map[string]json.RawMessage) (string, bool) {
	for name := range claims {
		for _, verified := range []string{"iss", "aud", "sub", "exp", "nbf", "iat"} {
			if name != verified && strings.EqualFold(name, verified) {
				return name, true
			}
		}
	}
	return "", false
}

// isEarly reports whether the JWT is not valid yet.
func (o *OIDC) isEarly(claims map[string]json.RawMessage, now time.Time) (bool, error) {
	raw, ok := claims["nbf"]
	if !ok {
		return false, nil
	}
	var seconds float64
	err := json.Unmarshal(raw, &seconds)
	return seconds > float64(now.Add(o.config.Leeway).Unix()), err
}

// principal returns the principal for the claims of a valid JWT.
func (o *OIDC) principal(claims map[string]json.RawMessage) (Principal, error) {
	p := Principal{Name: text(claims[o.config.NameClaim]), Tenant: o.config.Tenant, Capabilities: map[Capability]bool{}}
	if p.Name == "" || len(p.Name) > maxActorBytes || hasControl(p.Name) {
		return Principal{}, refused("the claim %s names nobody", o.config.NameClaim)
	}
	if o.config.NameClaim == "email" && !isTrue(claims["email_verified"]) {
		return Principal{}, refused("the claim email of %q is not verified: email_verified is not true", p.Name)
	}
	if o.config.TenantClaim != "" {
		tenant, ok := o.tenant(text(claims[o.config.TenantClaim]))
		if !ok {
			return Principal{}, refused("the claim %s of %q names no tenant", o.config.TenantClaim, p.Name)
		}
		p.Tenant = tenant
	}
	for _, value := range list(claims[o.config.CapabilityClaim]) {
		p.AllTenants = p.AllTenants || o.config.AllTenants != "" && value == o.config.AllTenants
		granted := o.config.Capabilities[value]
		if c, err := ParseCapability(value); err == nil && o.config.Capabilities == nil {
			granted = []Capability{c}
		}
		for _, c := range granted {
			p.Capabilities[c] = true
		}
	}
	return p, nil
}

func (o *OIDC) tenant(value string) (outbox.ID, bool) {
	if id, ok := o.config.Tenants[value]; ok {
		return id, true
	}
	id, err := outbox.ParseID(value)
	return id, err == nil && !id.IsZero() && o.config.Tenants == nil
}

// text returns "" for a claim that is absent or not a string.
func text(claim json.RawMessage) (s string) {
	if json.Unmarshal(claim, &s) != nil {
		return ""
	}
	return s
}

// isTrue reports whether a claim is true. Some providers write it as a string.
func isTrue(claim json.RawMessage) bool {
	var b bool
	return json.Unmarshal(claim, &b) == nil && b || text(claim) == "true"
}

// list returns the values of a claim that is words in a string, or an array of strings.
func list(claim json.RawMessage) (values []string) {
	if json.Unmarshal(claim, &values) == nil {
		return values
	}
	return strings.Fields(text(claim))
}
