package operator_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/schedule"
)

// Which keys are stuck, for how long, and how do I make their jobs run on in order?
func ExampleOperator_Unblock() {
	unblock := func(ctx context.Context, o *operator.Operator) error {
		keys, err := o.Keys(ctx, operator.KeyFilter{Parked: true}) // the longest waiting first
		if err != nil {
			return err
		}
		for _, k := range keys {
			fmt.Printf("%s: %d jobs wait, the oldest for %s, behind job %s\n", k.Key, k.Blocked, time.Since(k.BlockedSince), k.ParkedFor)
			if _, err := o.Because("the address was corrected").Unblock(ctx, k.KeyName); err != nil {
				return err
			}
		}
		return nil
	}
	_ = unblock
}

// How do I create a schedule for a customer in the transaction that creates the customer, and change it later?
func ExampleOperator_CreateSchedule() {
	signUp := func(ctx context.Context, o *operator.Operator, tx pgx.Tx, customer string) error {
		name := "report-" + customer
		daily := schedule.Cron(name, "0 7 * * *", "Europe/Berlin", outbox.Raw{KindName: "report.send"}, schedule.Options{Queue: "reports"})
		first, err := o.WithTx(tx).CreateSchedule(ctx, daily)
		if err != nil {
			return err // names every mistake, or is schedule.ErrExists
		}
		fmt.Println("the first report comes at", first)
		return nil
	}
	later := func(ctx context.Context, o *operator.Operator, customer string) error {
		_, err := o.ChangeSchedule(ctx, outbox.RootTenant, "report-"+customer, schedule.Edit{Cron: new("0 9 * * 1")})
		return err
	}
	_, _ = signUp, later
}

// One job failed because of its payload. How do I run it again with another one, or
// dismiss it?
func ExampleOperator_ReplayEdited() {
	mend := func(ctx context.Context, o *operator.Operator, schemas outbox.Checker, id outbox.ID, corrected []byte) error {
		if corrected == nil {
			return o.Because("the customer has left").Dismiss(ctx, id)
		}
		o = o.CheckedBy(schemas) // refuses a payload that is not valid for the kind

		return o.Because("a typing error in the address").ReplayEdited(ctx, id, corrected)
	}
	_ = mend
}

// How do I keep a schedule from firing while its target is rebuilt, and run it once when that is done?
func ExampleOperator_RunSchedule() {
	rebuild := func(ctx context.Context, o *operator.Operator, work func() error) error {
		if err := o.PauseSchedule(ctx, outbox.RootTenant, "weekday-report"); err != nil {
			return err
		}
		if err := work(); err != nil {
			return err
		}
		if _, _, err := o.RunSchedule(ctx, outbox.RootTenant, "weekday-report"); err != nil {
			return err
		}
		return o.ResumeSchedule(ctx, outbox.RootTenant, "weekday-report")
	}
	_ = rebuild
}
