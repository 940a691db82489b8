package operator_test

import (
	"context"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

type sendMail struct{ To string }

func (sendMail) Kind() string { return "mail.send" }

// Why does a job not start?
func ExampleOperator_Explain() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	id, err := outbox.Enqueue(ctx, pool, sendMail{"ada@example.org"}, outbox.Options{Hold: true})
	if err != nil {
		panic(err)
	}
	why, err := operator.New(pool).Explain(ctx, id)
	fmt.Println(why.Status, why.Reasons[0].Code, err)
	// Output: created held <nil>
}

// Which jobs of a kind are open, the newest first?
func ExampleOperator_Jobs() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	for range 3 {
		if _, err := outbox.Enqueue(ctx, pool, sendMail{"ada@example.org"}, outbox.Options{}); err != nil {
			panic(err)
		}
	}
	jobs, err := operator.New(pool).Jobs(ctx, operator.Filter{Kind: "mail.send", Statuses: []outbox.Status{outbox.Pending}, Limit: 2})
	for _, job := range jobs {
		fmt.Println(job.Kind, job.Status)
	}
	fmt.Println(err) // for the next page, set Before to the last one's ID
	// Output:
	// mail.send pending
	// mail.send pending
	// <nil>
}

// How do I stop a queue at once, and leave a note why?
func ExampleOperator_Pause() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	o := operator.New(pool).As(operator.Actor{Name: "ada"}).Because("the mail server is being moved")
	if err := o.Pause(ctx, "mail"); err != nil { // no process claims from it any more
		panic(err)
	}
	queues, err := o.QueueRules(ctx)
	for _, q := range queues {
		fmt.Println(q.Name, !q.PausedSince.IsZero())
	}
	fmt.Println(err)
	// Output:
	// mail true
	// <nil>
}
