package api

import (
	"embed"
	"net/http"
	"path"
)

// explorer is swagger-ui-dist 5.35.0 from npm, without unneeded files, and a page that starts it.
//
//go:embed explorer
var explorer embed.FS

// explorerPolicy lets the page connect to this server only.
const explorerPolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

var explorerTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	"": "text/plain; charset=utf-8",
}

// serveExplorer serves the page at /docs and its files below, with relative links, because the API may be mounted
// anywhere.
func serveExplorer(mux *http.ServeMux) {
	serve := func(pattern, file string) {
		content, err := explorer.ReadFile("explorer/" + file) // a single copy for all requests
		if err != nil {
			panic(err) // it is compiled in
		}
		mux.HandleFunc("GET "+pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Security-Policy", explorerPolicy)
			w.Header().Set("Content-Type", explorerTypes[path.Ext(file)])
			w.Header().Set("Cache-Control", "no-cache")
			_, _ = w.Write(content) // the client went away
		})
	}
	serve("/docs", "index.html")
	for _, file := range []string{"start.js", "swagger-ui-bundle.js", "swagger-ui.css", "LICENSE", "NOTICE"} {
		serve("/docs/"+file, file)
	}
}
