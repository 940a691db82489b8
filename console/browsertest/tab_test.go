package browsertest

import (
	"context"
	_ "embed"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var (
	//go:embed checks.js
	checks string
	//go:embed axe/axe.min.js
	axe string
)

// patience is how long a page may take on a machine with a lot to do.
const patience = time.Minute

// tab is a page in the browser, which has cookies of its own.
type tab struct {
	*testing.T
	ctx     context.Context
	origin  string        // beyond it nothing may be asked for
	token   string        // with which people sign in
	willing time.Duration // to wait for what has to come

	mu     sync.Mutex
	faults []string
	bytes  float64 // that came over the network
}

// watched makes a page remember what its policy has refused.
const watched = `window.__refused = [];
document.addEventListener("securitypolicyviolation", (e) => __refused.push("the policy refused " + e.violatedDirective + " of " + (e.blockedURI || "?") + " " + e.sample), true);`

// open opens an empty tab for the console at the base.
func (c *console) open(base string) *tab {
	c.Helper()
	u, err := url.Parse(base)
	if err != nil {
		c.Fatal(err)
	}
	ctx, cancel := chromedp.NewContext(c.browser, chromedp.WithNewBrowserContext())
	c.Cleanup(cancel)
	tab := &tab{T: c.T, ctx: ctx, origin: u.Scheme + "://" + u.Host, token: c.token, willing: c.willing}
	if err := chromedp.Listen(ctx, tab.note); err != nil {
		c.Fatal(err)
	}
	call(tab, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: watched})
	return tab
}

// signedIn opens a tab in which ada has signed in by the form.
func (c *console) signedIn(base string) *tab {
	c.Helper()
	t := c.open(base)
	t.visit(base + "login")
	t.signIn(c.token)
	return t
}

// signIn fills in the form and waits for what comes next.
func (t *tab) signIn(token string) {
	t.Helper()
	t.do(chromedp.SendKeys(chromedp.CSS("#token"), token))
	t.leave(chromedp.Click(chromedp.CSS("main form button")))
}

// note keeps what a page must not do. It is called by the browser's reader.
func (t *tab) note(event any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fault := ""
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" || e.Type == "assert" {
			fault = fmt.Sprintf("console.%s was called", e.Type)
			for _, a := range e.Args {
				fault += fmt.Sprintf(" %s%s", a.Value, a.Description)
			}
		}
	case *runtime.EventExceptionThrown:
		fault = "a script failed: " + e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			fault += " " + e.ExceptionDetails.Exception.Description
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == "error" || e.Entry.Level == "warning" {
			fault = fmt.Sprintf("the browser's console has %s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		if u := e.Request.URL; !strings.HasPrefix(u, t.origin+"/") && !strings.HasPrefix(u, "data:") {
			fault = "asked for " + u
		}
	case *network.EventLoadingFinished:
		t.bytes += e.EncodedDataLength
	}
	if fault != "" {
		t.faults = append(t.faults, fault)
	}
}

// take returns what was noted since it was called last.
func (t *tab) take() (faults []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	faults, t.faults = t.faults, nil
	return faults
}

// forgive forgets of what was noted that which has a text.
func (t *tab) forgive(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = slices.DeleteFunc(t.faults, func(fault string) bool { return strings.Contains(fault, text) })
}

func (t *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

// visit opens a page and returns its status.
func (t *tab) visit(address string) (status int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	res, err := chromedp.Run(ctx, chromedp.NavigateResponse(address))
	if err != nil {
		t.Fatalf("open %s: %v", address, err)
	}
	t.do(chromedp.Evaluate[chromedp.Void](checks))
	if res == nil {
		return 0
	}
	return res.Status
}

// leave does what leads to another page, waits for that, and returns its status.
func (t *tab) leave(step chromedp.Action[chromedp.Void]) (status int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	res, err := chromedp.RunResponse(ctx, step)
	if err != nil {
		t.Fatal(err)
	}
	t.do(chromedp.Evaluate[chromedp.Void](checks))
	if res == nil {
		return 0
	}
	return res.Status
}

// call gives a command of the protocol to the page.
func call[P, R any](t *tab, command cdp.Command[P, R], params P) R {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	result, err := chromedp.Call(ctx, command, params)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// ask evaluates an expression in the page.
func ask[T any](t *tab, expression string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	answer, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%.60s: %v", expression, err)
	}
	return answer
}

// look sets the scheme and the width that the page is shown in.
func (t *tab) look(scheme string, width, height int64) {
	t.Helper()
	call(t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme},
			{Name: "prefers-reduced-motion", Value: "reduce"}, // colours change at once
		},
	})
	call(t, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 600,
	})
}
