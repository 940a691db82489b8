package browsertest

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/html"
)

const (
	likes = 2   // how many pages that differ in the values of their parameters alone are looked at
	limit = 500 // pages of one crawl; with more of them its test fails, because nobody has looked at the others
)

// found is what a crawl came upon.
type found struct {
	pages  []string // relative to the base, in the order in which they were found
	shapes map[string]int
	acts   map[string]bool // to what forms are sent
	marked []string        // what is there and not allowed, with what it says
	faults []string
}

// likeness returns the shape of a page, by which a crawl follows a few links of each. A list of jobs that several
// conditions narrow down, and what leads on from it, counts by how many they are: which of them makes no other page.
func likeness(page string) string {
	shape := shapeOf(page)
	if n := strings.Count(shape, "&"); n > 0 && strings.HasPrefix(shape, "jobs") {
		path, _, _ := strings.Cut(shape, "?")
		return fmt.Sprintf("%s?%d", path, n)
	}
	return shape
}

// shapeOf returns a page's path and the names of its parameters.
func shapeOf(page string) string {
	path, query, _ := strings.Cut(page, "?")
	values, _ := url.ParseQuery(query)
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(names) == 0 {
		return path
	}
	return path + "?" + strings.Join(names, "&")
}

// crawl follows every link, every form that only reads and every redirect from the first page on. Whatever leads out of
// the base, or to an error, is a fault; so is an asset that is not there. More first pages are those to which no link
// leads at the moment.
func (c *console) crawl(client *http.Client, base string, more ...string) (f found) {
	c.Helper()
	f.shapes, f.acts = map[string]int{}, map[string]bool{}
	assets := map[string]bool{}
	waiting := append([]string{""}, more...)
	for at := 0; at < len(waiting); at++ {
		page := waiting[at]
		if at == limit {
			c.Errorf("there are more than %d pages: %d have not been looked at", limit, len(waiting)-at)
			break
		}
		res, content, err := get(client, base+page)
		if !f.takes(page, base, res, content, err) {
			continue
		}
		f.pages = append(f.pages, page)
		doc, err := html.Parse(strings.NewReader(content))
		if err != nil {
			f.faults = append(f.faults, fmt.Sprintf("%s: %v", page, err))
			continue
		}
		for n := range doc.Descendants() {
			if n.Type == html.ElementNode && (attribute(n, "aria-disabled") == "true" || has(n, "disabled")) {
				f.marked = append(f.marked, attribute(n, "title")+" "+attribute(n, "aria-label"))
			}
		}
		for reference := range references(doc) {
			to, err := res.Request.URL.Parse(reference.url)
			if err == nil && reference.kind == "page" && strings.HasSuffix(to.Path, "/manual/") {
				continue // beside the console, with tests of its own
			}
			if err != nil || !strings.HasPrefix(to.String(), base) {
				f.faults = append(f.faults, fmt.Sprintf("%s refers to %s, which is not below %s", page, reference.url, base))
				continue
			}
			to.Fragment = ""
			next := strings.TrimPrefix(to.String(), base)
			switch {
			case reference.kind == "act":
				f.acts[next] = true
			case reference.kind == "asset" && !assets[next]:
				assets[next] = true
				if res, _, err := get(client, to.String()); err != nil || res.StatusCode != http.StatusOK {
					f.faults = append(f.faults, fmt.Sprintf("%s: the file %s: %v %v", page, next, res.Status, err))
				}
			case reference.kind == "page" && f.shapes[likeness(next)] < likes && !slices.Contains(waiting, next):
				f.shapes[likeness(next)]++
				waiting = append(waiting, next)
			}
		}
	}
	return f
}

// takes reports whether an answer is a page of the console. What should be one, and is not, is a fault.
func (f *found) takes(page, base string, res *http.Response, content string, err error) bool {
	switch {
	case err != nil:
		f.faults = append(f.faults, err.Error())
	case res.StatusCode == http.StatusBadRequest && strings.Contains(content, "No job is selected"):
		// The form of a list, with no box checked.
	case res.StatusCode != http.StatusOK:
		f.faults = append(f.faults, fmt.Sprintf("%s is linked and answers with %s", page, res.Status))
	case !strings.HasPrefix(res.Request.URL.String(), base):
		f.faults = append(f.faults, fmt.Sprintf("%s leads out of the console, to %s", page, res.Request.URL))
	case !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html"):
		// A download.
	case strings.HasPrefix(page, "manual/"):
		// It is there; it is no page of the console.
	default:
		return true
	}
	return false
}

// awaitCounts waits until the console has counted the queues for the first time, and so has links to them.
func (c *console) awaitCounts(client *http.Client, base string) {
	c.Helper()
	c.awaitLink(client, base+"queues", "queue?queue=")
}

// awaitLink waits until a page has a link.
func (c *console) awaitLink(client *http.Client, page, link string) {
	c.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		_, content, err := get(client, page)
		if err != nil {
			c.Fatal(err)
		}
		if strings.Contains(content, link) {
			return
		}
		if time.Now().After(end) {
			c.Fatalf("%s has no link to %s: %s", page, link, content)
		}
	}
}

func get(client *http.Client, address string) (*http.Response, string, error) {
	res, err := client.Get(address)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = res.Body.Close() }()
	content, err := io.ReadAll(res.Body)
	return res, string(content), err
}

// reference is what a page refers to: a page to read, an asset, or where a form is sent.
type reference struct{ kind, url string }

func references(doc *html.Node) func(func(reference) bool) {
	return func(yield func(reference) bool) {
		for n := range doc.Descendants() {
			var r reference
			switch {
			case n.Type != html.ElementNode:
				continue
			case n.Data == "a":
				r = reference{"page", attribute(n, "href")}
			case n.Data == "link", n.Data == "script", n.Data == "img":
				r = reference{"asset", attribute(n, "href") + attribute(n, "src")}
			case n.Data == "form" && attribute(n, "method") == "post":
				r = reference{"act", attribute(n, "action")}
			case n.Data == "form":
				r = reference{"page", attribute(n, "action") + "?" + filledIn(n)}
			}
			if r.url != "" && !strings.HasPrefix(r.url, "#") && !yield(r) {
				return
			}
		}
	}
}

// filledIn returns the query of a form as it stands on the page.
func filledIn(form *html.Node) string {
	query := url.Values{}
	for n := range form.Descendants() {
		name := attribute(n, "name")
		switch {
		case name == "" || n.Data == "button":
		case n.Data == "select":
			for option := range n.Descendants() {
				if option.Data == "option" && (!query.Has(name) || has(option, "selected")) {
					query.Set(name, attribute(option, "value"))
				}
			}
		case n.Data == "input":
			if kind := attribute(n, "type"); kind != "checkbox" && kind != "radio" || has(n, "checked") {
				query.Add(name, attribute(n, "value"))
			}
		}
	}
	return query.Encode()
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func has(n *html.Node, name string) bool {
	return slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Key == name })
}
