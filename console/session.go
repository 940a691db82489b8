package console

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// keyBytes is the size of a key: AES-256.
const keyBytes = 32

// sessionLength is how long a login lasts, whatever the lifetime of its token.
const sessionLength = 12 * time.Hour

// session is the content of the cookie: a token, which every request authenticates again, or a person whom the provider
// confirms again every few minutes.
type session struct {
	ID     string    `json:"id,omitempty"` // with Bearer: a person has one
	Bearer string    `json:"bearer,omitempty"`
	Person *person   `json:"person,omitempty"`
	Ends   time.Time `json:"ends"`
}

// id identifies the session: a browser that has signed out, and one to which its cookie was copied, can still send it.
func (s session) id() string {
	if s.Person != nil {
		return s.Person.ID
	}
	return s.ID
}

// left returns how long any process may still accept the session's cookie.
func (s session) left(now time.Time) time.Duration { return s.Ends.Sub(now) + clocksApart }

// cookie seals sessions into a cookie and opens them.
type cookie struct {
	name   string
	path   string // "" means the folder of the page that sets it, as the browser sees it
	secure bool
	seals  []cipher.AEAD
}

// newCookie returns the cookie of a console at a public URL, or at any. The prefixes of its name make browsers refuse
// one that was set by another site or over a plain connection; they require https.
func newCookie(public *url.URL, keys [][]byte) cookie {
	c := cookie{name: "ph"}
	if public != nil && public.Scheme == "https" {
		c.secure = true
		c.name, c.path = "__Host-ph", "/"
		if public.Path != "/" {
			c.name, c.path = "__Secure-ph", public.Path
		}
	}
	if len(keys) == 0 {
		keys = [][]byte{make([]byte, keyBytes)}
		_, _ = rand.Read(keys[0]) // it never fails
	}
	for _, key := range keys {
		block, err := aes.NewCipher(key)
		if err != nil {
			panic(err) // its length was checked
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			panic(err) // of an AES block
		}
		c.seals = append(c.seals, aead)
	}
	return c
}

// seal returns a text that only open can read, for the same purpose.
func (c cookie) seal(purpose string, what any) (string, error) {
	plain, err := json.Marshal(what)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(c.seals[0].Seal(nil, nil, plain, []byte(purpose))), nil
}

var errNotOurs = errors.New("it was not sealed here, or the key has changed since")

// open reads what seal has made with one of the keys.
func (c cookie) open(purpose, text string, into any) error {
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return errNotOurs
	}
	for _, aead := range c.seals {
		if plain, err := aead.Open(nil, nil, sealed, []byte(purpose)); err == nil {
			return json.Unmarshal(plain, into)
		}
	}
	return errNotOurs
}

// maxCookie is the maximum length of a name and a value together: browsers drop a cookie of more than 4096 bytes.
const maxCookie = 4000

var errTooLarge = errors.New("the session is too large for a cookie")

// keep stores the session in the browser.
func (c cookie) keep(w http.ResponseWriter, now time.Time, kept session) error {
	text, err := c.seal("session", kept)
	if err != nil {
		return err
	}
	if len(c.name)+len(text) > maxCookie {
		return errTooLarge
	}
	c.set(w, c.name, text, int(kept.Ends.Sub(now)/time.Second), true)
	return nil
}

// forget removes the session from the browser.
func (c cookie) forget(w http.ResponseWriter) { c.set(w, c.name, "", -1, true) }

// read returns the session of a request; false if there is no valid one.
func (c cookie) read(r *http.Request, now time.Time) (session, bool) {
	var s session
	found := r.CookiesNamed(c.name)
	if len(found) != 1 || c.open("session", found[0].Value, &s) != nil || s.Bearer == "" && s.Person == nil ||
		s.id() == "" || !now.Before(s.Ends) {
		return session{}, false
	}
	return s, true
}

// set sets a cookie of the console. It is Lax because Strict would exclude links from elsewhere, such as a chat.
func (c cookie) set(w http.ResponseWriter, name, value string, maxAge int, hidden bool) {
	text := &http.Cookie{
		Name: name, Value: value, MaxAge: maxAge, HttpOnly: hidden, Secure: c.secure,
		SameSite: http.SameSiteLaxMode, Path: c.path,
	}
	http.SetCookie(w, text)
}
