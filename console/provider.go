package console

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/a-h/templ"
	"golang.org/x/sync/singleflight"

	"github.com/posthaste-dev/posthaste/access"
)

const (
	idleLength  = time.Hour        // that a person's session lasts without the provider's confirmation
	attemptTime = 10 * time.Minute // that people may take at the provider
	askRest     = 10 * time.Second // between two requests to a provider that does not answer
	clocksApart = time.Minute      // by which the clocks of two processes may differ
)

// person is what a session seals about a person who has signed in at the provider.
type person struct {
	access.Person
	ID        string    `json:"id"` // of the session
	Issuer    string    `json:"issuer"`
	Confirmed time.Time `json:"confirmed"` // when the provider last confirmed it
}

// persons holds the people who have signed in at the provider, as it has confirmed them to this process. The cookie is
// not enough: the requests of one page come with the same one, and a refresh token may be valid only once.
type persons struct {
	*access.SignIn
	recheck time.Duration
	ended   *access.EndedSessions
	log     *slog.Logger
	flight  singleflight.Group

	mu    sync.Mutex
	known map[string]knownPerson // by session
}

type knownPerson struct {
	person
	tried time.Time // when the provider last failed to answer
	until time.Time // end of the session
}

// latest returns the newer of what the cookie contains and what this process knows.
func (p *persons) latest(kept session) knownPerson {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.known[kept.Person.ID]
	if !ok || known.Confirmed.Before(kept.Person.Confirmed) { // another process has asked
		known = knownPerson{person: *kept.Person, until: kept.Ends}
	}
	return known
}

// remember replaces what is known of a session.
func (p *persons) remember(k knownPerson) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for id, other := range p.known {
		if now.After(other.until) {
			delete(p.known, id)
		}
	}
	p.known[k.ID] = k
}

// confirm returns the person of a session as the provider has recently confirmed them. While it does not answer, its
// last answer holds.
func (p *persons) confirm(ctx context.Context, kept session) (person, error) {
	known := p.latest(kept)
	age := time.Since(known.Confirmed)
	switch {
	case known.Issuer != p.Issuer(), age < -clocksApart: // a clock was wrong at an unknown time
		return person{}, access.ErrUnauthenticated
	case age >= idleLength, known.Refresh == "" && time.Now().After(known.Expires):
		return person{}, access.ErrUnauthenticated
	case age < p.recheck, known.Refresh == "", time.Since(known.tried) < askRest:
		return known.person, nil
	}
	shared := p.flight.DoChan(known.ID, func() (any, error) { return p.ask(context.WithoutCancel(ctx), kept) })
	select {
	case <-ctx.Done():
		return person{}, context.Cause(ctx)
	case result := <-shared:
		found, _ := result.Val.(person)
		return found, result.Err
	}
}

// ask asks the provider for the person of a session again.
func (p *persons) ask(ctx context.Context, kept session) (person, error) {
	// A caller that looked before it got here may have been overtaken by a whole flight, which used up the token.
	known := p.latest(kept)
	if time.Since(known.Confirmed) < p.recheck || time.Since(known.tried) < askRest {
		return known.person, nil
	}
	asked := time.Now()
	found, err := p.Confirm(ctx, known.Person)
	switch _, refused := errors.AsType[*access.SignInError](err); {
	case refused:
		p.log.LogAttrs(ctx, slog.LevelInfo, "session ended by the provider", slog.Any("who", known.Principal),
			slog.String("err", err.Error()))
		// Other processes ask for themselves: this one may have had a cookie whose refresh token another has used up.
		p.ended.EndHere(known.ID, kept.left(asked))
		return person{}, err
	case err != nil:
		p.log.LogAttrs(ctx, slog.LevelWarn, "session not confirmed", slog.Any("who", known.Principal),
			slog.String("err", err.Error()))
		known.tried = asked
	default:
		known.Person, known.Confirmed = found, asked
	}
	p.remember(known)
	return known.person, nil
}

// attempt is a sign-in that has begun, as sealed in the browser's cookie.
type attempt struct {
	access.Attempt
	Back string    `json:"back"` // to a page of the console
	Ends time.Time `json:"ends"`
}

var noProvider = refusal{http.StatusNotFound, "There is no such page", "People sign in to this console in another way."}

// toProvider begins a sign-in and redirects to the provider.
func (s *site) toProvider(v *visit) error {
	if s.persons == nil {
		return noProvider
	}
	a, to, err := s.persons.Begin(v.ctx())
	if err != nil {
		return err
	}
	sealed, err := s.cookie.seal("attempt", attempt{a, string(v.backTo()), v.now.Add(attemptTime)})
	if err != nil {
		return err
	}
	s.cookie.set(v.w, s.cookie.name+"_attempt", sealed, int(attemptTime/time.Second), true)
	return v.redirect(templ.SafeURL(to))
}

