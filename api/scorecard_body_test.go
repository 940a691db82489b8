package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox"
)

// G10, numbers: one that the schema's words let pass and the field cannot hold is
// refused by its place, alone and in a line of a batch, in our clients' words.
func TestG10NoNumberLosesItsPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ours := r.give("operator-a", tenantA)
	tried := 0
	try := func(route one, object map[string]any, literal, place string) {
		t.Helper()
		tried++
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		body := strings.Replace(string(text), `"THE NUMBER"`, literal, 1)
		answer := r.as("root").ask(route, ours.target(route), body)
		var p api.Problem
		if err := json.Unmarshal(answer.Body.Bytes(), &p); err != nil || answer.Code != 422 || len(p.Errors) != 1 || p.Errors[0].Pointer != place || strings.Contains(p.Errors[0].Detail, "Go ") {
			t.Errorf("%s %s: %d %s, want a 422 at %s", route, body, answer.Code, answer.Body, place)
		}
	}
	literals := func(m *member) []string {
		switch {
		case m.is("integer"):
			return []string{"9223372036854775808", "-9223372036854775809", "1e2", "1.0", "1e999"}
		case m.is("number"):
			return []string{"1e999", "-1e999"}
		}
		return nil
	}
	for _, route := range table(t) {
		if route.body == nil {
			continue
		}
		for name, property := range route.body.Properties {
			object := func(value any) map[string]any {
				object := ours.object(route.body, append([]string{}, route.body.Required...))
				object[name] = value
				return object
			}
			for _, literal := range literals(property) {
				try(route, object("THE NUMBER"), literal, "#/"+name)
			}
			for inner, of := range property.Properties {
				for _, literal := range literals(of) {
					try(route, object(map[string]any{inner: "THE NUMBER"}), literal, "#/"+name+"/"+inner)
				}
			}
			if property.is("array") && property.Items != nil {
				for _, literal := range literals(property.Items) {
					try(route, object([]any{0, "THE NUMBER"}), literal, "#/"+name+"/1")
				}
			}
			if len(literals(property)) == 0 && len(property.Properties) == 0 && name != "payload" && !property.is("array") {
				try(route, object("THE NUMBER"), "1e999", "#/"+name)
			}
		}
	}
	if tried < 50 {
		t.Errorf("%d numbers were tried: this looks at the wrong place", tried)
	}
}

// G10, bodies: a client that sends a body, dryRun perhaps, to a route without one must
// not find the act done.
func TestG10NoRouteWithoutABodyTakesOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ours := r.give("operator-a", tenantA)
	before := r.state(outbox.ID{})
	var silent []one
	for _, route := range table(t) {
		if !route.changes() || route.contentType != "" {
			continue
		}
		silent = append(silent, route)
		for _, body := range []string{`{"dryRun":true}`, `[]`, `null`, `x`, "\x00", `{}{}`, strings.Repeat(" ", 1<<20)} {
			for status := range ours.jobs {
				if p := r.as("root").do(route.method, ours.of(status).target(route), body).problem(400, "malformed_request"); len(p.Errors) != 1 || p.Errors[0].Pointer != "#" {
					t.Errorf("%s %.20q: %+v, want a fault at #", route, body, p.Errors)
				}
				if !strings.Contains(route.path, "{id}") {
					break
				}
			}
		}
	}
	if diff := cmp.Diff(before, r.state(outbox.ID{})); diff != "" {
		t.Errorf("something changed (-before +after):\n%s", diff)
	}
	if len(silent) < 10 {
		t.Errorf("%d routes have no body: this looks at the wrong place", len(silent))
	}
	for _, route := range silent {
		for _, body := range []string{"", " \r\n\t", "{}", " { }\n"} {
			if answer := r.as("root").do(route.method, ours.target(route), body); answer.Code == 400 {
				t.Errorf("%s %q: %s, want it taken for no body", route, body, answer.Body)
			}
		}
	}
}
