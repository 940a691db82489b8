package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// finding is one line of the proof.
type finding struct {
	claim  string
	holds  bool
	detail string
}

// claims are what has to hold once nothing is left to do, each with the query
// that finds out and gives the figures. Effects are counted by their rows.
var claims = []struct{ claim, sql string }{
	{"every order has exactly one receipt", `
		SELECT count(*) FILTER (WHERE n <> 1) = 0,
		       format('%s orders, %s receipts, %s wrong', count(*), sum(n), count(*) FILTER (WHERE n <> 1))
		FROM (
			SELECT count(receipts.order_id) AS n
			FROM orders LEFT JOIN receipts ON receipts.order_id = orders.id
			GROUP BY orders.id
		) AS per_order`},
	{"every order has exactly one reservation", `
		SELECT count(*) FILTER (WHERE n <> 1) = 0,
		       format('%s orders, %s reservations, %s wrong', count(*), sum(n), count(*) FILTER (WHERE n <> 1))
		FROM (
			SELECT count(r.order_id) AS n
			FROM orders LEFT JOIN stock_reservations AS r
			  ON r.order_id = orders.id AND r.sku = orders.sku AND r.quantity = orders.quantity
			GROUP BY orders.id
		) AS per_order`},
	{"stock adds up", `
		SELECT bool_and(stock.delivered = stock.available + coalesce(reserved.quantity, 0))
		           AND sum(stock.delivered - stock.available) = (SELECT sum(quantity) FROM orders),
		       format('%s ordered, %s reserved, %s taken',
		           (SELECT sum(quantity) FROM orders), sum(reserved.quantity), sum(stock.delivered - stock.available))
		FROM stock
		LEFT JOIN (SELECT sku, sum(quantity) AS quantity FROM stock_reservations GROUP BY sku) AS reserved USING (sku)`},
	{"no job is open, none is dead", `
		SELECT count(*) = 0,
		       format('%s open, %s dead', count(*) FILTER (WHERE status NOT IN ('failed', 'dead')),
		           count(*) FILTER (WHERE status IN ('failed', 'dead')))
		FROM outbox.jobs`},
	{"every job closed exactly once, succeeded", `
		SELECT count(*) FILTER (WHERE receipt <> 1 OR reserve <> 1) = 0
		           AND 2 * count(*) = (SELECT count(*) FROM outbox.history)
		           AND 2 * count(*) = (SELECT count(DISTINCT id) FROM outbox.history),
		       format('%s closed, %s different', (SELECT count(*) FROM outbox.history),
		           (SELECT count(DISTINCT id) FROM outbox.history))
		FROM (
			SELECT count(*) FILTER (WHERE jobs.kind = 'receipt.send' AND jobs.status = 'succeeded')  AS receipt,
			       count(*) FILTER (WHERE jobs.kind = 'stock.reserve' AND jobs.status = 'succeeded') AS reserve
			FROM orders
			LEFT JOIN outbox.closed_jobs AS jobs ON (jobs.payload ->> 'OrderID')::bigint = orders.id
			GROUP BY orders.id
		) AS per_order`},
}

// check finds out whether everything holds that was promised: for the orders that
// were placed, and for the jobs of the worker that was killed.
func check(ctx context.Context, db *pgxpool.Pool, placed int, t *takeover) ([]finding, error) {
	var orders int
	if err := db.QueryRow(ctx, `SELECT count(*) FROM orders`).Scan(&orders); err != nil {
		return nil, fmt.Errorf("count orders: %w", err)
	}
	findings := []finding{{
		claim: "every order that was placed is there", holds: orders == placed,
		detail: fmt.Sprintf("%s placed, %s there", number(placed), number(orders)),
	}}
	for _, c := range claims {
		f := finding{claim: c.claim}
		if err := db.QueryRow(ctx, c.sql).Scan(&f.holds, &f.detail); err != nil {
			return nil, fmt.Errorf("check that %s: %w", c.claim, err)
		}
		findings = append(findings, f)
	}
	if err := t.look(ctx, db); err != nil {
		return nil, err
	}
	return append(findings, finding{
		claim: "the dead worker's jobs ran again", holds: len(t.ids) > 0 && t.complete(),
		detail: fmt.Sprintf("%d of %d, %s to %s after the kill", t.again, len(t.ids), seconds(t.first),
			seconds(t.last)),
	}), nil
}

// report prints the findings and reports whether all hold.
func report(s *screen, findings []finding) bool {
	all := true
	for _, f := range findings {
		mark := s.paint(green, "✔")
		if !f.holds {
			mark, all = s.paint(red, "✘"), false
		}
		s.say("  %s %-40s %s", mark, f.claim, s.paint(faint, f.detail))
	}
	return all
}
