package memory_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/posthaste-dev/posthaste/memory"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Count reads an input that cannot be stored.
type Count struct{ Upload io.Reader }

func (Count) Kind() string { return "upload.count" }

// How do I run a job whose input cannot be stored?
func Example() {
	var mux memory.Mux
	memory.HandleResult(&mux, func(ctx context.Context, job *outbox.Job[Count]) (int, error) {
		memory.ReportProgress(ctx, memory.Progress{Message: "reading"})
		text, err := io.ReadAll(job.Args.Upload)
		return len(strings.Fields(string(text))), err
	})
	queue, err := memory.New(&mux, memory.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	stopped := make(chan error)
	go func() { stopped <- queue.Run(ctx) }()

	id, err := queue.Submit(Count{strings.NewReader("lost when the process ends")}, memory.Options{})
	if errors.Is(err, memory.ErrBackpressure) {
		fmt.Println("503: try again later")
		return
	}
	job, _ := queue.Wait(ctx, id)
	words, _ := memory.Result[int](queue, id)
	fmt.Println(job.Status, words)

	stop()
	fmt.Println(<-stopped)
	// Output:
	// succeeded 5
	// <nil>
}
