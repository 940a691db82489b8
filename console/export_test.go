package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Row is a row of the table of routes.
type Row struct {
	Method, Path       string
	Anyone, Everything bool
	Needs              []access.Capability
	Params             []string
}

// Table returns the table of routes.
func Table() (rows []Row) {
	for _, r := range routes {
		rows = append(rows, Row{r.method, r.path, r.gate.anyone, r.gate.everything, r.gate.needs, strings.Fields(r.params)})
	}
	return rows
}

// Shapes returns the shapes of the statuses; Solid tells which are filled.
func Shapes() map[outbox.Status]string { return shapes }
func Solid() map[outbox.Status]bool    { return solid }

// Diff returns what turns a into b, on a line.
func Diff(a, b []string) string {
	var all []string
	for _, c := range diff(a, b) {
		all = append(all, string(c.kind)+c.text)
	}
	return strings.Join(all, ";")
}

// Content returns what a page shows of a payload of JSON.
func Content(payload []byte, reveal bool) string {
	var text strings.Builder
	for _, t := range (&site{}).contentOf(payload, "application/json", reveal, false).tokens {
		text.WriteString(t.text)
	}
	return text.String()
}

// Editable returns what the field of an edit has.
func Editable(payload []byte) (string, error) {
	p, err := (&site{}).storedPayload(operator.Job{Status: outbox.Failed, ContentType: "application/json", Payload: payload}, false)
	return p.text, err
}

// CSVLine returns a line of an export.
func CSVLine(cells ...string) string {
	var line strings.Builder
	_ = writeCSV(&line, exportedTable{}, cells) // to memory
	return line.String()
}

// Exported answers with a file of the pages, to a visit whose time is over.
func Exported(w http.ResponseWriter, timeout time.Duration, page func(context.Context) ([][]string, bool, error)) error {
	return exportedFor(&site{config: Config{Timeout: timeout}, log: slog.New(slog.DiscardHandler)}, "ada", w, page)
}

func exportedFor(s *site, who string, w http.ResponseWriter, page func(context.Context) ([][]string, bool, error)) error {
	late, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	is := access.Principal{Name: who, AllTenants: true}
	if tenant, ok := strings.CutPrefix(who, "tenant"); ok {
		is = access.Principal{Name: who, Tenant: outbox.ID{tenant[0]}}
	}
	s.config.Who = func(*http.Request) (access.Principal, error) { return is, nil }
	v := &visit{
		site: s, w: w, params: url.Values{"format": {"csv"}}, who: is, known: true, route: new(route),
		r: httptest.NewRequestWithContext(late, "GET", "/", nil), connection: context.Background(), leave: func() {},
	}
	return v.export(exportedTable{"list", []string{"id"}, nil, page})
}

// ExportedAtOnce has these people export at once, each while those before read, and returns their errors.
func ExportedAtOnce(who ...string) (last error) {
	s := &site{config: Config{Timeout: time.Minute}, log: slog.New(slog.DiscardHandler)}
	var come func(rest []string) error
	come = func(rest []string) error {
		return exportedFor(s, rest[0], httptest.NewRecorder(), func(context.Context) ([][]string, bool, error) {
			if len(rest) > 1 {
				last = errors.Join(last, come(rest[1:]))
			}
			return nil, false, nil
		})
	}
	first := come(who)
	return errors.Join(first, last)
}

// Unrenewed returns the value of a cookie of somebody without a refresh token, whom the provider has confirmed at a
// time.
func Unrenewed(key []byte, issuer string, at, expires time.Time) string {
	text, _ := newCookie(nil, [][]byte{key}).seal("session", session{Ends: at.Add(sessionLength), Person: &person{
		ID: "x", Issuer: issuer, Confirmed: at,
		Person: access.Person{Expires: expires, Principal: access.Principal{Name: "ada", AllTenants: true, Capabilities: map[access.Capability]bool{access.JobsRead: true}}},
	}})
	return text
}

// Confirmed returns the value of a cookie of somebody whom a provider has confirmed.
func Confirmed(key []byte, issuer string, at time.Time) string {
	text, _ := newCookie(nil, [][]byte{key}).seal("session", session{Ends: at.Add(sessionLength), Person: &person{
		ID: "x", Issuer: issuer, Confirmed: at,
		Person: access.Person{Refresh: "r", Expires: at, Principal: access.Principal{Name: "ada", AllTenants: true, Capabilities: map[access.Capability]bool{access.JobsRead: true}}},
	}})
	return text
}
