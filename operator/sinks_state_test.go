package operator_test

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/relay"
)

// A sink that stands still until somebody acts is stuck, by the codes of package relay; one that goes on with other
// destinations, or by itself, is away.
func TestWhichSinksAreStuck(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		"": "publishing", relay.CodeStuck: "stuck", relay.CodeWaiting: "stuck", relay.CodeFull: "away",
		relay.CodeUnavailable: "away",
	} {
		s := operator.Sink{Owner: "o", AwayCode: code}
		if code != "" {
			s.AwaySince = time.Now()
		}
		if got := s.State(); got != want {
			t.Errorf("with the code %q it is %s, want %s", code, got, want)
		}
	}
}
