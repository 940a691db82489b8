package console

import (
	"strings"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/outbox"
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

// Shapes are those of the statuses; Solid tells which are filled.
func Shapes() map[outbox.Status]string { return shapes }
func Solid() map[outbox.Status]bool    { return solid }

// Diff is what turns a into b, on a line.
func Diff(a, b []string) string {
	var all []string
	for _, c := range diff(a, b) {
		all = append(all, string(c.kind)+c.text)
	}
	return strings.Join(all, ";")
}
