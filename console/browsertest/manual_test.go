package browsertest

import (
	"net/http/httptest"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/posthaste-dev/posthaste/docs/site"
)

// The manual is for everybody: axe finds nothing on a page of each sort, light and dark, each of them wide and on a
// phone. Nothing has to be scrolled to the side, and a page asks for nothing elsewhere. The pages are the first one,
// and those with steps and code, prose, pictures, a long table, a drawing, and a table of many columns.
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
			for _, scheme := range []string{"light", "dark"} {
				for _, width := range []int64{1280, 360} {
					tab.look(scheme, width, 800)
					tab.visit(server.URL + site.Base + page) // chooses its colours as it begins
					tab.do(chromedp.Evaluate[chromedp.Void](axe))
					found := ask[[]string](tab, `checks.accessible().then((faults) => [...checks.wide(), ...faults])`)
					for _, fault := range found {
						t.Errorf("%s, %d px: %s", scheme, width, fault)
					}
				}
			}
			for _, fault := range quiet(tab) {
				t.Error(fault)
			}
		})
	}
}
