package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

type IndexDocument struct{ ID int64 }

func (IndexDocument) Kind() string { return "document.index" }

// index stands for a search engine that takes many documents in one request, and
// answers for each.
func index(_ context.Context, ids []int64) (refused map[int64]error, err error) {
	return map[int64]error{7: errors.New("no such document")}, nil
}

// How do I send the jobs of a kind in bulk?
func ExampleHandleMany() {
	var mux dispatcher.Mux
	dispatcher.HandleMany(&mux, func(ctx context.Context, jobs []*outbox.Job[IndexDocument]) []error {
		outcomes := make([]error, len(jobs)) // nil: succeeded
		var ids []int64
		for _, job := range jobs {
			ids = append(ids, job.Args.ID)
		}
		refused, err := index(ctx, ids)
		for i, job := range jobs {
			switch {
			case err != nil:
				outcomes[i] = err // the whole request failed: all of them are tried again
			case refused[job.Args.ID] != nil:
				outcomes[i] = dispatcher.Discard(refused[job.Args.ID]) // this one for good
			}
		}
		return outcomes
	}, dispatcher.BatchConfig{Max: 500, Wait: 100 * time.Millisecond})
	fmt.Println(mux.Kinds())
	// Output: [document.index]
}

// How does a batch stop the work for one of its jobs, which was cancelled, and go on with the others?
func ExampleJobContext() {
	var mux dispatcher.Mux
	dispatcher.HandleMany(&mux, func(ctx context.Context, jobs []*outbox.Job[IndexDocument]) []error {
		outcomes := make([]error, len(jobs))
		for i, job := range jobs {
			jobCtx := dispatcher.JobContext(ctx, job.Claimed) // ctx itself ends with the whole batch
			refused, err := index(jobCtx, []int64{job.Args.ID})
			if refused[job.Args.ID] != nil {
				err = dispatcher.Discard(refused[job.Args.ID])
			}
			outcomes[i] = err
		}
		return outcomes
	}, dispatcher.BatchConfig{Max: 500, Wait: 100 * time.Millisecond})
	fmt.Println(mux.Kinds())
	// Output: [document.index]
}
