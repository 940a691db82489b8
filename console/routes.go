package console

import (
	"net/http"
	"strings"

	"github.com/posthaste-dev/posthaste/access"
)

// route is one row of the console: adding a page is this row and a method of site.
//
// A path is one segment, so that links from page to page are relative and the same on all of them.
type route struct {
	method, path string
	gate         gate
	params       string // names of parameters, of the query or the form; others are refused
	nav          string // what the navigation calls it; "" leaves it out
	page         func(*site, *visit) error
}

// gate is who gets in.
type gate struct {
	anyone     bool                // also without a login
	needs      []access.Capability // all of them
	everything bool                // concerns what all tenants share: only for principals of all tenants
}

var (
	anyone   = gate{anyone: true}
	signedIn = gate{}
)

func needs(capabilities ...access.Capability) gate { return gate{needs: capabilities} }

func (g gate) ofAllTenants() gate {
	g.everything = true
	return g
}

// missing is the capability that the principal lacks; "" if it lacks none.
func (g gate) missing(who access.Principal) access.Capability {
	for _, c := range g.needs {
		if !who.Can(c) {
			return c
		}
	}
	return ""
}

// admits reports whether the principal gets in.
func (g gate) admits(who access.Principal) bool {
	return g.missing(who) == "" && (!g.everything || who.AllTenants)
}

// acts reports whether a row changes something of the database.
func (r *route) acts() bool { return r.method == http.MethodPost && len(r.gate.needs) > 0 }

// routes is every page. Nothing else is served, except the assets. The navigation has them in this order.
var routes = []route{
	{"GET", "", signedIn, "", "", (*site).home},
	{"GET", "problems", needs(access.AdminRead), "", "Problems", (*site).problems},
	{"GET", "now", needs(access.AdminRead).ofAllTenants(), "", "Now", (*site).now},
	{"GET", "jobs", needs(access.JobsRead), jobsParams, "Jobs", (*site).jobs},
	{"GET", "job", needs(access.JobsRead), "id reveal whole", "", (*site).job},
	{"GET", "payload", needs(access.JobsRead, access.PayloadRead), "id", "", (*site).payload},
	{"GET", "result", needs(access.JobsRead, access.PayloadRead), "id", "", (*site).result},
	{"GET", "find", needs(access.JobsRead), "q", "", (*site).find},
	{"GET", "letters", needs(access.AdminRead), lettersParams, "Dead letters", (*site).letters},
	{"GET", "queues", needs(access.AdminRead), "", "Queues", (*site).queues},
	{"GET", "queue", needs(access.AdminRead), "queue done", "", (*site).queue},
	{"GET", "queue-pause", needs(access.AdminMutate).ofAllTenants(), "queue", "", (*site).askPause},
	{"POST", "queue-pause", needs(access.AdminMutate).ofAllTenants(), "queue reason", "", (*site).pause},
	{"GET", "queue-resume", needs(access.AdminMutate).ofAllTenants(), "queue", "", (*site).askResume},
	{"POST", "queue-resume", needs(access.AdminMutate).ofAllTenants(), "queue reason", "", (*site).resume},
	{"GET", "queue-limits", needs(access.AdminMutate).ofAllTenants(), "queue", "", (*site).askLimits},
	{"POST", "queue-limits", needs(access.AdminMutate).ofAllTenants(), "queue running starts interval reason", "", (*site).limit},
	{"GET", "kinds", needs(access.AdminRead), "", "Kinds", (*site).kinds},
	{"GET", "kind", needs(access.AdminRead), "kind", "", (*site).kind},
	{"GET", "keys", needs(access.AdminRead), keysParams, "Keys", (*site).keys},
	{"GET", "key", needs(access.AdminRead), "tenant queue key", "", (*site).key},
	{"GET", "schedules", needs(access.AdminRead), "tenant", "Schedules", (*site).schedules},
	{"GET", "schedule", needs(access.AdminRead), "tenant name", "", (*site).schedule},
	{"GET", "workers", needs(access.AdminRead).ofAllTenants(), "", "Workers", (*site).workers},
	{"GET", "sinks", needs(access.AdminRead).ofAllTenants(), "", "Sinks", (*site).sinks},
	{"GET", "sink", needs(access.AdminRead).ofAllTenants(), "name", "", (*site).sink},
	{"GET", "operations", needs(access.AdminRead), "before", "Operations", (*site).operations},
	{"GET", "operation", needs(access.AdminRead), "id", "", (*site).operation},
	{"GET", "audit", needs(access.AdminRead), auditParams, "Audit", (*site).audit},
	{"GET", "system", needs(access.AdminRead).ofAllTenants(), "", "System", (*site).system},
	{"GET", "me", signedIn, "", "", (*site).me},
	{"POST", "settings", anyone, "theme zone density back", "", (*site).settings},
	{"GET", "login", anyone, "back", "", (*site).login},
	{"POST", "login", anyone, "token back", "", (*site).signIn},
	{"POST", "logout", anyone, "", "", (*site).signOut},
	{"GET", "robots.txt", anyone, "", "", (*site).robots},
}

var (
	table      = map[string]map[string]*route{} // the routes by path and method
	navigation []*route                         // those with a name there
)

func init() {
	routes = append(routes, actRoutes()...)
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

// routeOf is the row of a request, by the last segment of its path; else the methods that its path takes, if any.
func routeOf(r *http.Request) (found *route, allowed []string) {
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

// home is the page that people begin with.
func (s *site) home(v *visit) error {
	for _, r := range v.nav() {
		return v.redirect(link(r.path))
	}
	return v.redirect(link("me"))
}

func (s *site) robots(v *visit) error {
	return v.send("text/plain; charset=utf-8", []byte("User-agent: *\nDisallow: /\n"))
}
