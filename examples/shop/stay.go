package main

import (
	"context"
	"math"
	"time"
)

// goOn leaves the shop open, with an order a second, until somebody stops it.
func (d *demo) goOn(ctx context.Context) error {
	d.screen.say(`
The shop stays open: one order a second, until Ctrl-C. To look around:

  psql '%[1]s'
    SELECT kind, status, attempt, lease_owner, payload FROM outbox.open_jobs;
    SELECT kind, status, worker, took, payload FROM outbox.closed_jobs LIMIT 9;
    SELECT * FROM outbox.closed_jobs WHERE lost_leases > 0 \gx
    SELECT worker, error_code, count(*) FROM outbox.attempts GROUP BY 1, 2;
    -- A receipt that was sent already. The handler sees that, and does nothing.
    SELECT outbox.enqueue('receipt.send', '{"OrderID": 1}');
    SELECT * FROM receipts WHERE order_id = 1;
`, d.shownURL())
	for _, w := range d.team.workers {
		d.screen.say("  worker %[1]s   http://%[2]s/readyz   http://%[2]s/metrics", w.name, w.admin)
	}
	d.screen.say("")
	d.open = true
	return endedBy(ctx, d.customers.come(ctx, math.MaxInt, time.Second))
}
