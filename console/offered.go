package console

import (
	"net/url"
	"strings"

	"github.com/a-h/templ"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

// offer is a link to the first step of an act that helps.
type offer struct {
	label string
	to    templ.SafeURL // "" if the console has no form for the act
	why   string        // why this viewer may not use it, or ""
}

// offered returns the form that does what a request to the API does. The status is that of the job that the act helps,
// or "".
func (v *visit) offered(a operator.Act, s outbox.Status) (o offer) {
	u, err := url.Parse(a.Path)
	if err != nil {
		return o
	}
	parts := strings.Split(strings.Trim(u.EscapedPath(), "/"), "/")
	for i := range parts {
		if parts[i], err = url.PathUnescape(parts[i]); err != nil {
			return o
		}
	}
	switch noun, verb := parts[0], parts[len(parts)-1]; noun + " " + verb {
	case "queues resume":
		return offer{"Resume queue " + parts[1] + "…", link("queue-resume", "queue", parts[1]), v.noQueueActs()}
	case "queues limits":
		return offer{"Limits of queue " + parts[1] + "…", link("queue-limits", "queue", parts[1]), v.noQueueActs()}
	case "keys unblock":
		o.label, o.to, o.why = v.actOn("key-unblock", "tenant", u.Query().Get("tenant"), "queue", parts[1], "key", parts[2])
	case "jobs retry", "jobs release":
		o.label, o.to, o.why = v.jobAct("job-"+verb, s, parts[1])
	}
	return o
}

// remedy returns the form for what a problem needs.
func (v *visit) remedy(p watch.Problem) (o offer) {
	if p.Kind != watch.DeadLetters || p.Act.Path == "" {
		return v.offered(p.Act, "")
	}
	o.label, o.to, o.why = v.actOn("letters-replay", "error", p.Fingerprint, "kind", p.JobKind, "tenant", exportedID(p.Tenant))
	return o
}
