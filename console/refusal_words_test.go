package console

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/operator"
)

// What passes by itself is no mistake of the person who asks.
func TestACountThatMustWaitSaysForWhat(t *testing.T) {
	t.Parallel()
	r := refusalOf(fmt.Errorf("count open jobs: %w", operator.ErrOldWriter))
	if r.status != http.StatusConflict || !strings.Contains(r.next, "Try again when it has ended") {
		t.Errorf("the page is %d, %q", r.status, r.Error())
	}
}
