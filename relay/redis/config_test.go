package redis

import (
	"strings"
	"testing"
)

// CLIENT SETNAME takes no spaces: a sink with such a name would never connect.
func TestAConnectionsNameIsOneThatTheServerTakes(t *testing.T) {
	for name, want := range map[string]bool{"": true, "shop-relay:1": true, "shop relay": false, "shop\n": false, "caf\u00e9": false} {
		s, err := Open(Config{URL: "redis://h:6379", Name: name})
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "Name is ") {
			t.Errorf("%q: %v", name, err)
		}
		if err == nil {
			_ = s.Close()
		}
	}
}
