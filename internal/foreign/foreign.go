// Package foreign recognises databases that implement Postgres's protocol and are not Postgres: they lack what the
// schema and its guarantees depend on, such as LISTEN, advisory locks and triggers as Postgres has them.
package foreign

import "strings"

// names are words of what version() returns, and the databases that return them.
var names = map[string]string{
	"CockroachDB": "CockroachDB", "-YB-": "YugabyteDB", "Redshift": "Redshift", "Greenplum": "Greenplum", "CedarDB": "CedarDB",
	"Materialize": "Materialize", "openGauss": "openGauss",
}

// Database returns the name of a database by what version() returns, or "" for Postgres, also that of a provider.
func Database(version string) string {
	for word, name := range names {
		if strings.Contains(version, word) {
			return name
		}
	}
	switch {
	case strings.HasPrefix(version, "PostgreSQL "):
		return ""
	case version == "":
		return "a server that does not report its version"
	}
	return version
}
