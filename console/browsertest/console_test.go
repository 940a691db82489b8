package browsertest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// console is a console of a test: the program serves it on a database of the test.
type console struct {
	*testing.T
	db             *pgxpool.Pool // the owner's
	root           string        // its URL, with a slash at the end
	token, tokenID string        // of a person who may do everything

	browser context.Context // the one of all tests, unless a test has its own
	process *child.Process  // the latest that was started
	willing time.Duration   // to wait for what has to come; 0 where a part was taken out that brings it
}

// newConsole starts the program, with more flags, as a login that is a member of outbox_api and of nothing else.
func newConsole(t *testing.T, flags ...string) *console {
	t.Helper()
	c := &console{T: t, db: pgtest.New(t), browser: browser, willing: 40 * time.Second}
	token, info, err := access.NewTokens(c.db, access.TokensConfig{}).Create(t.Context(), access.Grant{
		Name: "ada", AllTenants: true, Capabilities: access.Capabilities(), CreatedBy: "grace",
	})
	if err != nil {
		t.Fatal(err)
	}
	c.token, c.tokenID = token.Reveal(), info.ID
	c.root = "http://" + c.serve(append(flags, "--console-addr", "127.0.0.1:0")...) + "/"
	return c
}

// serve starts a process, and returns the address of its console.
func (c *console) serve(flags ...string) string {
	c.Helper()
	log := filepath.Join(c.TempDir(), "console.log")
	env := []string{
		"OUTBOX_DATABASE_URL=" + pgtest.LoginURL(c, c.db.Config().ConnString(), "outbox_api"), "OUTBOX_LOG_FORMAT=json",
		"OUTBOX_CONSOLE_NAME=shop-eu", "OUTBOX_ADMIN_ADDR=off",
		"OUTBOX_CONSOLE_KEY=" + base64.StdEncoding.EncodeToString(make([]byte, 32)), // logins outlive a process
	}
	p, err := child.Start("console", log, posthaste, env, nil, append([]string{"serve", "--role", "console"}, flags...)...)
	if err != nil {
		c.Fatal(err)
	}
	c.process = p
	c.Cleanup(func() {
		if fate := p.Fate(); fate != "" {
			c.Error(fate)
		}
		if err := p.Kill9(); err != nil {
			c.Error(err)
		}
		if text, err := os.ReadFile(log); err != nil || strings.Contains(string(text), c.token) {
			c.Errorf("the log cannot be read, or has the token: %v", err)
		}
	})
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && p.Alive(); time.Sleep(20 * time.Millisecond) {
		text, _ := os.ReadFile(log)
		for line := range strings.Lines(string(text)) {
			var l struct{ Msg, Addr string }
			if json.Unmarshal([]byte(line), &l) == nil && (l.Msg == "console listens" || l.Msg == "API listens") {
				return l.Addr
			}
		}
	}
	text, _ := os.ReadFile(log)
	c.Fatalf("the console does not listen:\n%s", text)
	return ""
}

func (c *console) exec(sql string, args ...any) {
	c.Helper()
	if _, err := c.db.Exec(c.Context(), sql, args...); err != nil {
		c.Fatal(fmt.Errorf("%s: %w", sql, err))
	}
}

// signIn returns a client without a browser that has signed in to the console at the base.
func (c *console) signIn(base string) *http.Client {
	c.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		c.Fatal(err)
	}
	client := &http.Client{Jar: jar, Timeout: 30 * time.Second}
	res := c.post(client, base+"login", url.Values{"token": {c.token}})
	if res.StatusCode != http.StatusOK || strings.HasSuffix(res.Request.URL.Path, "/login") {
		c.Fatalf("signing in led to %s with %d", res.Request.URL, res.StatusCode)
	}
	return client
}

// post sends a form as a page of the console does, and follows where it leads.
func (c *console) post(client *http.Client, to string, form url.Values) *http.Response {
	c.Helper()
	req, err := http.NewRequestWithContext(c.Context(), http.MethodPost, to, strings.NewReader(form.Encode()))
	if err != nil {
		c.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	res, err := client.Do(req)
	if err != nil {
		c.Fatal(err)
	}
	_ = res.Body.Close()
	return res
}
