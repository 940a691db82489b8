package browsertest

import (
	"testing"

	"github.com/chromedp/cdproto/emulation"
)

// In forced colours each control has an edge and each state a mark of its own; with reduced motion nothing moves.
func TestForcedColoursAndReducedMotion(t *testing.T) {
	t.Parallel()
	c := newConsole(t)
	c.usualJobs()
	tab := c.signedIn(c.root)
	media := func(forced, motion string) {
		call(tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "forced-colors", Value: forced}, {Name: "prefers-reduced-motion", Value: motion},
		}})
	}
	tab.look("light", 1280, 800)
	media("active", "reduce")
	for _, page := range []string{"problems", "now", "jobs?status=dead", "keys", "queue?queue=archive", "queue-pause?queue=mail", "operations", "me"} {
		if status := tab.visit(c.root + page); status != 200 {
			t.Fatalf("/%s: got %d", page, status)
		}
		if !ask[bool](tab, `matchMedia("(forced-colors: active)").matches`) {
			t.Fatal("the browser forces no colours")
		}
		for _, fault := range append(ask[[]string](tab, `checks.forced()`), ask[[]string](tab, `checks.moving()`)...) {
			t.Errorf("/%s: %s", page, fault)
		}
	}
	media("active", "no-preference")
	if len(ask[[]string](tab, `checks.moving()`)) == 0 {
		t.Error("nothing moves where motion is welcome: the check sees none")
	}
}
