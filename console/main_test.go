package console_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

var (
	tenantA = outbox.ID{0: 0xa, 15: 1}
	tenantB = outbox.ID{0: 0xb, 15: 1}
)

// fixed knows principals by tokens: all, a and b may do everything, of all tenants or their own; +CAPABILITY,… and
// a+CAPABILITY,… have these.
type fixed struct{}

func (fixed) Authenticate(_ context.Context, bearer string) (access.Principal, error) {
	name, list, limited := strings.Cut(bearer, "+")
	p := access.Principal{Name: bearer, AllTenants: true, Capabilities: map[access.Capability]bool{}}
	switch name {
	case "", "all":
	case "a":
		p.AllTenants, p.Tenant = false, tenantA
	case "b":
		p.AllTenants, p.Tenant = false, tenantB
	default:
		return access.Principal{}, access.ErrUnauthenticated
	}
	for _, c := range access.Capabilities() {
		p.Capabilities[c] = !limited || strings.Contains(","+list+",", ","+string(c)+",")
	}
	return p, nil
}

// rig is the console on a database of its own, to which it connects as docs/guides/tenants.md says: a login that is a
// member of outbox_api and of nothing else.
type rig struct {
	t       *testing.T
	db      *pgxpool.Pool // the owner's
	handler http.Handler
	token   string
	asked   *statements
}

func newRig(t *testing.T, change ...func(*console.Config)) *rig {
	t.Helper()
	return newRigOn(t, pgtest.New(t), change...)
}

// newRigOn returns a rig of one of several processes of a console, which share a database.
func newRigOn(t *testing.T, db *pgxpool.Pool, change ...func(*console.Config)) *rig {
	t.Helper()
	r := &rig{t: t, db: db, token: "all", asked: new(statements)}
	config := pgtest.Login(t, r.db, "outbox_api").Config()
	config.ConnConfig.Tracer = r.asked
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	c := console.Config{Pool: pool, Authenticator: fixed{}, Name: "test-eu"}
	for _, f := range change {
		f(&c)
	}
	if r.handler, err = console.New(c); err != nil {
		t.Fatal(err)
	}
	return r
}

// as returns the rig with another's token; "" is nobody's.
func (r *rig) as(token string) *rig {
	other := *r
	other.token = token
	return &other
}

// cookies signs in with the rig's token, and returns the cookies of somebody who has; nil without a token.
func (r *rig) cookies() []*http.Cookie {
	r.t.Helper()
	if r.token == "" {
		return nil
	}
	a := r.send(httptest.NewRequestWithContext(r.t.Context(), "POST", "/login", strings.NewReader(url.Values{"token": {r.token}}.Encode())))
	if a.Code != http.StatusSeeOther {
		r.t.Fatalf("sign in as %s: got %d", r.token, a.Code)
	}
	return a.Result().Cookies()
}

// answer is what came back.
type answer struct {
	*httptest.ResponseRecorder
	t *testing.T
}

func (r *rig) send(req *http.Request) answer {
	r.t.Helper()
	if req.Method == http.MethodPost && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if req.Method == http.MethodPost && req.Header.Get("Sec-Fetch-Site") == "" && req.Header.Get("Origin") == "" {
		req.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, req)
	return answer{w, r.t}
}

// get returns a page, relative to the console, for whom the rig has a token.
func (r *rig) get(page string) answer {
	r.t.Helper()
	req := httptest.NewRequestWithContext(r.t.Context(), "GET", "/"+page, nil)
	for _, c := range r.cookies() {
		req.AddCookie(c)
	}
	return r.send(req)
}

func (r *rig) post(page string, form url.Values) answer {
	r.t.Helper()
	req := httptest.NewRequestWithContext(r.t.Context(), "POST", "/"+page, strings.NewReader(form.Encode()))
	for _, c := range r.cookies() {
		req.AddCookie(c)
	}
	return r.send(req)
}

// is fails unless the status is the wanted one.
func (a answer) is(status int) answer {
	a.t.Helper()
	if a.Code != status {
		a.t.Fatalf("got %d, want %d: %s", a.Code, status, a.text())
	}
	return a
}

// has fails unless the page's text has all of these.
func (a answer) has(texts ...string) answer {
	a.t.Helper()
	for _, text := range texts {
		if !strings.Contains(a.text(), text) {
			a.t.Errorf("got %q, want %q in it", a.text(), text)
		}
	}
	return a
}

