package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/posthaste-dev/posthaste/outbox"
)

// shapes distinguish statuses without their colours, in a box of 12 by 12.
var shapes = map[outbox.Status]string{
	outbox.Created:   "M4 2.5v7M8 2.5v7",
	outbox.Pending:   "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9M6 3.5V6l1.8 1.2",
	outbox.Blocked:   "M2.5 5.5h7v5h-7zM4 5.5V4a2 2 0 0 1 4 0v1.5",
	outbox.Running:   "M3 1.5v9l7-4.5z",
	outbox.Retrying:  "M10 6a4 4 0 1 1-1.2-2.9M10 1v2.6H7.4",
	outbox.Failed:    "M2.5 2.5l7 7M9.5 2.5l-7 7",
	outbox.Dead:      "M3.8 1h4.4L11 3.8v4.4L8.2 11H3.8L1 8.2V3.8z",
	outbox.Succeeded: "M1.5 6.5l3 3 6-7",
	outbox.Cancelled: "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9M2.9 9.1l6.2-6.2",
	outbox.Expired:   "M3 1.5h6M3 10.5h6M3.5 1.5c0 2.5 5 6.5 5 9M8.5 1.5c0 2.5-5 6.5-5 9",
	outbox.Skipped:   "M1.5 2.5L5 6 1.5 9.5M6.5 2.5L10 6 6.5 9.5",
	outbox.Stale:     "M1 4.5c1.7-2 3.3 2 5 0s3.3 2 5 0M1 8.5c1.7-2 3.3 2 5 0s3.3 2 5 0",
	outbox.Dismissed: "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9M3.8 6h4.4",
}

// solid lists the statuses whose shapes are filled.
var solid = map[outbox.Status]bool{outbox.Running: true, outbox.Dead: true}

func pressed(on bool) string { return strconv.FormatBool(on) }

// words renders a command whose options are not broken at their hyphens.
func words(command string) templ.Component {
	return templ.ComponentFunc(func(_ context.Context, w io.Writer) error {
		var b strings.Builder
		for i, word := range strings.Split(command, " ") {
			if i > 0 {
				b.WriteByte(' ')
			}
			if text := templ.EscapeString(word); strings.HasPrefix(word, "-") && len(word) < 40 {
				b.WriteString("<span>" + text + "</span>")
			} else {
				b.WriteString(text)
			}
		}
		_, err := io.WriteString(w, b.String())
		return err
	})
}

// instants matches the instants of a sentence, as instant and programs write them.
var instants = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)

// prose renders a sentence whose instants are shown as times of day in the viewer's zone.
func prose(v *visit, text string) templ.Component {
	return templ.ComponentFunc(func(_ context.Context, w io.Writer) error {
		var b strings.Builder
		done := 0
		for _, at := range instants.FindAllStringIndex(text, -1) {
			t, err := time.Parse(time.RFC3339Nano, text[at[0]:at[1]])
			if err != nil {
				continue
			}
			b.WriteString(templ.EscapeString(text[done:at[0]]))
			fmt.Fprintf(&b, `<time datetime="%s" title="%s">%s</time>`, instant(t), templ.EscapeString(v.full(t)), v.clock(t))
			done = at[1]
		}
		b.WriteString(templ.EscapeString(text[done:]))
		_, err := io.WriteString(w, b.String())
		return err
	})
}

// rowID returns the id of what a list has of a thing: live.js knows it again by that when it reads the page again.
func rowID(of ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(of, "\x00")))
	return "r" + hex.EncodeToString(sum[:6])
}

// asset returns the URL of one of the console's files.
func (v *visit) asset(name string) string { return v.site.assets.url(name) }

// isAt reports whether this page, or a page that it belongs to, is the row's.
func (v *visit) isAt(r *route) bool {
	return v.route != nil && (v.route.path == r.path || below[v.route.path] == r.path)
}

// below maps pages to the page of the navigation that they belong to.
var below = map[string]string{
	"job": "jobs", "queue": "queues", "kind": "kinds", "key": "keys", "schedule": "schedules",
	"letter": "letters", "sink": "sinks", "operation": "operations", "audit-verify": "audit",
}

// sees describes whose jobs the viewer sees.
func (v *visit) sees() string {
	if v.who.AllTenants {
		return "all tenants"
	}
	return "tenant " + v.who.Tenant.String()
}

// madeIn returns how long this page has taken so far.
func (v *visit) madeIn() time.Duration { return time.Since(v.now) }

// buildVersion returns the version of the program that contains the console.
var buildVersion = func() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}()

// buildOf returns what the program was built from and with; "" if it does not say.
func buildOf() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	text := info.GoVersion
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			text = "commit " + firstOf(s.Value, 12) + ", " + text
		case s.Key == "vcs.modified" && s.Value == "true":
			text += ", with changes"
		}
	}
	return text
}
