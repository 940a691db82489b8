package console_test

import (
	"bytes"
	"encoding/json"
	"html"
	"runtime"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Laid out, each of the values of a deeply nested JSON text is on a line with some ten thousand spaces: a payload of
// 300 kB, from any producer, would take gigabytes of the console's memory, and its masks hours.
func TestADeepPayloadIsNotLaidOut(t *testing.T) {
	t.Parallel()
	const deep = 9000
	for name, inner := range map[string]string{
		"arrays":  strings.Repeat(`[`, deep) + strings.Repeat(`1,`, 30_000) + `1` + strings.Repeat(`]`, deep),
		"objects": strings.Repeat(`{"a":`, deep) + `[` + strings.Repeat(`{"password":"hunter2"},`, 10_000) + `1]` + strings.Repeat(`}`, deep),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		shown := console.Content([]byte(inner), false)
		edited, err := console.Editable([]byte(inner))
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 256<<20 {
			t.Errorf("%s: %d MiB were used for a payload of %d kB", name, used>>20, len(inner)/1000)
		}
		if len(shown) > 128<<10 || strings.Contains(shown, "hunter2") {
			t.Errorf("%s: %d bytes are shown, with the secret: %t", name, len(shown), strings.Contains(shown, "hunter2"))
		}
		if err == nil {
			t.Errorf("%s: a form has %d bytes of it", name, len(edited))
		}
	}
}

// Each value of a payload that is marked takes some 60 bytes of its page: one of 1 MiB that is small numbers would make
// 20 MiB of it. The text behind the first of them is whole, and hides what is to be hidden, but it is not marked.
func TestAPayloadOfManyValuesIsNoLargePage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	payload := `[` + strings.Repeat(`1,`, 1<<19-64) + `{"password":"hunter2","html":"<b>&amp;"}]`
	id := r.enqueue("greet", payload, outbox.Options{}).String()
	var laid bytes.Buffer
	if err := json.Indent(&laid, []byte(payload), "", "  "); err != nil {
		t.Fatal(err)
	}
	for reveal, want := range map[string]string{"": strings.Replace(laid.String(), `"hunter2"`, "•••", 1), "1": laid.String()} {
		page := r.get("job?whole=1&reveal=" + reveal + "&id=" + id).is(200).Body.String()
		if len(page) > 5<<20 || strings.Count(page, `<span class="t-`) > 20_000 {
			t.Errorf("the page has %d KiB and %d marks", len(page)>>10, strings.Count(page, `<span class="t-`))
		}
		_, shown, _ := strings.Cut(page, `<pre class="content" tabindex="0" data-copy>`)
		shown, _, _ = strings.Cut(shown, "</pre>")
		if got := html.UnescapeString(tags.ReplaceAllString(shown, "")); got != want {
			t.Errorf("reveal=%s: the text has %d bytes, want the payload laid out, which has %d", reveal, len(got), len(want))
		}
	}
}

// A payload that is too large to be laid out keeps its secrets all the same.
func TestALargePayloadIsMasked(t *testing.T) {
	t.Parallel()
	large := `{"password":"hunter2","filler":"` + strings.Repeat("x", 1<<20) + `"}`
	if shown := console.Content([]byte(large), false); strings.Contains(shown, "hunter2") || !strings.Contains(shown, "•••") {
		t.Errorf("a payload of %d bytes shows its secret", len(large))
	}
	if shown := console.Content([]byte(large), true); !strings.Contains(shown, "hunter2") {
		t.Error("a secret is not shown to somebody who asks for it")
	}
}
