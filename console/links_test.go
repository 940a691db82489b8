package console_test

import (
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestLinksToTracesAndLogs(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *console.Config) {
		c.TraceURL, c.LogURL, c.Manual = "https://traces.example.org/trace/{trace_id}", "https://logs.example.org/?q={job_id}", "https://docs.example.org/manual/"
	})
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	traced := r.enqueue("greet", `{}`, outbox.Options{Headers: map[string]string{"traceparent": "00-" + trace + "-00f067aa0ba902b7-01"}}).String()
	r.get("job?id="+traced).is(200).has("traces.example.org", "logs.example.org")
	body := r.get("job?id=" + traced).Body.String()
	for _, want := range []string{`"https://traces.example.org/trace/` + trace + `"`, `"https://logs.example.org/?q=` + traced + `"`, `<a href="https://docs.example.org/manual/">manual</a>`} {
		if !strings.Contains(body, want) {
			t.Errorf("there is no link %s", want)
		}
	}
	for _, parent := range []string{"", `00-"><script>-00f067aa0ba902b7-01`, "00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", "x00-" + trace + "-00f067aa0ba902b7-01"} {
		id := r.enqueue("greet", `{}`, outbox.Options{Headers: map[string]string{"traceparent": parent}}).String()
		r.get("job?id=" + id).is(200).has("logs.example.org").hasNot("traces.example.org")
	}
	r.as("+jobs.read").get("job?id="+traced).is(200).hasNot("traces.example.org", "logs.example.org")
}

func TestLinksAreChecked(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"", "https://h/{job_id}", "http://h:3000/explore?q={job_id}&t={trace_id}#x"} {
		if err := console.CheckLink(good, "{job_id}"); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"javascript:alert({job_id})", "https://{job_id}/", "https://h{job_id}/", "https://h:{job_id}/", "https://a:b@h/{job_id}", "//h/{job_id}", "/x/{job_id}", "ftp://h/{job_id}",
		"https://h/{trace_id}", "https://h/{payload}/{job_id}", "https://h/{job_id}}", "https://h/%zz{job_id}", "{job_id}://h/",
	} {
		if err := console.CheckLink(bad, "{job_id}"); err == nil {
			t.Errorf("%s: taken", bad)
		}
	}
	pool := newRig(t).db
	for _, manual := range []string{"javascript:alert(1)", "//evil.example/", "manual/", "https://a@h/", `/\evil.example/`, "https:///x"} {
		_, err := console.New(console.Config{Pool: pool, Authenticator: fixed{}, Manual: manual, TraceURL: "x"})
		if err == nil || !strings.Contains(err.Error(), "Manual: ") || !strings.Contains(err.Error(), "TraceURL: ") {
			t.Errorf("the manual at %q: got %v", manual, err)
		}
	}
}
