package listener

import (
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestSocketNoticesADeadPeer(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	conn, err := net.Dial("tcp", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	watchPeer(conn)
	defer conn.Close()

	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	options := map[string]int{
		"keepalive idle s":     unix.TCP_KEEPIDLE,
		"keepalive interval s": unix.TCP_KEEPINTVL,
		"keepalive count":      unix.TCP_KEEPCNT,
		"user timeout ms":      unix.TCP_USER_TIMEOUT,
	}
	got := map[string]int{}
	raw.Control(func(fd uintptr) {
		for name, option := range options {
			got[name], _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option)
		}
	})
	want := map[string]int{"keepalive idle s": 5, "keepalive interval s": 2, "keepalive count": 3, "user timeout ms": 10_000}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("socket options (-want +got):\n%s", diff)
	}
}
