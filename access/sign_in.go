package access

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
)

// SignInConfig sets how people sign in at an OpenID Connect provider, by its authorization code flow with PKCE. Fields
// are required unless their zero value is explained.
type SignInConfig struct {
	// Provider sets how ID tokens are verified and what their claims mean, by the rules for JWTs of the API. Its
	// Audience has no effect: ID tokens are for ClientID.
	Provider OIDCConfig

	ClientID     string
	ClientSecret string // "" means a public client, which only PKCE protects
	// CallbackURL is where the provider sends people back to, as registered there: https, or http on this machine.
	CallbackURL string
	Scopes      []string // in addition to openid; nil means profile and email
}

func (c SignInConfig) withDefaults() SignInConfig {
	c.Provider.Audience = c.ClientID
	c.Provider = c.Provider.withDefaults()
	if c.Scopes == nil {
		c.Scopes = []string{"profile", "email"}
	}
	return c
}

// Validate returns every mistake in the configuration that shows without asking the provider.
func (c SignInConfig) Validate() error {
	var errs []error
	if c.ClientID == "" {
		errs = append(errs, errors.New("ClientID is empty, want what the provider calls the console"))
	}
	if !isTrustworthy(c.CallbackURL) {
		errs = append(errs, fmt.Errorf("CallbackURL is %q, want an https URL, or http on this machine", c.CallbackURL))
	}
	c = c.withDefaults()
	c.Provider.Audience = cmp.Or(c.Provider.Audience, "unnamed") // already reported
	return errors.Join(append(errs, c.Provider.validate())...)
}

// SignIn signs in people of one provider. It is safe for concurrent use.
type SignIn struct {
	config SignInConfig
	found  atomic.Pointer[endpoints] // nil until the provider has been discovered
	flight singleflight.Group
	asked  time.Time // when the latest discovery failed, and how; used by the flight
	failed error
}

// endpoints are what a provider publishes about itself.
type endpoints struct {
	judge       *OIDC
	oauth       oauth2.Config
	end         string // where people sign out; "" if nowhere
	namesIssuer bool
}

// discoveryRest is the time between two discoveries of a provider that does not answer.
const discoveryRest = 2 * time.Second

// NewSignIn returns a SignIn. It does not contact the provider yet: the first person who signs in triggers that.
func NewSignIn(config SignInConfig) (*SignIn, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("sign-in: %w", err)
	}
	return &SignIn{config: config.withDefaults()}, nil
}

// Host returns the provider's host.
func (s *SignIn) Host() string {
	u, _ := url.Parse(s.config.Provider.Issuer) // validate has parsed it
	return u.Host
}

// Issuer returns the provider's issuer.
func (s *SignIn) Issuer() string { return s.config.Provider.Issuer }

// CapabilityClaim returns the name of the claim that lists what people may do.
func (s *SignIn) CapabilityClaim() string { return s.config.Provider.CapabilityClaim }

// discover returns the provider's endpoints, asking it the first time.
func (s *SignIn) discover(ctx context.Context) (*endpoints, error) {
	if found := s.found.Load(); found != nil {
		return found, nil
	}
	shared := s.flight.DoChan("", func() (any, error) {
		if found := s.found.Load(); found != nil {
			return found, nil
		}
		if s.failed != nil && time.Since(s.asked) < discoveryRest {
			return nil, s.failed
		}
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*providerTimeout)
		defer cancel()
		found, err := s.ask(bound)
		if err != nil {
			s.asked, s.failed = time.Now(), fmt.Errorf("%w: %w", ErrProviderAway, err)
			return nil, s.failed
		}
		s.found.Store(found)
		return found, nil
	})
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case result := <-shared:
		found, _ := result.Val.(*endpoints)
		return found, result.Err
	}
}

