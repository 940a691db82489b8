package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

// reserved lists networks that contain no receivers of the public internet, but services that trust any client that
// reaches them: loopback, private and link-local addresses, metadata services of clouds, and addresses that embed an
// IPv4 address. Of IPv6 only 2000::/3 is assigned; isPublic refuses the rest.
var reserved = parsePrefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4",
	"168.63.129.16/32", // Azure's, in a public network
	"2001::/23",        // Teredo and others
	"2001:db8::/32", "2002::/16", "3fff::/20",
)

var assigned = netip.MustParsePrefix("2000::/3")

func parsePrefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// isPublic reports whether an address belongs to the public internet.
func isPublic(addr netip.Addr) bool {
	within := func(p netip.Prefix) bool { return p.Contains(addr) }
	return (addr.Is4() || assigned.Contains(addr)) && !slices.ContainsFunc(reserved, within)
}

// A dialer opens connections to public addresses, and to those of the allowed networks.
type dialer struct {
	allow        []netip.Prefix
	certificates credentials.Certificates
}

// notSent is the reason for which there was no connection to send a request on: the receiver has not got it.
type notSent struct{ err error }

func (e *notSent) Error() string { return e.err.Error() }
func (e *notSent) Unwrap() error { return e.err }

// addressError reports that a host has an address that may not be connected to.
type addressError struct{ addr netip.Addr }

func (e *addressError) Error() string {
	return fmt.Sprintf("%s is no address of the public internet, and in none of the networks that are allowed", e.addr)
}

const dialTimeout = 5 * time.Second // includes the TLS handshake

// dial connects as a Transport's DialContext. It checks the address after the name has been resolved, for each
// connection: one that was public may not be any more.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := (&net.Dialer{Control: d.control}).DialContext(ctx, network, address)
	if err != nil {
		return nil, &notSent{err}
	}
	return conn, nil
}

// control refuses an address that is neither public nor allowed. It is called before a socket is connected.
func (d *dialer) control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	addr := to.Addr().Unmap().WithZone("")
	within := func(p netip.Prefix) bool { return p.Contains(addr) }
	if !isPublic(addr) && !slices.ContainsFunc(d.allow, within) {
		return &addressError{addr}
	}
	return nil
}

// dialTLS connects as a Transport's DialTLSContext. It reads the certificates again.
func (d *dialer) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	config, err := d.certificates.TLS()
	if err != nil {
		return nil, &notSent{err}
	}
	conn, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	host, _, _ := net.SplitHostPort(address)
	config.ServerName, config.NextProtos = strings.TrimSuffix(host, "."), []string{"h2", "http/1.1"}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, &notSent{fmt.Errorf("TLS with %s: %w", host, err)}
	}
	return secure, nil
}

// guarded returns a transport that uses this dialer. It uses no proxy, because a proxy would connect in its place.
func (d *dialer) guarded() *http.Transport {
	t := newTransport()
	t.Proxy = nil
	t.DialContext, t.DialTLSContext = d.dial, d.dialTLS
	t.ForceAttemptHTTP2 = true // custom dialers would switch it off
	return t
}
