package operator_test

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/relay"
)

// A sink that publishes nothing although its broker accepts messages is stuck, by the codes of package relay: somebody
// must act, or a destination recover. One that goes on with other destinations, or when its broker is back, is away.
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
