package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

type payInvoice struct{ Number int }

func (payInvoice) Kind() string { return "invoice.pay" }

var errNoSuchAccount = dispatcher.WithCode("no_such_account", errors.New("the account was closed"))

// How does a kind distinguish failures that no retry can fix from failures that are nobody's fault?
func ExampleUnavailable() {
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[payInvoice]) error {
		err := pay(ctx, job.Args.Number)
		if refused, ok := errors.AsType[*net.OpError](err); ok && refused.Op == "dial" {
			return dispatcher.Unavailable(err, 0) // the bank is unavailable: wait longer and longer, spend no attempts
		}
		return err // errNoSuchAccount among others
	}, dispatcher.KindConfig{
		FailOn:      []string{"no_such_account"}, // goes to the dead letters at once
		OutageLimit: 2 * time.Hour,               // from then on an outage is a failure like any other
	})
	fmt.Println(mux.Kinds())
	// Output: [invoice.pay]
}

func pay(_ context.Context, number int) error {
	if number < 0 {
		return errNoSuchAccount
	}
	return nil
}