// fromProvider ends a sign-in, on the page to which the provider sends people back. It requires the code together with
// what only this browser has; the address alone is useless.
func (s *site) fromProvider(v *visit) error {
	if s.persons == nil {
		return noProvider
	}
	begun, answer := s.begun(v), v.params
	s.cookie.set(v.w, s.cookie.name+"_attempt", "", -1, true)
	v.moveTo("login", url.Values{"back": {begun.Back}}) // so that the next pages do not repeat the code
	found, err := s.persons.Finish(v.ctx(), begun.Attempt, answer)
	if refused, ok := errors.AsType[*access.SignInError](err); ok {
		s.log.LogAttrs(v.ctx(), slog.LevelWarn, "person did not get in", slog.String("request_id", v.id),
			slog.String("err", err.Error()))
		status, words := s.whyOut(refused)
		v.status = status
		return v.render(loginPage(v, words))
	}
	if err != nil {
		return err
	}
	kept := session{Ends: v.now.Add(sessionLength), Person: &person{
		Person: found, ID: rand.Text(),
		Issuer: s.persons.Issuer(), Confirmed: v.now,
	}}
	if err := s.keep(v, kept); err != nil {
		return err
	}
	s.persons.remember(knownPerson{person: *kept.Person, until: kept.Ends})
	return v.redirect(v.backTo())
}

// begun returns the sign-in that this browser has begun; zero if there is none any more.
func (s *site) begun(v *visit) (a attempt) {
	found := v.r.CookiesNamed(s.cookie.name + "_attempt")
	if len(found) != 1 || s.cookie.open("attempt", found[0].Value, &a) != nil || !v.now.Before(a.Ends) {
		return attempt{}
	}
	return a
}

// whyOut explains to people why they were refused, and what to do.
func (s *site) whyOut(e *access.SignInError) (status int, words string) {
	host := s.persons.Host()
	switch e.Reason {
	case access.UnknownSignIn:
		return http.StatusBadRequest, "This is no sign-in that your browser has begun here a moment ago. Begin again."
	case access.Denied:
		return http.StatusForbidden, fmt.Sprintf("%s did not let you in: %s.", host, e.Detail())
	case access.InvalidGrant:
		return http.StatusBadRequest, host + " says that this sign-in was used already, or took too long. Begin again."
	case access.Misconfigured:
		return http.StatusBadGateway,
			host + " does not take this console for the client that it knows. An operator has to look at the client’s ID, secret and callback URL."
	case access.ClocksDiffer:
		return http.StatusBadGateway, "The clock of " + host +
			" and that of this server differ by too much. An operator has to set the one that is wrong."
	case access.NoPerson:
		return http.StatusForbidden, "You have signed in, but this console does not know where you belong: " +
			e.Detail() + ". Ask an operator."
	case access.NoCapability:
		return http.StatusForbidden, "You have signed in, but may do nothing here: " + e.Detail() + ". Ask an operator."
	}
	return http.StatusBadGateway, "The answer of " + host +
		" cannot be relied on, so nobody was signed in. The server’s log has the cause, with the id of the request."
}

// whose returns the principal of a session. It replaces a cookie that is older than the provider's last answer. A
// session is refused while the database does not say whether it was ended, as a token is.
func (s *site) whose(v *visit, kept session) (access.Principal, error) {
	switch ended, err := s.ended.Has(v.ctx(), kept.id()); {
	case err != nil:
		return access.Principal{}, err
	case ended:
		return access.Principal{}, access.ErrUnauthenticated
	}
	if kept.Person == nil {
		return s.config.Authenticator.Authenticate(v.ctx(), kept.Bearer)
	}
	known, err := s.persons.confirm(v.ctx(), kept)
	if err == nil && known.Confirmed.After(kept.Person.Confirmed) && v.w != nil {
		kept.Person = &known
		err = s.keep(v, kept)
	}
	return known.Principal, err
}

// keep stores a session in the browser. It omits a refresh token that does not fit in: the session then ends with the
// provider's last answer.
func (s *site) keep(v *visit, kept session) error {
	err := s.cookie.keep(v.w, v.now, kept)
	if errors.Is(err, errTooLarge) && kept.Person != nil && kept.Person.Refresh != "" {
		s.log.LogAttrs(v.ctx(), slog.LevelWarn,
			"refresh token too large for a cookie: the session ends with the ID token",
			slog.Any("who", kept.Person.Principal))
		kept.Person.Refresh = ""
		err = s.cookie.keep(v.w, v.now, kept)
	}
	return err
}

// useProvider lets people sign in at a provider.
func (s *site) useProvider(config access.SignInConfig) error {
	callback := s.public.JoinPath("callback").String()
	if config.CallbackURL != "" && config.CallbackURL != callback {
		return fmt.Errorf("CallbackURL is %q, want %q, below the PublicURL", config.CallbackURL, callback)
	}
	config.CallbackURL = callback
	if config.Provider.Logger == nil {
		config.Provider.Logger = s.log
	}
	in, err := access.NewSignIn(config)
	if err != nil {
		return err
	}
	s.persons = &persons{
		SignIn: in, recheck: s.config.Recheck, ended: s.ended, log: s.log, known: map[string]knownPerson{},
	}
	return nil
}

// signInHost returns the provider's host; "" if there is none.
func (s *site) signInHost() string {
	if s.persons == nil {
		return ""
	}
	return s.persons.Host()
}
