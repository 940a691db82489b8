// Package freeport finds ports for servers that are started, killed and started again at the same address.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// The ports lie below those that the kernel assigns to outgoing connections, and to listeners that ask for any port:
// one of these could take a server's port while the server is down.
const (
	first = 12_000
	last  = 32_000
)

// Pick returns a port of the loopback interface at which nothing listens now.
func Pick() (int, error) {
	var err error
	for range 100 {
		port := first + rand.IntN(last-first)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.Join(errors.New("no free port found"), err)
}
