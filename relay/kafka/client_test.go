package kafka

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A cluster counts as lost while connections fail and no broker answers. A failure that is over does not count, even if
// no connection was opened since: those to the other brokers were open already.
func TestAClusterIsLostWhileNoBrokerIsReached(t *testing.T) {
	t.Parallel()
	failed := func(w *watch) { w.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, errors.New("refused")) }
	fail := func(w *watch, n int) { // for n half seconds
		for range n {
			failed(w)
			time.Sleep(patience / 6)
		}
	}
	for name, c := range map[string]struct {
		happens func(w *watch)
		want    bool
	}{
		"nothing":                     {func(*watch) {}, false},
		"a failure":                   {failed, false},
		"failures for a while":        {func(w *watch) { fail(w, 7) }, true},
		"failures, then a connection": {func(w *watch) { fail(w, 7); w.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, nil) }, false},
		"failures, then an answer":    {func(w *watch) { fail(w, 7); w.OnBrokerE2E(kgo.BrokerMetadata{}, 0, kgo.BrokerE2E{}) }, false},
		"failures, and logins that are refused": {func(w *watch) {
			fail(w, 7)
			w.OnBrokerE2E(kgo.BrokerMetadata{}, kmsg.SASLAuthenticate.Int16(), kgo.BrokerE2E{})
		}, true},
		"failures, then another error": {func(w *watch) {
			fail(w, 7)
			w.OnBrokerE2E(kgo.BrokerMetadata{}, 0, kgo.BrokerE2E{ReadErr: errors.New("reset")})
		}, true},
		"a failure long ago":           {func(w *watch) { failed(w); time.Sleep(time.Hour) }, false},
		"failures, an answer, failure": {func(w *watch) { fail(w, 7); w.OnBrokerE2E(kgo.BrokerMetadata{}, 0, kgo.BrokerE2E{}); fail(w, 2) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var w watch
				c.happens(&w)
				if err := w.lost(); (err != nil) != c.want {
					t.Errorf("lost() = %v, want an error: %t", err, c.want)
				}
			})
		})
	}
}
