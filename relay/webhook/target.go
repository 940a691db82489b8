package webhook

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/relay"
)

// target returns the URL of a destination: below the sink's URL, or a whole URL with an allowed host. The values that
// fill in a template, such as a key, come from producers, and so no destination leads to another host or up the path.
func (c SinkConfig) target(base *url.URL, destination string) (*url.URL, error) {
	if strings.Contains(destination, "#") { // the rest would not be sent
		return nil, errors.New("the destination has a # in it: fill it in by {…|path}")
	}
	if strings.Contains(destination, "://") {
		u, err := Parse(destination)
		switch {
		case err != nil:
			return nil, err
		case u.User != nil:
			return nil, errors.New("the destination has credentials in it")
		case u.Scheme != base.Scheme || u.Host != base.Host && !slices.Contains(c.Hosts, u.Host):
			return nil, fmt.Errorf("the destination is at %s, which is neither the sink's URL nor one of its hosts",
				place(u))
		}
		return u, checkPath(u)
	}
	ref, err := url.Parse("/" + strings.TrimLeft(destination, "/"))
	if err != nil {
		return nil, errors.New("the destination is no path: it is malformed (it may hold a secret and is not shown)")
	}
	if err := checkPath(ref); err != nil {
		return nil, err
	}
	u := *base
	if ref.Path != "/" {
		u.Path = strings.TrimSuffix(base.Path, "/") + ref.Path
		u.RawPath = strings.TrimSuffix(base.EscapedPath(), "/") + ref.EscapedPath()
	}
	u.RawQuery = strings.Trim(base.RawQuery+"&"+ref.RawQuery, "&")
	return &u, nil
}

// CheckRoute refuses a destination in which a key or a header could begin a query, and so add parameters for the
// receiver.
func (s *Sink) CheckRoute(r relay.Route) error {
	if free := r.Unfiltered(); len(free) > 0 {
		return invalid.Field("Destination",
			"%q: what an event has as %s may have a ? in it, and add parameters: fill it in by {…|path}", r.Destination,
			free[0])
	}
	return nil
}

// checkPath refuses paths that servers interpret in different ways.
func checkPath(u *url.URL) error {
	for segment := range strings.SplitSeq(u.Path, "/") {
		name, _, _ := strings.Cut(segment, ";") // some servers cut off the rest, as parameters, before resolving ".."
		if name == "." || name == ".." {
			return errors.New("the destination's path has a . or .. in it: fill it in by {…|path}")
		}
	}
	if strings.ContainsFunc(u.Path, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
		return errors.New("the destination has a \\ or a control character in it: fill it in by {…|path}")
	}
	return nil
}

// place returns the part of a URL that may be shown.
func place(u *url.URL) string { return u.Scheme + "://" + u.Host }