func (a answer) hasNot(texts ...string) answer {
	a.t.Helper()
	for _, text := range texts {
		if strings.Contains(a.text(), text) || strings.Contains(a.Body.String(), text) {
			a.t.Errorf("%q is on the page, want it left out", text)
		}
	}
	return a
}

var (
	tags     = regexp.MustCompile(`<[^>]*>`)
	spaces   = regexp.MustCompile(`\s+`)
	unescape = strings.NewReplacer("&lt;", "<", "&gt;", ">", "&#34;", `"`, "&#39;", "'", "&amp;", "&")
)

// text returns what a person reads, without the head of the page.
func (a answer) text() string {
	body := a.Body.String()
	if _, main, ok := strings.Cut(body, "<body>"); ok {
		body = main
	}
	return strings.TrimSpace(unescape.Replace(spaces.ReplaceAllString(tags.ReplaceAllString(strings.ReplaceAll(body, "</time>", ""), " "), " ")))
}

// statements counts what a page asks of the database, without what begins, ties, bounds and ends a transaction.
type statements struct {
	mu  sync.Mutex
	all []string
}

var ofTransactions = regexp.MustCompile(`(?i)^(BEGIN|SET|COMMIT|ROLLBACK|SELECT set_config\(|SELECT pg_stat_clear_snapshot\(|-- name: BindTenant )`)

func (s *statements) note(sql string) {
	// Polls of a wait for others who are writing: how many there are depends on what else the server does.
	if strings.Contains(sql, "FROM pg_locks") {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ofTransactions.MatchString(sql) {
		s.all = append(s.all, sql)
	}
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	s.note(d.SQL)
	return ctx
}
func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s *statements) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	s.note(d.SQL)
}
func (s *statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// take returns what was asked since it was called last.
func (s *statements) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	return all
}

// enqueue stores a job of the tenant.
func (r *rig) enqueue(kind, payload string, o outbox.Options) outbox.ID {
	r.t.Helper()
	id, err := outbox.Enqueue(r.t.Context(), r.db, outbox.Raw{KindName: kind, Payload: []byte(payload)}, o)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatal(fmt.Errorf("%s: %w", sql, err))
	}
}

// evil is text that every page has to show as text.
const evil = `<img src=x onerror=alert(1)></script><b>"'&` + "\u202e\u200b"

// evilJob stores a dead letter whose every text is hostile, with a failed attempt, a log, progress, a step and an audit
// entry, and returns its id.
func (r *rig) evilJob(tenant outbox.ID) outbox.ID {
	r.t.Helper()
	payload := `{"id":1970670598291982290,"z":1.50,"a":"<img src=x onerror=alert(1)><\/script>","nul":"\u0000","password":"hunter2"}`
	id := r.enqueue("evil.kind", payload, outbox.Options{
		Tenant: tenant, Key: outbox.KeyRules{Name: evil + `/%?#`}, Headers: map[string]string{"x": evil}, IdempotencyKey: evil,
	})
	r.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w<b>', lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`, id)
	r.exec(`INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, error_code, error_message, stack, tenant_id)
		SELECT id, epoch, 1, 'w<b>', started_at - interval '1 s', 'panic', $2, $2, tenant_id FROM outbox.jobs WHERE id = $1`, id, evil)
	r.exec(`UPDATE outbox.jobs SET status = 'dead', epoch = epoch + 1, lease_expires_at = NULL, lease_owner = NULL, last_error_code = 'panic', last_error_message = $2, failed_at = clock_timestamp() WHERE id = $1`, id, evil)
	r.exec(`INSERT INTO outbox.progress (job_id, epoch, revision, current, total, reported_at, message, checkpoint, checkpoint_epoch, checkpointed_at)
		VALUES ($1, 2, 1, 3, 7, now(), $2, '{"at":"row 77","token":"hunter3"}', 2, now())`, id, evil)
	r.exec(`INSERT INTO outbox.job_logs (job_id, epoch, line, slot, logged_at, level, message) VALUES ($1, 2, 0, 0, now(), 'INFO', $2)`, id, evil)
	r.exec(`INSERT INTO outbox.job_steps (job_id, name, epoch, took, result) VALUES ($1, $2, 2, interval '1 s', '{}')`, id, evil)
	r.exec(`INSERT INTO outbox.audit (actor, act, reason, tenant_id, job_id, before, after) VALUES ($2, 'job.retry', $2, $3, $1, '{"s":"a"}', jsonb_build_object('s', $2::text))`, id, evil, tenant)
	return id
}
