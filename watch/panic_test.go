package watch

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/changefeed"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

type panicking struct{}

func (panicking) Begin(context.Context) (pgx.Tx, error) { panic("odd") }

// What looks panics in a goroutine of its own, where nobody else would recover.
func TestALookThatPanicsFails(t *testing.T) {
	t.Parallel()
	for name, look := range map[string]func(*Changes) error{
		"one that is shared": func(*Changes) error {
			_, err := begin(time.Minute, func(context.Context) (int, error) { panic("odd") }).wait(t.Context())
			return err
		},
		"a count": func(*Changes) error {
			c := &Counts{count: func(outbox.ID) (operator.OpenJobs, map[outbox.ID]operator.OpenJobs, error) { panic("odd") }}
			_, err := c.Look(t.Context(), outbox.ID{})
			return err
		},
		"for changes": func(h *Changes) error {
			_, err := h.Open(t.Context(), outbox.ID{}, Filter{}, Position{})
			return err
		},
		"for those of a tenant": func(h *Changes) error {
			_, err := h.unlessSame(t.Context(), &feed{}, changefeed.Snapshot{})
			return err
		},
		"for what was missed": func(h *Changes) error {
			_, err := h.readMissed(&feed{}, nil)
			return err
		},
	} {
		if err := look(NewChanges(panicking{}, ChangesConfig{})); err == nil || !strings.Contains(err.Error(), "panic: odd") {
			t.Errorf("%s: %v, want the panic", name, err)
		}
	}
}
