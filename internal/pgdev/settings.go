package pgdev

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// settings returns the server's settings: those of this package, overridden by the caller's.
func (o Options) settings() map[string]string {
	s := map[string]string{
		"shared_buffers":     "256MB",
		"max_wal_size":       "4GB",
		"max_connections":    "200",
		"timezone":           "UTC",
		"fsync":              "on",
		"synchronous_commit": "on",
		"full_page_writes":   "on",
	}
	if o.Fast {
		s["shared_buffers"] = "128MB"
		s["max_connections"] = "500" // every test of every binary brings a pool
		s["max_wal_size"] = "512MB"  // the folder may be in memory
		s["fsync"] = "off"
		s["full_page_writes"] = "off"
		// No database lives long enough to gain from these, and each costs processor time while hundreds of databases
		// are created and dropped.
		s["autovacuum_naptime"] = "1h"
		s["bgwriter_lru_maxpages"] = "0"
		s["checkpoint_timeout"] = "1h"
		s["jit"] = "off"
		s["log_checkpoints"] = "off"
	}
	maps.Copy(s, o.Settings)
	return s
}

// conf formats settings as a configuration file. They are in a file rather than on the command line so that ALTER
// SYSTEM overrides them.
func conf(settings map[string]string) string {
	var b strings.Builder
	b.WriteString("# Written at every start by posthaste; change postgresql.auto.conf by ALTER SYSTEM instead.\n")
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	return b.String()
}
