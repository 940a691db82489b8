package operator_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func FuzzParseStatus(f *testing.F) {
	for _, s := range outbox.Statuses() {
		f.Add(string(s))
		f.Add(strings.ToUpper(string(s)))
		f.Add(" " + string(s))
	}
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := operator.ParseStatus(text)
		if known := slices.Contains(outbox.Statuses(), outbox.Status(text)); (err == nil) != known {
			t.Fatalf("%q: %v, but known is %t", text, err, known)
		}
		if err == nil && string(s) != text || err != nil && s != "" {
			t.Errorf("%q is read as %q, %v", text, s, err)
		}
	})
}
