package main

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/relay/webhook"
)

const redacted = "REDACTED"

// showDSN describes where a connection string leads and as whom. It is composed from the parsed parts rather than the
// text, so that no secret can slip through.
func showDSN(dsn string) string {
	config, err := pgx.ParseConfig(dsn)
	if err != nil || isMisread(dsn) {
		return redacted
	}
	if strings.HasPrefix(config.Host, "/") {
		text := "host=" + config.Host + " port=" + strconv.Itoa(int(config.Port)) + " user=" + config.User +
			" dbname=" + config.Database
		if config.Password != "" {
			text += " password=" + redacted
		}
		return text
	}
	u := url.URL{Scheme: "postgres", Host: config.Host + ":" + strconv.Itoa(int(config.Port)), Path: "/" +
		config.Database}
	if strings.Contains(config.Host, ":") {
		u.Host = "[" + config.Host + "]:" + strconv.Itoa(int(config.Port))
	}
	u.User = url.User(config.User)
	if config.Password != "" {
		u.User = url.UserPassword(config.User, redacted)
	}
	return u.String()
}

// isMisread reports whether a URL has two @, or one after its host: then a password was not escaped, like 12/34 in
// postgres://ada:12/34@db/shop, and parts of it are mistaken for a host, a port or a database.
func isMisread(address string) bool {
	_, rest, found := strings.Cut(address, "://")
	i := strings.IndexAny(rest, "/?#")
	return found && (strings.Count(rest, "@") > 1 || i >= 0 && strings.Contains(rest[i:], "@"))
}

// showWebhooks leaves out the user, path and query of every URL, where secrets may be.
func showWebhooks(v string) string {
	routes, err := parseWebhooks(v)
	if err != nil {
		return redacted
	}
	shown := make([]string, len(routes))
	for i, r := range routes {
		shown[i] = r.kind + "=" + showURL(r.url)
	}
	return strings.Join(shown, ",")
}

func showURL(target string) string {
	u, err := webhook.Parse(target)
	if err != nil {
		return redacted
	}
	return u.Scheme + "://" + u.Host + "/…"
}

// showAPI returns the API's address, without the other parts of the URL.
func showAPI(target string) string {
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || isMisread(target) {
		return redacted
	}
	return u.Scheme + "://" + u.Host + u.EscapedPath()
}
