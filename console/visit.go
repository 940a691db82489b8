package console

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// visit is one request, with everything that its page may use.
type visit struct {
	site  *site
	w     http.ResponseWriter
	r     *http.Request
	route *route // nil if there is none

	connection context.Context // of the request, without the page's time limit
	leave      func()          // releases the place of a page in progress

	id     string    // of the request
	nonce  string    // of the page's scripts
	now    time.Time // the time of the page; ages count from here
	params url.Values
	acted  acted   // what this request has done to selected jobs
	before int64   // the act that this request's form, sent twice, has already done; else 0
	over   bool    // the page shows what no longer changes: it is not read again
	form   []field // what was sent with a form that was refused, and can be sent again
	again  place   // where a refusal leads people who want to look again; zero for nowhere

	who   access.Principal
	known bool     // who is authenticated
	kept  *session // if who has signed in, for signing out; else nil

	operator *operator.Operator // acts as who
	noWrites *string            // why nothing can be changed; nil before it was checked
	zone     *time.Location
	theme    string // "light", "dark" or "" for the system's
	density  string // "compact" or ""
	keys     string // "off" or ""
	status   int    // of the answer; 0 means 200
}

// ctx returns the request's context, tied to the principal's tenant.
func (v *visit) ctx() context.Context { return v.r.Context() }

// param returns a parameter's value; "" if it is absent.
func (v *visit) param(name string) string { return v.params.Get(name) }

// tenant returns the tenant whose jobs the principal sees; zero means all.
func (v *visit) tenant() outbox.ID {
	if v.who.AllTenants {
		return outbox.ID{}
	}
	return v.who.Tenant
}

// can reports whether the principal has the capability.
func (v *visit) can(c access.Capability) bool { return v.who.Can(c) }

// nav returns the rows that the principal may open and that have a name.
func (v *visit) nav() (rows []*route) {
	for _, r := range navigation {
		if v.known && r.gate.admits(v.who) {
			rows = append(rows, r)
		}
	}
	return rows
}

// here returns this page's own relative URL, for links that lead back to it.
func (v *visit) here() string {
	if v.r.Method != http.MethodGet || v.route == nil {
		return "./"
	}
	if v.r.URL.RawQuery == "" {
		return cmp.Or(v.route.path, "./")
	}
	return v.route.path + "?" + v.params.Encode()
}

// moveTo makes the visit count as one to another address, for links that lead back to it.
func (v *visit) moveTo(path string, params url.Values) {
	v.route, v.params = table[path][http.MethodGet], params
	v.r = v.r.Clone(v.ctx())
	v.r.Method, v.r.URL.RawQuery = http.MethodGet, params.Encode()
}

// link returns the URL of a page of the console with parameters, alternating names and values; it omits empty ones.
func link(path string, pairs ...string) templ.SafeURL {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	if path == "" {
		path = "./"
	}
	if len(q) == 0 {
		return templ.SafeURL(path)
	}
	return templ.SafeURL(path + "?" + q.Encode())
}

// redirect sends people on to another page. The Location is relative, so that no proxy that strips a prefix can break
// it.
func (v *visit) redirect(to templ.SafeURL) error {
	v.w.Header().Set("Location", string(to))
	v.w.WriteHeader(http.StatusSeeOther)
	return nil
}

// render answers with a page. It renders the page completely before it sends the first byte, so that a failure can be a
// page of its own.
func (v *visit) render(c templ.Component) error {
	var page bytes.Buffer
	if err := c.Render(v.ctx(), &page); err != nil {
		return err
	}
	return v.send("text/html; charset=utf-8", page.Bytes())
}

// leastGzip is the size from which an answer is compressed.
const leastGzip = 1400

// send answers with a content.
func (v *visit) send(contentType string, content []byte) error {
	h := v.w.Header()
	h.Set("Content-Type", contentType)
	if len(content) >= leastGzip && strings.Contains(v.r.Header.Get("Accept-Encoding"), "gzip") {
		content = gzipped(content, gzip.DefaultCompression)
		h.Set("Content-Encoding", "gzip")
	}
	h.Add("Vary", "Accept-Encoding, Cookie")
	h.Set("Content-Length", strconv.Itoa(len(content)))
	v.w.WriteHeader(cmp.Or(v.status, http.StatusOK))
	if v.r.Method != http.MethodHead {
		_, _ = v.w.Write(content) // the client went away
	}
	return nil
}

func gzipped(content []byte, level int) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, level) // the level is valid
	_, _ = w.Write(content)                // to memory
	_ = w.Close()
	return b.Bytes()
}
