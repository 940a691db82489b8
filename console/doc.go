// Package console is the web console: pages on which people see what is wrong and act on it. It is a thin layer over
// package operator, rendered on the server: every page is complete without scripts.
//
//	handler, err := console.New(console.Config{Pool: pool, Authenticator: tokens})
//	mux.Handle("/console/", handler)
//
// The handler works below any path, with the prefix stripped or not: every URL that it writes is relative to its page,
// and a page is found by the last segment of its path.
//
// # Guarantees
//
// Nothing is registered outside the table of routes, and each row names the parameters that it accepts. GET changes
// nothing. Data that a principal may not see is not on its pages, and its tenant's row security applies (see
// operator.WithTenant). Every byte of a job is text: it is escaped in its context, and the pages' policy runs no script
// but the console's own.
package console

// # Files
//
// None of the files depends on those above it:
//
//	console.go   configuration, and what the pages share
//	routes.go    the table of routes: path, capability, parameters, page
//	enter.go     what is before every page: headers, who it is, whether they may
//	visit.go     one request: its parameters, clock, zone, links; rendering
//	session.go   the sealed cookie
//	refusal.go   what is answered in place of a page
//	assets.go    scripts and styles
//	show.go      how times, durations and sizes are written
//
// and a file for each page with its templates next to it (jobs.go, jobs.templ). Pages are composed from layout.templ,
// parts.templ and confirm.templ.
