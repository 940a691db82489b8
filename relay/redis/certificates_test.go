package redis

import (
	"testing"

	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/relaytest"
)

func TestCertificatesThatAreNotToBeTrusted(t *testing.T) {
	relaytest.Certificates(t, password, func(t *testing.T, address, caFile string) relay.Sink {
		s, err := Open(Config{URL: "rediss://" + address, User: "relay", Password: password, CAFile: caFile})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}
