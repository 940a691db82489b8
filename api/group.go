package api

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/posthaste-dev/posthaste/outbox"
)

// A group answers the questions of concurrent requests together: a runner takes all that wait, queries the database
// once, and answers each. No question waits for others: while a runner is free a question goes at once, and groups grow
// while all runners are busy. Runners start on demand and end when nothing waits.
type group[Q, A any] struct {
	run     func(context.Context, []Q) []answerTo[A]
	most    int // questions per group
	mu      sync.Mutex
	free    int // runners that could be started
	waiting []*question[Q, A]
}

type question[Q, A any] struct {
	ctx    context.Context
	asked  Q
	answer chan answerTo[A] // for a single answer
}

type answerTo[A any] struct {
	value A
	err   error
}

func newGroup[Q, A any](runners, most int, run func(context.Context, []Q) []answerTo[A]) *group[Q, A] {
	return &group[Q, A]{run: run, most: most, free: runners}
}

// ask returns the answer, or ctx's error if that ends first; the question may be executed all the same.
func (g *group[Q, A]) ask(ctx context.Context, asked Q) (A, error) {
	q := &question[Q, A]{ctx: ctx, asked: asked, answer: make(chan answerTo[A], 1)}
	g.mu.Lock()
	g.waiting = append(g.waiting, q)
	start := g.free > 0
	if start {
		g.free--
	}
	g.mu.Unlock()
	if start {
		go g.serve()
	}
	select {
	case a := <-q.answer:
		return a.value, a.err
	case <-ctx.Done():
		var none A
		return none, ctx.Err()
	}
}

// serve answers questions as a runner, until none waits. It decides under one lock that nothing waits and that it ends:
// a later question finds it free.
func (g *group[Q, A]) serve() {
	for {
		g.mu.Lock()
		n := min(len(g.waiting), g.most)
		if n == 0 {
			g.free++
			g.mu.Unlock()
			return
		}
		taken := g.waiting[:n:n]
		g.waiting = g.waiting[n:]
		g.mu.Unlock()
		g.answer(taken)
	}
}

func (g *group[Q, A]) answer(taken []*question[Q, A]) {
	live := make([]*question[Q, A], 0, len(taken))
	asked := make([]Q, 0, len(taken))
	for _, q := range taken {
		if q.ctx.Err() == nil { // nobody waits for the others
			live = append(live, q)
			asked = append(asked, q.asked)
		}
	}
	if len(live) == 0 {
		return
	}
	answers := g.safely(asked)
	for i, q := range live {
		q.answer <- answers[i]
	}
}

// safely turns a panic into an error for each waiting caller.
func (g *group[Q, A]) safely(asked []Q) (answers []answerTo[A]) {
	returned := false
	defer func() {
		if v := recover(); !returned {
			answers = all[A](len(asked), fmt.Errorf("panic: %v", v))
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), groupTimeout)
	defer cancel()
	answers = g.run(ctx, asked)
	returned = true
	if len(answers) != len(asked) {
		return all[A](len(asked), fmt.Errorf("%d answers to %d questions", len(answers), len(asked)))
	}
	return answers
}

// all returns the same error for every question.
func all[A any](n int, err error) []answerTo[A] {
	answers := make([]answerTo[A], n)
	for i := range answers {
		answers[i].err = err
	}
	return answers
}

// byTenant yields each tenant with the indexes of its questions, in the order of the tenants, so that groups that take
// the same locks take them in the same order.
func byTenant[Q any](asked []Q, tenantOf func(Q) outbox.ID) func(yield func(outbox.ID, []int) bool) {
	return func(yield func(outbox.ID, []int) bool) {
		places := map[outbox.ID][]int{}
		for i, q := range asked {
			tenant := tenantOf(q)
			places[tenant] = append(places[tenant], i)
		}
		for _, tenant := range slices.SortedFunc(maps.Keys(places), func(a, b outbox.ID) int {
			return bytes.Compare(a[:], b[:])
		}) {
			if !yield(tenant, places[tenant]) {
				return
			}
		}
	}
}
