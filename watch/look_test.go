package watch

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// What nobody could remember any more is still shared while it goes on: many keys do not begin one look each time.
func TestALookThatGoesOnIsNotForgotten(t *testing.T) {
	t.Parallel()
	var s shared[int, int]
	var begun atomic.Int32
	release := make(chan struct{})
	look := func(of int) {
		ctx, leave := context.WithCancel(t.Context())
		leave() // the caller has gone
		_, _ = s.look(ctx, of, time.Minute, 1, func(context.Context) (int, error) {
			begun.Add(1)
			<-release
			return 0, nil
		})
	}
	for range 10 {
		look(1)
		look(2)
	}
	close(release)
	for of := range 2 {
		s.mu.Lock()
		l := s.latest[of+1]
		s.mu.Unlock()
		<-l.done
	}
	if n := begun.Load(); n != 2 {
		t.Errorf("%d looks were begun, want one for each key", n)
	}
}
