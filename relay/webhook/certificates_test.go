package webhook

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/relaytest"
)

func TestCertificatesThatAreNotToBeTrusted(t *testing.T) {
	t.Parallel()
	relaytest.Certificates(t, strings.TrimPrefix(secret, secretPrefix), func(t *testing.T, address, caFile string) relay.Sink {
		s, err := Open(SinkConfig{URL: "https://" + address, Signing: Signing{Secrets: []string{secret}}, CAFile: caFile, Allow: append(loopback, netip.MustParsePrefix("::1/128"))})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}
