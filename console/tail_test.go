package console_test

import (
	"strings"
	"testing"
)

func TestChangesByFilter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for page, want := range map[string]string{
		"live":                                   `data-match="{}"`,
		"live?kind=greet&status=dead%2Cretrying": `{&#34;kind&#34;:&#34;greet&#34;,&#34;statuses&#34;:[&#34;dead&#34;,&#34;retrying&#34;]}`,
		"live?status=dead":                       `href="live?status=dead%2Crunning"`,
		"live?status=dead&queue=mail":            `href="live?status=dead" aria-label="Take off queue mail"`,
		"live?queue=a+b":                         "posthaste jobs tail <span>--queue</span> &#39;a b&#39;",
	} {
		if body := r.get(page).is(200).Body.String(); !strings.Contains(body, want) {
			t.Errorf("%s has no %s: %s", page, want, body)
		}
	}
	if got := r.get("live?q=greet%20dead%20queue%3Amail").is(303).Header().Get("Location"); got != "live?kind=greet&queue=mail&status=dead" {
		t.Errorf("what was typed led to %s", got)
	}
	r.get("live?q=key%3Aacme").is(400).has("A change does not say its job’s key: here the conditions are kind, queue, status and tenant.")
	for _, bad := range []string{"live?key=acme", "live?since=1h", "live?status=x"} {
		r.get(bad).is(400).has("cannot be read")
	}
	r.as("a").get("live?tenant=" + tenantB.String()).is(403)
	r.as("+jobs.read").get("live").is(403).has("admin.stream")
}
