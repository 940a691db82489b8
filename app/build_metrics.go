package app

import (
	"runtime"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/migrations"
)

// newBuildInfo returns a metric that describes the program. Its schema is the one that the build was made for;
// outbox_schema_version is the one that the database has.
func newBuildInfo() prometheus.Collector {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "outbox_build_info",
		Help: "1, with the version of the program, the latest migration that it knows, and the Go that it was built with.",
	}, []string{"version", "schema", "goversion"})
	info.WithLabelValues(engine.Version(), strconv.FormatInt(migrations.Latest(), 10), runtime.Version()).Set(1)
	return info
}
