package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// The tests of the scorecard's rows G and H take every route from the description
// of the API, with what goes into its path, its query and its body: a route that is
// added is covered by itself.

// member is a JSON schema, as far as the description uses them.
type member struct {
	Ref        string `json:"$ref"`
	Type       any
	Format     string
	Enum       []any
	Items      *member
	Properties map[string]*member
	Required   []string
}

// one is a route of the description.
type one struct {
	method, path string
	needs        access.Capability
	everything   bool
	contentType  string  // of its body, "" for none
	body         *member // nil unless it is JSON or lines of it
	query        []string
	streams      bool // its answer does not end
}

func (o one) String() string { return o.method + " " + o.path }

// changes reports whether the route is there to change something.
func (o one) changes() bool { return o.method != "GET" }

// table returns every route.
func table(t *testing.T) []one {
	t.Helper()
	text, err := api.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Paths map[string]map[string]struct {
			Description string
			Parameters  []struct{ Name, In string }
			RequestBody *struct {
				Content map[string]struct{ Schema *member }
			}
			Responses map[string]struct{ Content map[string]any }
		}
		Components struct{ Schemas map[string]*member }
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	schemas := spec.Components.Schemas
	var routes []one
	for _, path := range slices.Sorted(maps.Keys(spec.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(spec.Paths[path])) {
			op := spec.Paths[path][method]
			r := one{method: strings.ToUpper(method), path: path, everything: strings.Contains(op.Description, "of all tenants")}
			if parts := strings.Split(op.Description, "`"); len(parts) > 1 {
				r.needs = access.Capability(parts[1])
			}
			for _, p := range op.Parameters {
				if p.In == "query" {
					r.query = append(r.query, p.Name)
				}
			}
			if op.RequestBody != nil {
				for contentType, content := range op.RequestBody.Content {
					r.contentType, r.body = contentType, content.Schema.resolve(schemas)
				}
			}
			if r.contentType == "application/x-ndjson" {
				r.body = schemas["NewJob"].resolve(schemas)
			}
			for _, response := range op.Responses {
				_, streams := response.Content["text/event-stream"]
				r.streams = r.streams || streams
			}
			routes = append(routes, r)
		}
	}
	if len(routes) < 14 {
		t.Fatalf("routes = %d: this looks at the wrong place", len(routes))
	}
	return routes
}

// resolve replaces references by what they refer to.
func (m *member) resolve(schemas map[string]*member) *member {
	if m == nil {
		return nil
	}
	if name, ok := strings.CutPrefix(m.Ref, "#/components/schemas/"); ok && schemas[name] != nil {
		m = schemas[name]
	}
	resolved := *m
	resolved.Items = m.Items.resolve(schemas)
	resolved.Properties = map[string]*member{}
	for name, property := range m.Properties {
		resolved.Properties[name] = property.resolve(schemas)
	}
	return &resolved
}

func (m *member) is(kind string) bool {
	switch t := m.Type.(type) {
	case string:
		return t == kind
	case []any:
		return slices.Contains(t, any(kind))
	}
	return m.Properties != nil && kind == "object"
}

// names are what things are called that a request may speak of.
type names struct {
	id, kind, queue, key, schedule, sink string
	extra                                map[string]any // values of members by their names
}

var parameter = regexp.MustCompile(`\{([^}]+)\}`)

// target returns the route's path for the names.
func (n names) target(r one) string {
	return parameter.ReplaceAllStringFunc(r.path, func(p string) string {
		return url.PathEscape(fmt.Sprint(n.of(strings.Trim(p, "{}"))))
	})
}

// of returns what a parameter or a member of that name stands for.
func (n names) of(name string) any {
	switch name {
	case "id", "jobId", "job":
		return n.id
	case "queue":
		return n.queue
	case "key":
		return n.key
	case "kind":
		return n.kind
	case "name", "schedule":
		return n.schedule
	case "sink":
		return n.sink
	case "tenant":
		return tenantB.String()
	}
	if v, ok := n.extra[name]; ok {
		return v
	}
	return n.id
}

// value returns what goes into a member of a body; nil leaves it out.
func (n names) value(name string, m *member) any {
	switch {
	case m.is("object") && n.extra[name] != nil:
		return maps.Clone(n.extra[name].(map[string]any)) // the tests change it
	case n.extra[name] != nil:
		return n.extra[name]
	case name == "ids":
		return []string{n.id}
	case name == "status" && m.is("array"):
		var all []string
		for _, s := range engine.Statuses[outbox.Status]() {
			all = append(all, string(s))
		}
		return all
	case len(m.Enum) > 0:
		return m.Enum[0]
	case m.Format == "uuid":
		return n.id
	case name == "payloadBase64":
		return "e30=" // {}
	case name == "kind", name == "queue", name == "key", name == "name", name == "schedule":
		return n.of(name)
	case m.is("object") && len(m.Properties) > 0:
		return n.object(m, nil)
	case m.is("array") && m.Items != nil:
		return []any{n.value(name, m.Items)}
	case m.Format == "date-time":
		return nil // bounds leave things out
	case m.is("boolean"):
		return false
	case m.is("integer"), m.is("number"):
		return nil
	case m.is("string"):
		return "x"
	}
	return nil
}

