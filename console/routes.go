package console

import (
	"net/http"
	"strings"

	"github.com/posthaste-dev/posthaste/access"
)

// route is one row of the console: adding a page takes this row and a method of site.
//
// A path is one segment, so that links between pages are relative and the same on all of them.
type route struct {
	method, path string
	gate         gate
	params       string // names of parameters, of the query or the form; others are refused
	nav          string // name in the navigation; "" leaves it out
	page         func(*site, *visit) error
}

// gate determines who may open a page.
type gate struct {
	anyone     bool                // even without a login
	needs      []access.Capability // all of them
	everything bool                // concerns data that all tenants share: only for principals of all tenants
}

var (
	anyone   = gate{anyone: true}
	signedIn = gate{}
	inside   = needs(access.JobsRead, access.AdminRead) // how jobs are run; these pages lead to jobs
)

func needs(capabilities ...access.Capability) gate { return gate{needs: capabilities} }

func (g gate) ofAllTenants() gate {
	g.everything = true
	return g
}

// missing returns the capability that the principal lacks; "" if it lacks none.
func (g gate) missing(who access.Principal) access.Capability {
	for _, c := range g.needs {
		if !who.Can(c) {
			return c
		}
	}
	return ""
}

// admits reports whether the principal may open the page.
func (g gate) admits(who access.Principal) bool {
	return g.missing(who) == "" && (!g.everything || who.AllTenants)
}

// acts reports whether a row changes something in the database.
func (r *route) acts() bool { return r.method == http.MethodPost && len(r.gate.needs) > 0 }

// repeats reports whether a parameter may occur more than once: checked boxes, and what belongs to each.
func (r *route) repeats(name string) bool {
	return name == "status" || strings.HasPrefix(r.path, "selected-") && (name == "id" || name == "while")
}

// anyParams stands for a page that accepts any parameters.
const anyParams = "*"

// routes lists every page, in the order of the navigation. Nothing else is served, except the assets.
var routes = []route{
	{"GET", "", signedIn, "", "", (*site).home},
	{"GET", "problems", inside, "", "Problems", (*site).problems},
	{"GET", "now", inside.ofAllTenants(), "range", "Now", (*site).now},
	{"GET", "jobs", needs(access.JobsRead), jobsParams + actedParams, "Jobs", (*site).jobs},
	{"GET", "view-save", needs(access.JobsRead), "search", "", (*site).askView},
	{"POST", "view-save", needs(access.JobsRead), "search name shared replaces", "", (*site).saveView},
	{"GET", "live", needs(access.JobsRead, access.AdminStream), tailParams, "Live", (*site).tail},
	{"GET", "job", needs(access.JobsRead), "id reveal whole", "", (*site).job},
	{"GET", "payload", needs(access.JobsRead, access.PayloadRead), "id", "", (*site).payload},
	{"GET", "result", needs(access.JobsRead), "id", "", (*site).result},
	{"GET", "find", needs(access.JobsRead), "q idempotency kind tenant", "", (*site).find},
	{"GET", "jobs-export", needs(access.JobsRead), jobsParams + exportParams, "", (*site).exportJobs},
	{"GET", "letters-export", inside, lettersParams + exportParams, "", (*site).exportLetters},
	{"GET", "audit-verify", inside.ofAllTenants(), "head", "", (*site).verifyAudit},
	{"GET", "audit-export", inside, auditParams + exportParams, "", (*site).exportAudit},
	{"GET", "letters", inside, lettersParams + actedParams, "Dead letters", (*site).letters},
	{"GET", "queues", inside, "", "Queues", (*site).queues},
	{"GET", "queue", inside, "queue done range", "", (*site).queue},
	{"GET", "queue-pause", needs(access.AdminMutate).ofAllTenants(), "queue", "", (*site).askPause},
	{"POST", "queue-pause", needs(access.AdminMutate).ofAllTenants(), "queue shown reason", "", (*site).pause},
	{"GET", "queue-resume", needs(access.AdminMutate).ofAllTenants(), "queue", "", (*site).askResume},
	{"POST", "queue-resume", needs(access.AdminMutate).ofAllTenants(), "queue shown reason", "", (*site).resume},
	{"GET", "queue-limits", needs(access.AdminMutate).ofAllTenants(), "queue", "", (*site).askLimits},
	{
		"POST", "queue-limits", needs(access.AdminMutate).ofAllTenants(),
		"queue shown running starts interval reason", "", (*site).limit,
	},
	{"GET", "kinds", inside, "", "Kinds", (*site).kinds},
	{"GET", "kind", inside, "kind range", "", (*site).kind},
	{"GET", "keys", inside, keysParams, "Keys", (*site).keys},
	{"GET", "key", inside, "tenant queue key request", "", (*site).key},
	{"GET", "schedules", inside, "tenant after_name after_tenant", "Schedules", (*site).schedules},
	{"GET", "schedule", inside, "tenant name done", "", (*site).schedule},
	{"GET", "workers", inside.ofAllTenants(), "", "Workers", (*site).workers},
	{"GET", "sinks", inside.ofAllTenants(), "", "Sinks", (*site).sinks},
	{"GET", "sink", inside.ofAllTenants(), "name done", "", (*site).sink},
	{"GET", "operations", inside, "before", "Operations", (*site).operations},
	{"GET", "operation", inside, "id done", "", (*site).operation},
	{"GET", "audit", inside, auditParams, "Audit", (*site).audit},
	{"GET", "system", inside.ofAllTenants(), "", "System", (*site).system},
	{"GET", "me", signedIn, "", "", (*site).me},
	{"POST", "settings", anyone, "theme zone density keys back", "", (*site).settings},
	{"GET", "login", anyone, "back", "", (*site).login},
	{"POST", "login", anyone, "token back", "", (*site).signIn},
	{"GET", "provider", anyone, "back", "", (*site).toProvider},
	{"GET", "callback", anyone, anyParams, "", (*site).fromProvider},
	{"POST", "logout", anyone, "", "", (*site).signOut},
	{"GET", "rows", needs(access.JobsRead), "id of tenants pick", "", (*site).rows},
	{"GET", "events", needs(access.JobsRead, access.AdminStream), "after", "", (*site).events},
	{"GET", "robots.txt", anyone, "", "", (*site).robots},
}

var (
	table      = map[string]map[string]*route{} // the routes by path and method
	navigation []*route                         // those with a name in it
)

func init() {
	routes = append(append(routes, actRoutes()...), editRoutes...)
	for i := range routes {
		r := &routes[i]
		if table[r.path] == nil {
			table[r.path] = map[string]*route{}
		}
		table[r.path][r.method] = r
		if r.nav != "" {
			navigation = append(navigation, r)
		}
	}
}

// routeOf returns the row of a request, by the last segment of its path; otherwise it returns the methods that its path
// accepts, if any. A path with an empty segment is none: a browser that resolves //evil.example/jobs, the path of its
// page, goes to another host.
func routeOf(r *http.Request) (found *route, allowed []string) {
	if strings.Contains(r.URL.Path, "//") {
		return nil, nil
	}
	path := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if found = table[path][method]; found != nil {
		return found, nil
	}
	for method := range table[path] {
		allowed = append(allowed, method)
	}
	return nil, allowed
}

// home answers for the first page: it redirects to the first page that the principal may open, or to "me" if there is
// none.
func (s *site) home(v *visit) error {
	for _, r := range v.nav() {
		return v.redirect(link(r.path))
	}
	return v.redirect(link("me"))
}

func (s *site) robots(v *visit) error {
	return v.send("text/plain; charset=utf-8", []byte("User-agent: *\nDisallow: /\n"))
}
