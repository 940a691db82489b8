package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/client"
)

// How does a caller wait for the result of a job?
func ExampleClient_JobChanges() {
	wait := func(ctx context.Context, c *client.Client, id string) (client.Result, error) {
		for job, err := range c.JobChanges(ctx, id) { // until it is closed; it reconnects by itself
			if err != nil {
				return client.Result{}, err
			}
			fmt.Println(job.Status)
		}
		return c.Result(ctx, id)
	}
	_ = wait
}

// How are many jobs enqueued with one request, all or none?
func ExampleClient_EnqueueBatch() {
	enqueue := func(ctx context.Context, c *client.Client, orders []int) error {
		var jobs []client.NewJob
		for _, order := range orders {
			jobs = append(jobs, client.NewJob{Kind: "receipt.send", Payload: map[string]any{"orderId": order}})
		}
		accepted, err := c.EnqueueBatch(ctx, jobs)
		if p, ok := errors.AsType[*client.Problem](err); ok {
			for _, fault := range p.Errors {
				fmt.Println(fault) // which job, which field
			}
		}
		fmt.Println(len(accepted))
		return err
	}
	_ = enqueue
}

// How are dead letters of today run again, ten a second, after a look at how many there are?
func ExampleClient_ReplayDeadLetters() {
	replay := func(ctx context.Context, c *client.Client) error {
		act := client.LettersAct{
			Filter: client.DeadLetterFilter{Kind: "mail.send", FailedSince: time.Now().Add(-24 * time.Hour)},
			Reason: "the mail server is mended", DryRun: true,
		}
		would, err := c.ReplayDeadLetters(ctx, client.ReplayAct{LettersAct: act})
		if err != nil {
			return err
		}
		fmt.Printf("%+v\n", would)
		act.DryRun = false
		_, err = c.ReplayDeadLetters(ctx, client.ReplayAct{LettersAct: act, RatePerSecond: 10})
		return err
	}
	_ = replay
}

// How does a service follow what becomes of all its jobs, and go on after a restart?
func ExampleClient_Changes() {
	follow := func(ctx context.Context, c *client.Client, after string, remember func(position string) error) error {
		for change, err := range c.Changes(ctx, client.ChangeFilter{}, after) {
			if err != nil {
				return err
			}
			switch change.Name {
			case client.ChangeJob:
				fmt.Println(change.Job.ID, change.Job.Status)
			case client.ChangeResync:
				fmt.Println("some changes were left out: list the jobs again")
			}
			if err := remember(change.ID); err != nil {
				return err
			}
		}
		return nil
	}
	_ = follow
}

// What is wrong in the installation now?
func ExampleClient_Problems() {
	look := func(ctx context.Context, c *client.Client) error {
		found, err := c.Problems(ctx, "")
		fmt.Printf("%+v\n", found)
		return err
	}
	_ = look
}
