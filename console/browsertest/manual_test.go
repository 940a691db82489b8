package browsertest

import (
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/posthaste-dev/posthaste/docs/site"
)

// The manual is for everybody: axe finds nothing on a page of each sort, light and dark, wide and on a phone. Nothing
// has to be scrolled to the side, and a page asks for nothing elsewhere. The pages are the first one, and those with
// steps and code, prose, pictures, a long table, a drawing, and a table of many columns.
func TestTheManualIsAccessible(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(site.Handler())
	t.Cleanup(server.Close)
	for _, page := range []string{
		"", "start/quickstart", "guides/keys", "operate/console", "reference/settings", "reference/states",
		"why/comparison",
	} {
		t.Run("page "+page, func(t *testing.T) {
			t.Parallel()
			tab := (&console{T: t, browser: browser}).open(server.URL)
			for _, l := range looks {
				tab.look(l.scheme, l.width, l.height)
				tab.visit(server.URL + site.Base + page) // chooses its colours as it begins
				tab.do(chromedp.Evaluate[chromedp.Void](axe))
				found := ask[[]string](tab, fmt.Sprintf(
					`checks.accessible(%q).then((faults) => [...checks.wide(), ...faults])`, l.of))
				for _, fault := range found {
					t.Errorf("%s, %d px: %s", l.scheme, l.width, fault)
				}
			}
			for _, fault := range quiet(tab) {
				t.Error(fault)
			}
		})
	}
}
