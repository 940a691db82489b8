package operator_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func FuzzParseStatus(f *testing.F) {
	for _, s := range engine.Statuses[outbox.Status]() {
		f.Add(string(s))
		f.Add(strings.ToUpper(string(s)))
		f.Add(" " + string(s))
	}
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := operator.ParseStatus(text)
		if known := slices.Contains(engine.Statuses[outbox.Status](), outbox.Status(text)); (err == nil) != known {
			t.Fatalf("%q: %v, but known is %t", text, err, known)
		}
		if err == nil && string(s) != text || err != nil && s != "" {
			t.Errorf("%q is read as %q, %v", text, s, err)
		}
	})
}
