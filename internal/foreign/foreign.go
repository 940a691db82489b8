// Package foreign recognises servers on which the schema and its guarantees do not work, by what version() returns:
// databases that implement Postgres's protocol and are not Postgres, which lack LISTEN, advisory locks or triggers as
// Postgres has them, and versions of Postgres that lack what our statements use.
package foreign

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Oldest and Newest are the major versions of Postgres between which, inclusively, the tests run.
const (
	Oldest = 15
	Newest = 18
)

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

// Refusal says why a server is not supported, or is "" for one that is, or may be because it is newer than Newest.
func Refusal(version string) string {
	if name := Database(version); name != "" {
		return "the database is not PostgreSQL, but " + name + ", which is not supported"
	}
	if major := Major(version); major > 0 && major < Oldest {
		return fmt.Sprintf("the server is PostgreSQL %d, and the oldest that is supported is %d", major, Oldest)
	}
	return ""
}

var major = regexp.MustCompile(`^PostgreSQL (\d+)`)

// Major returns the major version of a Postgres, or 0 if version does not name it.
func Major(version string) int {
	m := major.FindStringSubmatch(version)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1]) // 0 beyond an int
	return n
}
