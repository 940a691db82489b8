package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/a-h/templ"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/operator"
)

// These are the placeholders of addresses of other programs.
const (
	jobField   = "{job_id}"
	traceField = "{trace_id}"
)

// CheckLink returns what is wrong with a template of an external address, such as
// https://traces.example.org/trace/{trace_id}: it must be http or https, contain the wanted placeholder, and no others
// but {job_id} and {trace_id}. "" is valid.
func CheckLink(template, wanted string) error {
	if template == "" {
		return nil
	}
	var hosts []string
	for _, value := range []string{"x", "y"} {
		text := strings.NewReplacer(jobField, value, traceField, value).Replace(template)
		u, err := url.Parse(text)
		switch {
		case strings.ContainsAny(text, "{}"):
			return errors.New("want no field but {job_id} and {trace_id}")
		case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil:
			return errors.New("want an http or https URL without a user")
		}
		hosts = append(hosts, u.Scheme+"://"+u.Host)
	}
	if hosts[0] != hosts[1] {
		return errors.New("want fields in its path and query only")
	}
	if !strings.Contains(template, wanted) {
		return fmt.Errorf("want %s in it", wanted)
	}
	return nil
}

// checkManual returns what is wrong with the manual's address: it must be a path of this host, or a URL.
func checkManual(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil, strings.HasPrefix(address, "//"), strings.ContainsAny(address, "\\\t\r\n"):
	case address == "", u.Scheme == "" && strings.HasPrefix(address, "/"):
		return nil
	case (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil:
		return nil
	}
	return errors.New("want a path such as /manual/, or an http or https URL")
}

// traceParent matches that header's value, whose second part is the trace.
var traceParent = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-|$)`)

// elsewhere is a page of another program.
type elsewhere struct {
	name, host string
	to         templ.SafeURL
}

// elsewhere returns the links to the trace and the logs of a job, for viewers who may see how jobs are run.
func (v *visit) elsewhere(j operator.Job) (links []elsewhere) {
	if !v.can(access.AdminRead) {
		return nil
	}
	var headers map[string]string
	_ = json.Unmarshal(j.Headers, &headers) // nil if there are none
	trace := ""
	if m := traceParent.FindStringSubmatch(headers["traceparent"]); m != nil && strings.Trim(m[1], "0") != "" {
		trace = m[1]
	}
	for _, l := range []struct{ name, template string }{
		{"Trace", v.site.config.TraceURL},
		{"Logs", v.site.config.LogURL},
	} {
		if l.template == "" || trace == "" && strings.Contains(l.template, traceField) {
			continue
		}
		to := strings.NewReplacer(jobField, j.ID.String(), traceField, trace).Replace(l.template)
		u, err := url.Parse(to)
		if err != nil {
			continue // the template was checked, and ids are hexadecimal
		}
		links = append(links, elsewhere{l.name, u.Host, templ.SafeURL(to)})
	}
	return links
}
