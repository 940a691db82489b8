package await_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/await"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Resize requests a thumbnail of a picture; its handler returns the Size.
type Resize struct {
	outbox.Returns[Size]
	URL string
}

func (Resize) Kind() string { return "picture.resize" }

type Size struct{ Width, Height int }

func resize(_ context.Context, job *outbox.Job[Resize]) (Size, error) {
	fmt.Println("resizing", job.Args.URL)
	return Size{80, 60}, nil
}

// How does the caller that enqueued a job get the value that its handler returned?
func Example() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()

	var mux dispatcher.Mux
	dispatcher.HandleResult(&mux, resize) // anything but a Size would not compile
	worker, err := dispatcher.New(pool, &mux, dispatcher.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	waiter, err := await.New(pool, await.Config{}) // one for the process
	if err != nil {
		fmt.Println(err)
		return
	}
	defer run(worker.Run, waiter.Run)()

	var ref await.Ref[Size]
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		ref, err = await.Enqueue(ctx, waiter, tx, Resize{URL: "cat.png"}, outbox.Options{})
		return err
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	size, err := ref.Wait(ctx)
	fmt.Println(size.Width, "x", size.Height, err)
	// Output:
	// resizing cat.png
	// 80 x 60 <nil>
}

// run runs components until the returned function is called.
func run(components ...func(context.Context) error) (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, len(components))
	for _, c := range components {
		go func() { ended <- c(ctx) }()
	}
	return func() {
		stop()
		for range components {
			if err := <-ended; err != nil {
				fmt.Println(err)
			}
		}
	}
}
