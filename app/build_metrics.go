package app

import (
	"runtime"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/release"
	"github.com/posthaste-dev/posthaste/migrations"
)

// newBuildInfo returns a metric that describes the program. Its version is that of the program; its release and schema
// are what the build was made for, of which outbox_schema_version is the one that the database has.
func newBuildInfo() prometheus.Collector {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "outbox_build_info",
		Help: "1, with the version of the program, the newest release that has changed the schema and the latest migration " +
			"that it knows, and the Go that it was built with.",
	}, []string{"version", "release", "schema", "goversion"})
	schema := strconv.FormatInt(migrations.Latest(), 10)
	info.WithLabelValues(engine.Version(), release.Name(), schema, runtime.Version()).Set(1)
	return info
}
