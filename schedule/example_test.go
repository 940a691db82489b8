package schedule_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/schedule"
)

type SalesReport struct{ Region string }

func (SalesReport) Kind() string { return "report.sales" }

type SyncTickets struct{ Origin string }

func (SyncTickets) Kind() string { return "tickets.sync" }

// How do I run a job at seven on weekdays?
func Example() {
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[SalesReport]) error {
		day := time.Now()
		if tick, ok := schedule.TickOf(job.Claimed); ok {
			day = tick.At // the same day if it runs late, or again
		}
		fmt.Println("sales in the", job.Args.Region, "until", day)
		return nil
	})

	ctx, cut := app.Signals(context.Background())
	err := app.Run(ctx, &mux, app.Config{
		DatabaseURL: os.Getenv("DATABASE_URL"),
		Cut:         cut,
		Queues:      map[string]dispatcher.QueueConfig{"default": {}, "reports": {Concurrency: 2}},
		Schedules: []schedule.Schedule{
			schedule.Cron("weekday-report", "0 7 * * 1-5", "Europe/Berlin", SalesReport{Region: "north"}, schedule.Options{Queue: "reports"}),
			schedule.Every("sync-acme", 10*time.Minute, SyncTickets{Origin: "acme"}, schedule.Options{
				// The next tick makes up for one that was lost, and no two of them wait, however long nobody works.
				Key:      outbox.KeyRules{Name: "acme", OnLapse: outbox.FailStale},
				Deadline: 10 * time.Minute,
			}),
		},
	})
	if err != nil {
		fmt.Println(err)
	}
}

// When will it tick when the clocks go forward?
func ExampleSchedule_Next() {
	s := schedule.Cron("backup", "30 2 * * *", "Europe/Berlin", SalesReport{}, schedule.Options{})
	at := time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC)
	for range 3 {
		at, _ = s.Next(at)
		fmt.Println(at)
	}
	// Output:
	// 2026-03-28 01:30:00 +0000 UTC
	// 2026-03-29 01:00:00 +0000 UTC
	// 2026-03-30 00:30:00 +0000 UTC
}

// How does a mistake show?
func ExampleSchedule_Validate() {
	fmt.Println(schedule.Cron("backup", "61 2 * * *", "Europe/Berlin", SalesReport{}, schedule.Options{}).Validate())
	fmt.Println(schedule.Cron("backup", "0 0 30 2 *", "Europe/Berlin", SalesReport{}, schedule.Options{}).Validate())
	// Output:
	// schedule "backup": expression.minute is "61": "61" is not a number from 0 to 59
	// schedule "backup": expression is "0 0 30 2 *", which never comes
}

// How does a report cover the day for which it was due, although it runs late or again?
func ExampleTickOf() {
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[SalesReport]) error {
		until := time.Now() // of a job that somebody enqueued
		if tick, ok := schedule.TickOf(job.Claimed); ok {
			until = tick.At // the same in each attempt
		}
		fmt.Println("sales in the", job.Args.Region, "from", until.AddDate(0, 0, -1), "until", until)
		return nil
	})
}
