package api_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/apitest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

// Fixed knows principals by tokens that never change.
type Fixed map[string]access.Principal

func (f Fixed) Authenticate(_ context.Context, bearer string) (access.Principal, error) {
	if p, ok := f[bearer]; ok {
		return p, nil
	}
	return access.Principal{}, access.ErrUnauthenticated
}

var (
	tenantA = outbox.ID{0: 0xa, 15: 1}
	tenantB = outbox.ID{0: 0xb, 15: 1}
)

func can(capabilities ...access.Capability) map[access.Capability]bool {
	set := map[access.Capability]bool{}
	for _, c := range capabilities {
		set[c] = true
	}
	return set
}

var allCapabilities = []access.Capability{
	access.JobsEnqueue, access.JobsRead, access.JobsCancel, access.AdminRead, access.AdminMutate, access.AdminStream, access.PayloadRead,
}

// The tokens of the tests say who has them: a client of tenant A, its operator, …
func tokens() Fixed {
	f := Fixed{
		"client-a":   {Name: "client-a", Tenant: tenantA, Capabilities: can(access.JobsEnqueue, access.JobsRead, access.JobsCancel)},
		"operator-a": {Name: "operator-a", Tenant: tenantA, Capabilities: can(allCapabilities...)},
		"client-b":   {Name: "client-b", Tenant: tenantB, Capabilities: can(access.JobsEnqueue, access.JobsRead, access.JobsCancel)},
		"operator-b": {Name: "operator-b", Tenant: tenantB, Capabilities: can(allCapabilities...)},
		"root":       {Name: "root", AllTenants: true, Capabilities: can(allCapabilities...)},
		"powerless":  {Name: "powerless", Tenant: tenantA},
		"homeless":   {Name: "homeless", Capabilities: can(allCapabilities...)},
	}
	for _, c := range allCapabilities { // everything but one
		var others []access.Capability
		for _, other := range allCapabilities {
			if other != c {
				others = append(others, other)
			}
		}
		f["no-"+string(c)] = access.Principal{Name: "no-" + string(c), AllTenants: true, Capabilities: can(others...)}
	}
	return f
}

// rig is the API on a database of its own, to which it connects as docs/guides/tenants.md says:
// a login that is a member of outbox_api and of nothing else.
type rig struct {
	t       *testing.T
	db      *pgxpool.Pool
	pool    *pgxpool.Pool // the API's
	handler http.Handler
	token   string
}

func newRig(t *testing.T, change ...func(*api.Config)) *rig {
	t.Helper()
	return rigOn(t, pgtest.New(t), change...)
}

// newOwnersRig returns a rig whose login may do everything: change payloads, too.
func newOwnersRig(t *testing.T) *rig {
	t.Helper()
	db := pgtest.New(t)
	return rigOn(t, db, func(c *api.Config) { c.Pool = db })
}

func rigOn(t *testing.T, db *pgxpool.Pool, change ...func(*api.Config)) *rig {
	t.Helper()
	config := api.Config{Authenticator: tokens()}
	for _, c := range change {
		c(&config)
	}
	if config.Pool == nil {
		config.Pool = pgtest.Login(t, db, "outbox_api")
	}
	if config.Producer == nil {
		config.Producer = outbox.NewProducer(config.Pool, outbox.NotifyOff)
	}
	handler, err := api.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, db: db, pool: config.Pool, handler: handler, token: "client-a"}
}

// as returns the rig with another's token; "" means without a token.
func (r *rig) as(token string) *rig {
	c := *r
	c.token = token
	return &c
}

type response struct {
	*httptest.ResponseRecorder
	t *testing.T
}

// do sends a request and checks that the response is one that the description of
// the API has.
func (r *rig) do(method, target, body string, headers ...string) response {
	r.t.Helper()
	req := httptest.NewRequestWithContext(r.t.Context(), method, target, strings.NewReader(body))
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("X-Request-Id", "test")
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
		if strings.EqualFold(headers[i], "Content-Type") || strings.EqualFold(headers[i], "X-Request-Id") {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	return r.send(req)
}

func (r *rig) send(req *http.Request) response {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, req)
	apitest.Check(r.t, req, w.Code, w.Header(), w.Body.Bytes())
	return response{w, r.t}
}

func (r *rig) get(target string) response        { r.t.Helper(); return r.do("GET", target, "") }
func (r *rig) post(target, body string) response { r.t.Helper(); return r.do("POST", target, body) }
func (r *rig) postBatch(lines string) response {
	r.t.Helper()
	return r.do("POST", "/jobs/batch", lines, "Content-Type", "application/x-ndjson")
}

// want fails unless the response has the status, and decodes its body into v.
func (r response) want(status int, v any) response {
	r.t.Helper()
	if r.Code != status {
		r.t.Fatalf("status = %d, want %d: %s", r.Code, status, r.Body)
	}
	if v != nil {
		if err := json.Unmarshal(r.Body.Bytes(), v); err != nil {
			r.t.Fatalf("%v in %s", err, r.Body)
		}
	}
	return r
}

// problem fails unless the response is the problem, and returns it.
func (r response) problem(status int, code string) api.Problem {
	r.t.Helper()
	var p api.Problem
	r.want(status, &p)
	if p.Code != code {
		r.t.Fatalf("code = %s, want %s: %s", p.Code, code, r.Body)
	}
	return p
}

// enqueue stores a job by POST /jobs.
func (r *rig) enqueue(body string) string {
	r.t.Helper()
	var a api.Accepted
	r.post("/jobs", body).want(202, &a)
	return a.ID
}

func (r *rig) getJob(id string) api.Job {
	r.t.Helper()
	var j api.Job
	r.get("/jobs/"+id).want(200, &j)
	return j
}

// reach has a worker take a new job of the token's tenant to a status.
func (r *rig) reach(status outbox.Status) string {
	r.t.Helper()
	queue := outbox.NewID().String() // of its own: nothing else is claimed
	id := r.enqueue(`{"kind":"mail","queue":"` + queue + `","payload":{"secret":"p4yl0ad"}}`)
	if status == outbox.Pending {
		return id
	}
	q := sqlgen.New(r.db)
	job, err := outbox.ParseID(id)
	if err != nil {
		r.t.Fatal(err)
	}
	var epoch int64
	err = r.db.QueryRow(r.t.Context(), `
		UPDATE outbox.jobs
		SET status = 'running', attempt = attempt + 1, epoch = epoch + 1, lease_owner = 'worker-1', lease_expires_at = now() + interval '1 hour', started_at = now()
		WHERE id = $1 RETURNING epoch`, id).Scan(&epoch)
	if err != nil {
		r.t.Fatal(err)
	}
	ids, epochs := []pgtype.UUID{{Bytes: job, Valid: true}}, []int64{epoch}
	switch status {
	case outbox.Running:
		return id
	case outbox.Succeeded:
		_, err = q.SettleSucceeded(r.t.Context(), sqlgen.SettleSucceededParams{Ids: ids, Epochs: epochs, Results: [][]byte{[]byte(`{"sent":1}`)}})
	default:
		_, err = q.SettleUnfinished(r.t.Context(), sqlgen.SettleUnfinishedParams{
			Ids: ids, Epochs: epochs, Statuses: []string{string(status)}, Delays: []pgtype.Interval{{Microseconds: time.Hour.Microseconds(), Valid: true}},
			ErrorCodes: []string{"smtp"}, ErrorMessages: []string{"dial tcp 10.0.0.3"}, Stacks: []string{"goroutine 1"}, Worker: "worker-1",
		})
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}
