package freeport

import (
	"net"
	"strconv"
	"testing"
)

func TestAPortIsFreeAndTheKernelGivesItToNobody(t *testing.T) {
	t.Parallel()
	port, err := Pick()
	if err != nil {
		t.Fatal(err)
	}
	if port < first || port >= last {
		t.Errorf("the port is %d, want one of %d to %d", port, first, last-1)
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
