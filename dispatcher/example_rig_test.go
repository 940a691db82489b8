package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// work makes a handler do one job, on a database of its own.
func work[T outbox.Args](args T, handler func(context.Context, *outbox.Job[T]) error) {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	if _, err := outbox.Enqueue(ctx, pool, args, outbox.Options{}); err != nil {
		panic(err)
	}
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, handler, dispatcher.KindConfig{Backoff: dispatcher.Waits(0)})
	workOne(ctx, &mux, pool)
}

// workOne runs a dispatcher until a job has closed.
func workOne(ctx context.Context, mux *dispatcher.Mux, pool *pgxpool.Pool) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d, err := dispatcher.New(pool, mux, dispatcher.Config{})
	if err != nil {
		panic(err)
	}
	ended := make(chan error)
	go func() { ended <- d.Run(ctx) }()
	for done := false; !done && err == nil; time.Sleep(5 * time.Millisecond) { // between two queries
		err = pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.history)`).Scan(&done)
	}
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		panic(err)
	}
}

// workUntil runs a dispatcher until heard is closed and the function that it returns is called.
func workUntil(mux *dispatcher.Mux, pool *pgxpool.Pool, heard <-chan struct{}) (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	d, err := dispatcher.New(pool, mux, dispatcher.Config{FallbackPollInterval: 20 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	go func() { ended <- d.Run(ctx) }()
	return func() {
		<-heard
		stop()
		if err := <-ended; err != nil {
			fmt.Println(err)
		}
	}
}
