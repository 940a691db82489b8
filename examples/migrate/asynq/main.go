// Command asynq moves what waits in a queue of asynq into the queue of the same name here. A second run doubles
// nothing. docs/migrate/to-posthaste.md describes when to run it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"os/signal"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/outbox"
)

func main() {
	redis := flag.String("redis", "redis://127.0.0.1:6379", "where asynq's tasks are")
	queue := flag.String("queue", "default", "the queue to move; it is paused in asynq first")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *redis, *queue, os.Getenv("DATABASE_URL"), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "asynq:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, redis, queue, databaseURL string, out io.Writer) error {
	from, err := connection(redis)
	if err != nil {
		return err
	}
	tasks := asynq.NewInspector(from)
	defer tasks.Close()
	db, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	return (&mover{tasks, outbox.NewProducer(db, outbox.NotifyCoalesced), queue, out}).run(ctx)
}

// connection returns what asynq makes of a URI, with the user's name, which asynq leaves out.
func connection(uri string) (asynq.RedisConnOpt, error) {
	to, err := asynq.ParseRedisURI(uri)
	if client, plain := to.(asynq.RedisClientOpt); plain {
		if u, err := url.Parse(uri); err == nil {
			client.Username = u.User.Username()
			return client, nil
		}
	}
	return to, err
}

type mover struct {
	tasks *asynq.Inspector
	jobs  *outbox.Producer
	queue string
	out   io.Writer
}

// run moves every task that waits, and says what it leaves in Redis.
func (m *mover) run(ctx context.Context) error {
	info, err := m.tasks.GetQueueInfo(m.queue)
	if err == nil && !info.Paused {
		err = m.tasks.PauseQueue(m.queue) // asynq's servers take no more tasks of it; what they run, they finish
	}
	if err != nil {
		return err
	}
	// A task moves from scheduled or retry to pending by itself, so pending comes last.
	for _, waiting := range []struct {
		state string
		list  func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error)
	}{
		{"scheduled", m.tasks.ListScheduledTasks},
		{"retry", m.tasks.ListRetryTasks},
		{"archived", m.tasks.ListArchivedTasks},
		{"pending", m.tasks.ListPendingTasks},
	} {
		moved, left, err := m.moveAll(ctx, waiting.list)
		fmt.Fprintf(m.out, "%s: %d moved, %d left\n", waiting.state, moved, left)
		if err != nil {
			return err
		}
	}
	return errors.Join(m.jobs.Flush(ctx), m.others())
}

// moveAll moves the tasks of a list, a page at a time. What is left stays where it is in the list.
func (m *mover) moveAll(ctx context.Context,
	list func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error),
) (moved, left int, err error) {
	for page := 1; ; {
		tasks, err := list(m.queue, asynq.PageSize(1000), asynq.Page(page))
		if err != nil || len(tasks) == 0 {
			return moved, left, err
		}
		refused, err := m.move(ctx, tasks)
		if err != nil {
			return moved, left, err
		}
		moved += len(tasks) - len(refused)
		if len(refused) < len(tasks) && len(tasks) == 1000 {
			continue // the tasks behind them have moved up into this page
		}
		for id, why := range refused {
			fmt.Fprintf(m.out, "left: task %q: %v\n", id, why)
		}
		left += len(refused)
		page++
	}
}

// snippet:begin

// move stores the tasks as jobs, and then deletes them in Redis. Where it is broken off between the two, the next run
// finds the same tasks and stores none of them twice. It returns those that cannot be jobs, and why.
func (m *mover) move(ctx context.Context, tasks []*asynq.TaskInfo) (refused map[string]error, err error) {
	refused = map[string]error{}
	err = m.jobs.InTx(ctx, func(tx pgx.Tx) error {
		for _, task := range tasks {
			args, options := asJob(task)
			_, err := m.jobs.Enqueue(ctx, tx, args, options)
			if _, invalid := errors.AsType[*outbox.InvalidError](err); invalid {
				refused[task.ID] = err // nothing was sent, so the transaction goes on
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, task := range tasks {
		if refused[task.ID] != nil {
			continue
		}
		if err := m.tasks.DeleteTask(m.queue, task.ID); err != nil && !errors.Is(err, asynq.ErrTaskNotFound) {
			return nil, err
		}
	}
	return refused, nil
}

func asJob(task *asynq.TaskInfo) (outbox.Raw, outbox.Options) {
	args := outbox.Raw{KindName: task.Type, Payload: task.Payload}
	if !json.Valid(task.Payload) {
		args.ContentType = "application/octet-stream"
	}
	options := outbox.Options{
		Queue:          task.Queue,
		MaxAttempts:    task.MaxRetry - task.Retried + 1, // asynq counts the attempts after the first
		Timeout:        task.Timeout,                     // 30 minutes, where the producer gave none
		Deadline:       task.Deadline,
		IdempotencyKey: "asynq:" + task.Queue + ":" + task.ID,
		Headers:        map[string]string{},
	}
	maps.Copy(options.Headers, task.Headers)
	options.Headers["asynq-id"] = task.ID
	switch task.State {
	case asynq.TaskStateScheduled, asynq.TaskStateRetry:
		options.RunAt = task.NextProcessAt
	case asynq.TaskStateArchived: // has failed for good: it waits for somebody who releases or cancels it
		options.Hold, options.MaxAttempts, options.Deadline = true, task.MaxRetry+1, time.Time{}
	}
	return args, options
}

// snippet:end

// others says what there is besides tasks that wait.
func (m *mover) others() error {
	info, err := m.tasks.GetQueueInfo(m.queue)
	if err != nil {
		return err
	}
	for _, other := range []struct {
		n    int
		what string
	}{
		{info.Active, "active: asynq's servers run them; run this again when they are done or have failed"},
		{info.Aggregating, "waiting in groups: there is nothing like that here; run them there"},
		{info.Completed, "completed: they are only kept to be looked at"},
		{
			info.Scheduled + info.Retry + info.Archived + info.Pending,
			"waiting: those named above, or new ones; run this again",
		},
	} {
		if other.n > 0 {
			fmt.Fprintf(m.out, "left: %d %s\n", other.n, other.what)
		}
	}
	entries, err := m.tasks.SchedulerEntries()
	for _, e := range entries {
		fmt.Fprintf(m.out, "left: the scheduler's %q of %s: declare a schedule\n", e.Spec, e.Task.Type())
	}
	return err
}
