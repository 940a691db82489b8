package relay

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// What a lease that ends far in the future says depends on a bound.
func TestALeaseHasABound(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]bool{0: true, time.Second: true, 5 * time.Minute: true, 6 * time.Minute: false, time.Millisecond: false} {
		if err := (Config{LeaseTTL: ttl}).withDefaults().validate(); strings.Contains(fmt.Sprint(err), "LeaseTTL") == want {
			t.Errorf("a lease of %v: %v", ttl, err)
		}
	}
}

// The owner of a sink learns within two seconds that an operator has paused it, however long the lease is.
func TestALeaseIsRenewedOftenEnoughForAPause(t *testing.T) {
	t.Parallel()
	for ttl, want := range map[time.Duration]time.Duration{
		0: 5 * time.Second / 3, 3 * time.Second: time.Second, time.Minute: 5 * time.Second / 3, 5 * time.Minute: 5 * time.Second / 3,
	} {
		if got := (Config{LeaseTTL: ttl}).withDefaults().renewInterval; got != want {
			t.Errorf("a lease of %v is renewed after %v, want %v", ttl, got, want)
		}
	}
}
