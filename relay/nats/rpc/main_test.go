package rpc_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
	relaynats "github.com/posthaste-dev/posthaste/relay/nats"
	"github.com/posthaste-dev/posthaste/relay/nats/rpc"
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

// The tokens of the tests say who has them: an operator of tenant A, one of all tenants, …
func tokens() Fixed {
	all := access.Capabilities()
	f := Fixed{
		"operator-a": {Name: "operator-a", Tenant: tenantA, Capabilities: can(all...)},
		"operator-b": {Name: "operator-b", Tenant: tenantB, Capabilities: can(all...)},
		"root":       {Name: "root", AllTenants: true, Capabilities: can(all...)},
		"homeless":   {Name: "homeless", Capabilities: can(all...)},
	}
	for _, missing := range all { // everything but one
		rest := can(all...)
		delete(rest, missing)
		f["no-"+string(missing)] = access.Principal{Name: "no-" + string(missing), AllTenants: true, Capabilities: rest}
	}
	return f
}

// rig is the service on a NATS server and a database of its own, to which it connects as docs/guides/tenants.md says: a
// login that is a member of outbox_api and of nothing else.
type rig struct {
	t      *testing.T
	db     *pgxpool.Pool
	pool   *pgxpool.Pool // the service's
	server *natstest.Server
	client *nats.Conn
	log    *records
	token  string
}

func newRig(t *testing.T, change ...func(*rpc.Config)) *rig {
	t.Helper()
	return newRigOn(t, natstest.Options{}, change...)
}

func newRigOn(t *testing.T, o natstest.Options, change ...func(*rpc.Config)) *rig {
	t.Helper()
	db := pgtest.New(t)
	r := &rig{t: t, db: db, pool: pgtest.Login(t, db, "outbox_api"), server: natstest.Start(t, o), log: &records{}, token: "operator-a"}
	r.client = r.server.Connect().Conn()
	r.serve(change...)
	return r
}

// serve starts one more service, and waits until it answers. Its end, or the test's, stops it.
func (r *rig) serve(change ...func(*rpc.Config)) (stop func()) {
	r.t.Helper()
	config := rpc.Config{
		NATS: relaynats.Config{URLs: []string{r.server.URL}, Name: "rpc"}, Pool: r.pool, Authenticator: tokens(), Logger: slog.New(r.log),
	}
	for _, c := range change {
		c(&config)
	}
	s, err := rpc.New(config)
	if err != nil {
		r.t.Fatal(err)
	}
	before := len(r.instances())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Run(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	r.t.Cleanup(stop)
	r.await("the service", func() bool { return len(r.instances()) > before })
	return stop
}

// instances returns the services that answer a ping.
func (r *rig) instances() map[string]bool {
	r.t.Helper()
	inbox := nats.NewInbox()
	answers, err := r.client.SubscribeSync(inbox)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = answers.Unsubscribe() }()
	if err := r.client.PublishRequest("$SRV.PING.posthaste-jobs", inbox, nil); err != nil {
		r.t.Fatal(err)
	}
	found := map[string]bool{}
	for {
		m, err := answers.NextMsg(100 * time.Millisecond)
		if err != nil || len(m.Data) == 0 {
			return found
		}
		var ping struct{ ID string }
		if err := json.Unmarshal(m.Data, &ping); err != nil {
			r.t.Fatal(err)
		}
		found[ping.ID] = true
	}
}

func (r *rig) await(what string, is func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("in vain: %s", what)
		}
	}
}

// as returns the rig with another's token; "" means without a token.
func (r *rig) as(token string) *rig {
	c := *r
	c.token = token
	return &c
}

// answer is what came back.
type answer struct {
	*nats.Msg
	t *testing.T
}

// ask sends a request and waits for its answer.
func (r *rig) ask(method, body string, headers ...string) answer {
	r.t.Helper()
	m := nats.NewMsg("rpc.v1.Jobs." + method)
	m.Data = []byte(body)
	if r.token != "" {
		m.Header.Set("Authorization", "Bearer "+r.token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		m.Header[headers[i]] = append(m.Header[headers[i]], headers[i+1])
	}
	reply, err := r.client.RequestMsg(m, 15*time.Second)
	if err != nil {
		r.t.Fatalf("%s: %v", method, err)
	}
	return answer{reply, r.t}
}

// ok reads an answer that is no error.
func (a answer) ok(into any) {
	a.t.Helper()
	if a.Header.Get("status") != "" || a.Header.Get("Nats-Service-Error") != "" {
		a.t.Fatalf("got the error %s", a.Data)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(a.Data, into); err != nil {
		a.t.Fatalf("%v: %s", err, a.Data)
	}
}

// fault is an error as it is sent.
type fault struct {
	ID, Type, Message, Resource, JobID, Reason string
	Issues                                     []struct{ Path, Message string }
	Context                                    map[string]any
}

// fails reads an answer that is an error of a type and a code.
func (a answer) fails(kind, code string) (f fault) {
	a.t.Helper()
	if err := json.Unmarshal(a.Data, &f); err != nil {
		a.t.Fatalf("%v: %s", err, a.Data)
	}
	h := a.Header
	if f.Type != kind || h.Get("Nats-Service-Error-Code") != code || h.Get("status") != "error" || h.Get("Nats-Service-Error") != kind {
		a.t.Fatalf("got %s with %v, want a %s, %s", a.Data, h, kind, code)
	}
	if f.ID == "" || f.ID != h.Get("request-id") || f.Message == "" {
		a.t.Fatalf("got %s with %v: the ids differ, or there is no message", a.Data, h)
	}
	return f
}

// job is a job as it is sent.
type job struct {
	ID, Service, Type, State                     string
	Payload, Result                              json.RawMessage
	CreatedAt, UpdatedAt, StartedAt, CompletedAt time.Time
	Tries, MaxTries                              int
	LastError                                    string
	Concurrency                                  *struct{ Key, KeyHash string }
	Progress                                     *struct{ Current, Total int64 }
	Logs                                         []struct{ Level, Message string }
}

// enqueue stores a job as tenant A's, unless options say whose.
func (r *rig) enqueue(kind, payload string, o outbox.Options) string {
	r.t.Helper()
	if o.Tenant.IsZero() {
		o.Tenant = tenantA
	}
	id, err := outbox.Enqueue(r.t.Context(), r.db, outbox.Raw{KindName: kind, Payload: []byte(payload)}, o)
	if err != nil {
		r.t.Fatal(err)
	}
	return id.String()
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

// reach takes a job to a status by the statements that workers use.
func (r *rig) reach(id string, status outbox.Status) string {
	r.t.Helper()
	job, err := outbox.ParseID(id)
	if err != nil {
		r.t.Fatal(err)
	}
	var epoch int64
	if err := r.db.QueryRow(r.t.Context(), `
		UPDATE outbox.jobs
		SET status = 'running', attempt = attempt + 1, epoch = epoch + 1, lease_owner = 'worker-1', lease_expires_at = now() + interval '1 hour', started_at = now()
		WHERE id = $1 RETURNING epoch`, id).Scan(&epoch); err != nil {
		r.t.Fatal(err)
	}
	q, ids, epochs := sqlgen.New(r.db), []pgtype.UUID{{Bytes: job, Valid: true}}, []int64{epoch}
	switch status {
	case outbox.Running:
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

// records is a log that tests read.
type records struct {
	mu    sync.Mutex
	lines []string
}

func (l *records) Enabled(context.Context, slog.Level) bool { return true }
func (l *records) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *records) WithGroup(string) slog.Handler            { return l }
func (l *records) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	return nil
}

// count returns how many lines have the text.
func (l *records) count(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