func (s *SignIn) ask(ctx context.Context) (*endpoints, error) {
	judge, err := NewOIDC(ctx, s.config.Provider)
	if err != nil {
		return nil, err
	}
	var about struct {
		End         string   `json:"end_session_endpoint"`
		Challenges  []string `json:"code_challenge_methods_supported"`
		Ways        []string `json:"token_endpoint_auth_methods_supported"`
		NamesIssuer bool     `json:"authorization_response_iss_parameter_supported"`
	}
	if err := judge.provider.Claims(&about); err != nil {
		return nil, fmt.Errorf("oidc: discover %s: %w", s.config.Provider.Issuer, short(err))
	}
	endpoint := judge.provider.Endpoint()
	for _, address := range []string{endpoint.AuthURL, endpoint.TokenURL} {
		if !isTrustworthy(address) {
			return nil, fmt.Errorf("oidc: discover %s: its endpoint is %q, want an https URL", s.config.Provider.Issuer,
				address)
		}
	}
	if about.Challenges != nil && !slices.Contains(about.Challenges, "S256") {
		return nil, fmt.Errorf("oidc: discover %s: it takes no code challenges by S256", s.config.Provider.Issuer)
	}
	if !isTrustworthy(about.End) {
		about.End = ""
	}
	// Trying both ways, as package oauth2 does by default, would use up the code with the first one.
	if endpoint.AuthStyle = oauth2.AuthStyleInHeader; s.config.ClientSecret == "" ||
		about.Ways != nil && !slices.Contains(about.Ways, "client_secret_basic") {
		endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	return &endpoints{
		judge: judge, end: about.End, namesIssuer: about.NamesIssuer,
		oauth: oauth2.Config{
			ClientID: s.config.ClientID, ClientSecret: s.config.ClientSecret, RedirectURL: s.config.CallbackURL,
			Endpoint: endpoint,
			Scopes:   append([]string{"openid"}, s.config.Scopes...),
		},
	}, nil
}

// Attempt is a sign-in that has begun. It is secret: store it where only the browser that began it can get it.
type Attempt struct {
	State    string `json:"state"`
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"`
}

// Begin begins a sign-in. It returns where to send the person.
func (s *SignIn) Begin(ctx context.Context) (Attempt, string, error) {
	found, err := s.discover(ctx)
	if err != nil {
		return Attempt{}, "", err
	}
	a := Attempt{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier()}
	return a, found.oauth.AuthCodeURL(a.State, oauth2.S256ChallengeOption(a.Verifier),
		oauth2.SetAuthURLParam("nonce", a.Nonce)), nil
}

// Person is a person who has signed in.
type Person struct {
	Principal Principal `json:"principal"`
	Subject   string    `json:"subject"`           // the provider's identifier
	Refresh   string    `json:"refresh,omitempty"` // for Confirm to ask the provider again; "" if it gave none
	Expires   time.Time `json:"expires"`           // of the provider's statements; Confirm must be called after it
	IDToken   string    `json:"-"`                 // for EndURL
}

// Finish ends a sign-in with the parameters with which the provider sent the person back. It returns a [*SignInError]
// for a person who is refused, and [ErrProviderAway] if the answer could not be obtained.
func (s *SignIn) Finish(ctx context.Context, a Attempt, answer url.Values) (Person, error) {
	found, err := s.discover(ctx)
	if err != nil {
		return Person{}, err
	}
	if a.State == "" || subtle.ConstantTimeCompare([]byte(answer.Get("state")), []byte(a.State)) != 1 {
		return Person{}, &SignInError{UnknownSignIn, errors.New("the state is not that of the sign-in")}
	}
	if issuer := answer.Get("iss"); issuer != s.config.Provider.Issuer && (issuer != "" || found.namesIssuer) {
		return Person{}, &SignInError{UnknownSignIn, fmt.Errorf("the answer is of %.100q", issuer)}
	}
	if code := answer.Get("error"); code != "" {
		return Person{}, &SignInError{Denied, fmt.Errorf("%.64q: %.200q", code, answer.Get("error_description"))}
	}
	if answer.Get("code") == "" {
		return Person{}, &SignInError{UnknownSignIn, errors.New("the answer has no code")}
	}
	token, err := found.oauth.Exchange(s.withClient(ctx), answer.Get("code"), oauth2.VerifierOption(a.Verifier))
	if err != nil {
		return Person{}, exchangeError(err)
	}
	raw, _ := token.Extra("id_token").(string)
	p, err := s.person(ctx, found, raw, a.Nonce)
	p.Refresh = token.RefreshToken
	return p, err
}

// Confirm asks the provider whether the person is still allowed in, and for their present claims. It returns a
// [*SignInError] if not, and [ErrProviderAway] if the answer could not be obtained.
func (s *SignIn) Confirm(ctx context.Context, p Person) (Person, error) {
	found, err := s.discover(ctx)
	if err != nil {
		return Person{}, err
	}
	token, err := found.oauth.TokenSource(s.withClient(ctx), &oauth2.Token{RefreshToken: p.Refresh}).Token()
	if err != nil {
		return Person{}, exchangeError(err)
	}
	again := p
	switch raw, _ := token.Extra("id_token").(string); {
	case raw != "":
		if again, err = s.person(ctx, found, raw, ""); err != nil {
			return Person{}, err
		}
		if again.Subject != p.Subject {
			return Person{}, &SignInError{Untrusted, errors.New("the provider answers for somebody else")}
		}
	case time.Now().After(p.Expires): // a provider may omit it, and so confirm nothing about present permissions
		return Person{}, &SignInError{
			InvalidGrant,
			errors.New("the provider has renewed the session without a new ID token, and the last one is over"),
		}
	}
	again.Refresh = token.RefreshToken
	return again, nil
}

// EndURL returns where the person signs out at the provider, which sends them back to an address that is registered
// there; "" if the provider has no such endpoint, or does not answer. With an ID token the provider asks them no
// question.
func (s *SignIn) EndURL(ctx context.Context, idToken, back string) string {
	found, err := s.discover(ctx)
	if err != nil || found.end == "" {
		return ""
	}
	u, err := url.Parse(found.end)
	if err != nil {
		return ""
	}
	q := u.Query()
	q.Set("client_id", s.config.ClientID)
	q.Set("post_logout_redirect_uri", back)
	if idToken != "" {
		q.Set("id_token_hint", idToken)
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// person returns the person of an ID token. A nonce that is not "" must be in it.
func (s *SignIn) person(ctx context.Context, found *endpoints, raw, nonce string) (Person, error) {
	claims, err := found.judge.verify(ctx, raw)
	switch {
	case errors.Is(err, errClocks):
		return Person{}, &SignInError{ClocksDiffer, err}
	case errors.Is(err, ErrUnauthenticated):
		return Person{}, &SignInError{Untrusted, err}
	case err != nil:
		return Person{}, err
	case nonce != "" && subtle.ConstantTimeCompare([]byte(text(claims["nonce"])), []byte(nonce)) != 1:
		return Person{}, &SignInError{Untrusted, errors.New("the ID token is of another sign-in: its nonce differs")}
	case len(list(claims["aud"])) > 1 && text(claims["azp"]) == "", text(claims["azp"]) != "" &&
		text(claims["azp"]) != s.config.ClientID:
		return Person{}, &SignInError{
			Untrusted,
			errors.New("the ID token was issued to another client: its claim azp says so"),
		}
	}
	who, err := found.judge.principal(claims)
	if err != nil {
		return Person{}, &SignInError{NoPerson, err}
	}
	if len(who.Capabilities) == 0 {
		return Person{}, &SignInError{NoCapability, fmt.Errorf("nothing in the claim %s of %q grants anything",
			s.config.Provider.CapabilityClaim, who.Name)}
	}
	var expires float64
	_ = json.Unmarshal(claims["exp"], &expires) // it was verified
	return Person{
		Principal: who, Subject: text(claims["sub"]), IDToken: raw, Expires: time.Unix(int64(math.Min(expires, 1<<40)),
			0).Add(s.config.Provider.Leeway),
	}, nil
}

// withClient makes package oauth2 use the configured client, but follow no redirect: what is sent is secret.
func (s *SignIn) withClient(ctx context.Context) context.Context {
	client := *s.config.Provider.Client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return context.WithValue(ctx, oauth2.HTTPClient, &client)
}

// exchangeError returns the error for a failed request for tokens. It repeats only the code of the provider's text.
func exchangeError(err error) error {
	answer, answered := errors.AsType[*oauth2.RetrieveError](err)
	if !answered { // or not in readable form
		return fmt.Errorf("ask for tokens: %w: %w", ErrProviderAway, short(err))
	}
	says := fmt.Errorf("ask for tokens: the provider answers %s, %.64q", answer.Response.Status, answer.ErrorCode)
	switch status := answer.Response.StatusCode; {
	case status >= 500, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout:
		return fmt.Errorf("%w: %w", ErrProviderAway, says)
	case answer.ErrorCode == "invalid_grant":
		return &SignInError{InvalidGrant, says}
	}
	return &SignInError{Misconfigured, says}
}

// SignInReason is the reason for which a person is refused.
type SignInReason int

const (
	UnknownSignIn SignInReason = iota // the answer belongs to no sign-in that this browser has begun
	Denied                            // the provider refuses, or the person did
	InvalidGrant                      // the code or the refresh token is no longer valid
	Misconfigured                     // the provider does not accept our client credentials
	Untrusted                         // the provider's answer cannot be trusted
	ClocksDiffer                      // its clock and ours differ
	NoPerson                          // the claims name no person, or no tenant
	NoCapability                      // the claims grant nothing
)

// SignInError reports why a person is refused. It is [ErrUnauthenticated]. Its text contains no secrets, but parts of
// it come from outside.
type SignInError struct {
	Reason SignInReason
	err    error
}

func (e *SignInError) Error() string { return "sign in: " + e.err.Error() }

// Detail returns the reason alone.
func (e *SignInError) Detail() string { return e.err.Error() }

// Unwrap makes the error an [ErrUnauthenticated].
func (e *SignInError) Unwrap() []error { return []error{ErrUnauthenticated, e.err} }
