package console_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/internal/oidctest"
)

// withToken returns a browser whose person has signed in with a token.
func (r *rig) withToken(token string) *visitor {
	r.t.Helper()
	v := r.as(token).visitor()
	for _, c := range v.cookies() {
		v.jar[c.Name] = c
	}
	v.ask("GET", "me").is(200)
	return v
}

// at returns the same browser at another process of the console.
func (v *visitor) at(r *rig) *visitor {
	other := v.copied()
	other.rig = r
	return other
}

// oneKey makes the processes of a console open each other's cookies.
func oneKey(c *console.Config) { c.Keys = [][]byte{make([]byte, 32)} }

// seldom makes a console not ask the provider again while a test runs.
func seldom(c *console.Config) { c.Recheck = 10 * time.Minute }

// signedIn is somebody who has signed in at a console of two processes, in each of the ways, and the other process.
var signedIn = map[string]func(*testing.T) (*visitor, *rig){
	"a token": func(t *testing.T) (*visitor, *rig) {
		r := newRig(t, oneKey)
		return r.withToken("a"), newRigOn(t, r.db, oneKey)
	},
	"a person of a provider": func(t *testing.T) (*visitor, *rig) {
		p := oidctest.New(t, oidctest.ES("k"))
		r, lines := newRigAt(t, p, seldom)
		v := r.visitor()
		v.signsIn()
		v.ask("GET", "me").is(200)
		return v, newRigOn(t, r.db, atProvider(p, lines), seldom)
	},
}

// A copy of the cookie is not taken after its session was ended; the token, and another session with it, still are.
func TestASessionWithATokenEndsWhenItsPersonSignsOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, token := range []string{"all", "a"} { // of all tenants, of one
		v, other := r.withToken(token), r.withToken(token)
		stolen := v.copied()
		v.ask("POST", "logout").is(http.StatusSeeOther)
		if got := stolen.ask("GET", "me").Code; got != http.StatusSeeOther {
			t.Errorf("%s: the cookie of a session that was ended: got %d", token, got)
		}
		other.ask("GET", "me").is(200)
	}
}

func TestSigningOutHoldsInEveryProcess(t *testing.T) {
	t.Parallel()
	for name, signIn := range signedIn {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, elsewhere := signIn(t)
			stolen := v.at(elsewhere)
			stolen.ask("GET", "me").is(200)
			ended := time.Now()
			v.ask("POST", "logout")
			for stolen.ask("GET", "me").Code == http.StatusOK {
				if time.Since(ended) > 5*time.Second {
					t.Fatal("5 s after its person has signed out, a copied cookie is accepted in another process")
				}
				time.Sleep(50 * time.Millisecond)
			}
			stolen.ask("GET", "me").is(http.StatusSeeOther)
		})
	}
}

// A person who signs out while the database records nothing is signed out here, and reads that other processes accept
// the cookie.
func TestAFailureToRecordASignOutIsSaid(t *testing.T) {
	t.Parallel()
	for name, signIn := range signedIn {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, elsewhere := signIn(t)
			stolen := v.copied()
			v.exec(`REVOKE INSERT ON outbox.ended_sessions FROM outbox_api`)
			a := v.ask("POST", "logout").is(http.StatusServiceUnavailable).has("You are signed out",
				"The database could not record that you signed out", "other processes of this console accept a copy")
			if to := a.Header().Get("Refresh"); to != "" {
				t.Errorf("the page leads to %q before anybody has read it", to)
			}
			if len(v.jar) != 0 {
				t.Errorf("the browser keeps %v", v.jar)
			}
			stolen.ask("GET", "me").is(http.StatusSeeOther)
			stolen.at(elsewhere).ask("GET", "me").is(200)
		})
	}
}

// While nobody knows whether a session was ended, it is refused, as a token is.
func TestASessionNeedsTheDatabase(t *testing.T) {
	t.Parallel()
	for name, signIn := range signedIn {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, elsewhere := signIn(t)
			v.exec(`REVOKE SELECT ON outbox.ended_sessions FROM outbox_api`)
			v.at(elsewhere).ask("GET", "me").is(http.StatusInternalServerError)
		})
	}
}
