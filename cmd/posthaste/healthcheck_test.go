package main

import (
	"testing"
)

func TestHealthcheckReachesAProcessThatListensOnEveryAddress(t *testing.T) {
	for addr, want := range map[string]string{
		":9090": "127.0.0.1:9090", "0.0.0.0:9090": "127.0.0.1:9090", "[::]:9090": "[::1]:9090", "10.0.0.1:1": "10.0.0.1:1", "host:2": "host:2",
	} {
		if got := reachable(addr); got != want {
			t.Errorf("reachable(%q) is %q, want %q", addr, got, want)
		}
	}
}
