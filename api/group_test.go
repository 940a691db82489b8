package api

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestQuestionsAreGroupedWhileTheRunnersAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most := 0, 0
		var sizes []int
		g := newGroup(2, 10, func(_ context.Context, asked []int) []answerTo[int] {
			mu.Lock()
			running++
			most = max(most, running)
			sizes = append(sizes, len(asked))
			mu.Unlock()
			time.Sleep(time.Second) // virtual
			mu.Lock()
			running--
			mu.Unlock()
			answers := make([]answerTo[int], len(asked))
			for i, n := range asked {
				answers[i].value = -n
			}
			return answers
		})
		for round := range 3 { // runners end, and are started again
			for i := range 32 {
				go func() {
					if got, err := g.ask(t.Context(), i); err != nil || got != -i {
						t.Errorf("round %d: the answer to %d is %d, %v", round, i, got, err)
					}
				}()
				if i < 2 {
					synctest.Wait() // each starts a runner
				}
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
		}
		if most != 2 || g.free != 2 || len(g.waiting) != 0 {
			t.Errorf("runners at once = %d, free = %d, waiting = %d, want 2, 2, 0", most, g.free, len(g.waiting))
		}
		if len(sizes) != 3*5 { // 1, 1, 10, 10, 10
			t.Errorf("groups = %v, want five a round", sizes)
		}
	})
}

func TestQuestionsOfThoseWhoLeftAreNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []int
		g := newGroup(1, 10, func(_ context.Context, questions []int) []answerTo[int] {
			asked = append(asked, questions...)
			time.Sleep(time.Second)
			return make([]answerTo[int], len(questions))
		})
		go func() { _, _ = g.ask(t.Context(), 1) }()
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			if _, err := g.ask(ctx, 2); !errors.Is(err, context.Canceled) {
				t.Errorf("ask = %v, want %v", err, context.Canceled)
			}
		}()
		synctest.Wait()
		leave()
		if _, err := g.ask(t.Context(), 3); err != nil {
			t.Error(err)
		}
		if len(asked) != 2 || asked[1] != 3 {
			t.Errorf("asked %v, want 1 and 3", asked)
		}
	})
}

func TestAPanicOfARunnerIsAnswered(t *testing.T) {
	t.Parallel()
	g := newGroup(1, 10, func(context.Context, []int) []answerTo[int] { panic("oh") })
	if _, err := g.ask(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "oh") {
		t.Errorf("ask = %v, want the panic", err)
	}
	short := newGroup(1, 10, func(context.Context, []int) []answerTo[int] { return nil })
	if _, err := short.ask(t.Context(), 1); err == nil {
		t.Error("an answer was made up")
	}
}
