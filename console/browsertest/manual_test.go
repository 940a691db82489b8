package browsertest

import (
	"net/http/httptest"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/posthaste-dev/posthaste/docs/site"
)

// The manual is for everybody: axe finds nothing on a page of each sort, light and dark, wide and on a phone. Nothing
// has to be scrolled to the side, and a page asks for nothing elsewhere.
func TestTheManualIsAccessible(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(site.Handler())
	t.Cleanup(server.Close)
	for _, page := range []string{"", "guides/keys", "reference/states"} {
		t.Run("page "+page, func(t *testing.T) {
			t.Parallel()
			tab := (&console{T: t, browser: browser}).open(server.URL)
			for _, l := range []struct {
				scheme string
				width  int64
			}{{"light", 1280}, {"dark", 1280}, {"light", 360}} {
				tab.look(l.scheme, l.width, 800)
				tab.visit(server.URL + site.Base + page) // chooses its colours as it begins
				tab.do(chromedp.Evaluate[chromedp.Void](axe))
				for _, fault := range ask[[]string](tab, `checks.accessible().then((faults) => [...checks.wide(), ...faults])`) {
					t.Errorf("%s, %d px: %s", l.scheme, l.width, fault)
				}
			}
			for _, fault := range quiet(tab) {
				t.Error(fault)
			}
		})
	}
}
