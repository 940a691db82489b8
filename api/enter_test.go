package api

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/callers"
)

// What passes the check of parameters can be stored and logged, and a refusal names
// the one that is wrong, in words that can be printed.
func FuzzParameters(f *testing.F) {
	for _, seed := range [][5]string{
		{"/jobs", "limit=5&cursor=x", "key-1", "ada", "7f3"},
		{"/keys/a%2Fb", "kind=%00", "", "ada", ""},
		{"/jobs/\xff", "kind=%ff&kind=1", "\x00", "\xff", "\x00"},
		{"/", "a=1&a=2", " ", strings.Repeat("u", 257), strings.Repeat("ü", 128)},
		{"/", "a;b", "k", "", ""},
		{"/", "%zz", "k", "", ""},
		{"/", "=&%00=1", "k", "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4])
	}
	f.Fuzz(func(t *testing.T, path, query, key, user, correlation string) {
		r := &http.Request{
			URL:    &url.URL{Path: path, RawQuery: query},
			Header: http.Header{"Idempotency-Key": {key}, "X-User-Id": {user}, "X-Correlation-Id": {correlation}},
		}
		if p := checkParameters(r); p != nil {
			_, nameless := r.URL.Query()[""] // ?=a: there is no name to tell
			for _, fault := range p.Errors {
				if fault.Detail == "" || fault.Header+fault.Parameter == "" && !nameless || !isText(fault.Header+fault.Parameter+fault.Detail) {
					t.Errorf("refused with the fault %+v", fault)
				}
			}
			if p.Status != http.StatusBadRequest || len(p.Errors) == 0 && p.Detail == "" {
				t.Errorf("refused with %+v, which does not say why", p)
			}
			return
		}
		caller := callerOf(access.Principal{Name: "shop"}, r)
		for _, s := range append([]string{path, caller.User, caller.CorrelationID}, r.URL.Query()["kind"]...) {
			if !isText(s) {
				t.Errorf("%q passes", s)
			}
		}
		if len(caller.User) > maxCallerBytes || len(caller.CorrelationID) > maxCallerBytes || key == "" || len(r.URL.Query()["a"]) > 1 {
			t.Errorf("%+v with the key %q and the query %q passes", caller, key, query)
		}
	})
}

func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// A request's id that is taken from a header can stand in a log and in an answer.
func FuzzRequestID(f *testing.F) {
	for _, seed := range []string{"", "7f3a-1", "a b", "a\nb", "ü", strings.Repeat("x", 128), strings.Repeat("x", 129), "../.._:=+"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		if !callers.IsRequestID(id) {
			return
		}
		if len(id) == 0 || len(id) > 128 || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"'<>&;,\\`{}", r) }) {
			t.Errorf("%q is taken", id)
		}
	})
}
