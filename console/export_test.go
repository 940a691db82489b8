package console

import (
	"strings"

	"github.com/posthaste-dev/posthaste/access"
)

// Row is a row of the table of routes.
type Row struct {
	Method, Path       string
	Anyone, Everything bool
	Needs              []access.Capability
	Params             []string
}

// Table is the table of routes.
func Table() (rows []Row) {
	for _, r := range routes {
		rows = append(rows, Row{r.method, r.path, r.gate.anyone, r.gate.everything, r.gate.needs, strings.Fields(r.params)})
	}
	return rows
}
