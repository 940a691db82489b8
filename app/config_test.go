package app

import (
	"strings"
	"testing"
)

func TestConfigSaysWhatIsWrongWithAWorkersName(t *testing.T) {
	t.Parallel()
	for worker, right := range map[string]bool{"": true, "web-1": true, "Zürich/7": true, strings.Repeat("w", 128): true, "a b": false, "a\n": false, "\xff": false, strings.Repeat("w", 129): false} {
		err := Config{DatabaseURL: "postgres://h/d", Worker: worker}.Validate()
		if (err == nil) != right || !right && !strings.HasPrefix(err.Error(), "Config.Worker is ") {
			t.Errorf("%q: %v, want it accepted: %t", worker, err, right)
		}
	}
}