// object has the members that are chosen; nil chooses all.
func (n names) object(m *member, chosen []string) map[string]any {
	made := map[string]any{}
	for name, property := range m.Properties {
		if chosen != nil && !slices.Contains(chosen, name) {
			continue
		}
		if v := n.value(name, property); v != nil {
			made[name] = v
		}
	}
	return made
}

// bodies returns bodies that the route may take, each with what it requires and one thing more; "" alone if it takes
// none.
func (n names) bodies(r one) []string {
	if r.body == nil {
		return []string{""}
	}
	var texts []string
	add := func(object map[string]any) {
		if text, err := json.Marshal(object); err == nil && !slices.Contains(texts, string(text)) {
			texts = append(texts, string(text))
		}
	}
	add(n.object(r.body, append([]string{}, r.body.Required...)))
	for _, name := range slices.Sorted(maps.Keys(r.body.Properties)) {
		property := r.body.Properties[name]
		chosen := append([]string{name}, r.body.Required...)
		if !property.is("object") || len(property.Properties) == 0 {
			add(n.object(r.body, chosen))
			continue
		}
		for _, inner := range slices.Sorted(maps.Keys(property.Properties)) { // each condition of a filter
			object := n.object(r.body, chosen)
			object[name] = n.object(property, []string{inner})
			add(object)
		}
	}
	return texts
}

// queries returns query strings that the route may take; "" is the first.
func (n names) queries(r one) []string {
	all := []string{""}
	for _, name := range r.query {
		switch name {
		case "limit", "offset", "cursor", "created_since", "created_until":
		case "status":
			all = append(all, "?status=pending,dead,succeeded")
		default:
			all = append(all, "?"+name+"="+url.QueryEscape(fmt.Sprint(n.of(name))))
		}
	}
	return all
}

// ask sends the route a request. One whose answer does not end is left after a
// moment.
func (r *rig) ask(route one, target, body string, headers ...string) response {
	r.t.Helper()
	if body != "" {
		headers = append(headers, "Content-Type", route.contentType)
	}
	if !route.streams {
		return r.do(route.method, target, body, headers...)
	}
	ctx, leave := context.WithTimeout(r.t.Context(), time.Minute)
	defer leave()
	req := httptest.NewRequestWithContext(ctx, route.method, target, nil)
	req.Header.Set("X-Request-Id", "test")
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(streamRecorder{w, leave}, req)
	return response{w, r.t}
}

// streamRecorder is a reader of a stream who leaves as soon as it has begun.
type streamRecorder struct {
	*httptest.ResponseRecorder
	leave func()
}

func (streamRecorder) SetReadDeadline(time.Time) error  { return nil }
func (streamRecorder) SetWriteDeadline(time.Time) error { return nil }

func (r streamRecorder) WriteHeader(code int) {
	r.ResponseRecorder.WriteHeader(code)
	if code == 200 {
		r.leave()
	}
}

// state returns a digest of each table, but for the audit and what only tells that somebody was there. With a tenant,
// the digests are of what that tenant has.
func (r *rig) state(tenant outbox.ID) map[string]string {
	r.t.Helper()
	rows, _ := r.db.Query(r.t.Context(), `
		SELECT string_agg(format('SELECT %L AS name, md5(string_agg(r::text, %L ORDER BY r::text)) AS digest FROM outbox.%I AS r%s', relname, ';', relname,
			CASE WHEN $1 THEN format(' WHERE tenant_id = %L', $2::uuid) END), ' UNION ALL ')
		FROM pg_class AS c
		WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
		  AND c.relname NOT IN ('audit', 'audit_chain', 'tokens', 'workers', 'schema_version', 'schema_files')
		  AND (NOT $1 OR EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'tenant_id' AND NOT attisdropped))`,
		!tenant.IsZero(), tenant.String())
	query, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
	if err != nil {
		r.t.Fatal(err)
	}
	rows, _ = r.db.Query(r.t.Context(), query)
	digests := map[string]string{}
	var name string
	var digest *string
	_, err = pgx.ForEachRow(rows, []any{&name, &digest}, func() error {
		if digest != nil {
			digests[name] = *digest
		}
		return nil
	})
	if err != nil {
		r.t.Fatalf("%s: %v", query, err)
	}
	return digests
}

// tracer notes what a connection sends.
type tracer struct{ log *statements }

func (t tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	t.log.note(data.SQL)
	return ctx
}
func (tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (t tracer) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	t.log.note(data.SQL)
}
func (tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
