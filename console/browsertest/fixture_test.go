package browsertest

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/schedule"
)

// evil returns a text that is hostile wherever it is taken for HTML, an attribute or a script. What it ends with says
// where it was stored.
func evil(where string) string {
	return `javascript:__xss=1//<img src=x onerror=__xss=1></script><script>__xss=1</script>"'&` + "\u202e\u200b" + where
}

// evilTexts is where the evil job has them, and on which page people see it.
var evilTexts = map[string]string{
	"key": "job", "error": "job", "stack": "job", "log": "job", "header": "job", "payload": "job", "progress": "job", "step": "job",
	"actor": "job", "reason": "job", "schedule": "schedules",
}

// evilPayload is JSON that is hostile where it is written as it was stored.
var evilPayload = `{"nul":"\u0000","n":1970670598291982290,"password":"hunter2","text":"` + strings.ReplaceAll(evil("payload"), `"`, `\"`) + `"}`

// shown returns how people read what evil stored.
func shown(where string) string {
	if where == "payload" {
		return strings.ReplaceAll(evil(where), `"`, `\"`)
	}
	return evil(where)
}

// evilJob stores a dead letter whose every text is hostile.
func (c *console) evilJob() outbox.ID {
	c.Helper()
	id, err := outbox.Enqueue(c.Context(), c.db, outbox.Raw{KindName: "evil.kind", Payload: []byte(evilPayload)}, outbox.Options{
		Key: outbox.KeyRules{Name: evil("key") + "/%?#"}, Headers: map[string]string{"x": evil("header")}, IdempotencyKey: evil("idempotency"),
	})
	if err != nil {
		c.Fatal(err)
	}
	c.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w<b>', lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`, id)
	c.exec(`INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, error_code, error_message, stack, tenant_id)
		SELECT id, epoch, 1, 'w<b>', started_at - interval '1 s', 'panic', $2, $3, tenant_id FROM outbox.jobs WHERE id = $1`, id, evil("error"), evil("stack"))
	c.exec(`UPDATE outbox.jobs SET status = 'dead', epoch = epoch + 1, lease_expires_at = NULL, lease_owner = NULL, last_error_code = 'panic',
		last_error_message = $2, failed_at = clock_timestamp() WHERE id = $1`, id, evil("error"))
	c.exec(`INSERT INTO outbox.progress (job_id, epoch, revision, current, total, reported_at, message) VALUES ($1, 2, 1, 3, 7, now(), $2)`, id, evil("progress"))
	c.exec(`INSERT INTO outbox.job_logs (job_id, epoch, line, slot, logged_at, level, message) VALUES ($1, 2, 0, 0, now(), 'INFO', $2)`, id, evil("log"))
	c.exec(`INSERT INTO outbox.job_steps (job_id, name, epoch, took, result) VALUES ($1, $2, 2, interval '1 s', '{}')`, id, evil("step"))
	c.exec(`INSERT INTO outbox.audit (actor, act, reason, tenant_id, job_id, before, after) VALUES ($2, 'job.retry', $3, $4, $1, '{"s":"a"}', jsonb_build_object('s', $3::text))`,
		id, evil("actor"), evil("reason"), outbox.RootTenant)
	c.exec(`INSERT INTO outbox.schedules (name, every, kind, payload, next_at) VALUES ($1, interval '1 day', 'evil.kind', '{}', now() + interval '1 day')`, evil("schedule"))
	return id
}

// Kinds of the usual jobs.
type (
	receipt struct {
		Order int    `json:"order"`
		To    string `json:"to"`
	}
	charge struct {
		Order  int    `json:"order"`
		Amount string `json:"amount"`
		Card   string `json:"card_token"`
	}
	invoice struct {
		Order    int    `json:"order"`
		Template string `json:"template"`
	}
	report struct {
		Month string `json:"month"`
	}
	stock struct {
		SKU string `json:"sku"`
	}
)

func (receipt) Kind() string { return "receipt.send" }
func (charge) Kind() string  { return "card.charge" }
func (invoice) Kind() string { return "invoice.render" }
func (report) Kind() string  { return "report.build" }
func (stock) Kind() string   { return "stock.sync" }

// usualJobs stores what a shop has on an ordinary day, and carries it out: jobs of each status, some that failed, a
// queue that is paused, schedules, and a worker that lives as long as the test.
func (c *console) usualJobs() {
	c.Helper()
	c.enqueue(report{"2026-10"}, outbox.Options{Queue: "reports", Priority: 5})
	for n := range 12 {
		c.enqueue(receipt{1000 + n, "ada@example.com"}, outbox.Options{Queue: "mail"})
	}
	for n := range 5 {
		c.enqueue(charge{1000 + n, "19.90", "tok_1"}, outbox.Options{Queue: "payments", MaxAttempts: 1, Key: outbox.KeyRules{Name: "customer-7"}})
	}
	for n := range 3 {
		c.enqueue(invoice{1000 + n, "v3"}, outbox.Options{Key: outbox.KeyRules{Name: "acme/eu", Ordered: true}})
	}
	for range 4 {
		c.enqueue(stock{"mug-blue"}, outbox.Options{Queue: "stock"})
	}
	c.enqueue(receipt{2000, "grace@example.com"}, outbox.Options{Queue: "mail", Delay: 40 * time.Minute})
	c.enqueue(receipt{2001, "grace@example.com"}, outbox.Options{Queue: "mail", Hold: true})
	c.enqueue(charge{2002, "5.00", "tok_2"}, outbox.Options{Queue: "payments", Deadline: time.Now().Add(-time.Minute)})

	acts := operator.New(c.db).As(operator.Actor{Name: "grace"})
	_, cancelled := acts.Because("the customer has withdrawn the order").Cancel(c.Context(), c.enqueue(receipt{2003, "x@example.com"}, outbox.Options{Queue: "archive"}))
	paused := acts.Because("the archive is being moved").Pause(c.Context(), "archive")
	if err := errors.Join(cancelled, paused); err != nil {
		c.Fatal(err)
	}
	for n := range 3 {
		c.enqueue(receipt{2010 + n, "ada@example.com"}, outbox.Options{Queue: "archive"})
	}
	c.measured()
	c.work()
	c.relayed()
	c.operated()
}

// relayed stores the events of the shop: one sink is behind; another is paused, and has a message that its broker has
// refused.
func (c *console) relayed() {
	c.Helper()
	c.exec(`INSERT INTO outbox.events (at, id, tenant_id, topic, key, content_type, payload)
		SELECT now() - n * interval '1 s', outbox.uuid_v7(), $1, 'order.paid', 'order-' || n, 'application/json', '{}' FROM generate_series(40, 1, -1) AS n`, outbox.RootTenant)
	c.exec(`INSERT INTO outbox.sinks (sink, owner, lease_expires_at, published, moved_at, top, paused_at)
		SELECT name, 'relay-1', now() + interval '5 min', published, now() - interval '12 s', (SELECT max(position) FROM outbox.events) - behind, paused
		FROM (VALUES ('orders', 18204, 12, NULL), ('billing', 9117, 40, now() - interval '3 min')) AS s(name, published, behind, paused)`)
	id := outbox.NewID()
	c.exec(`INSERT INTO outbox.jobs (id, tenant_id, kind, queue, payload, key, headers) VALUES ($1, $2, 'relay:billing', 'relay:billing', '{}', 'order-7', jsonb_build_object('posthaste-event',
		jsonb_build_object('id', outbox.uuid_v7()::text, 'topic', 'order.paid', 'position', 7, 'at', now())::text))`, id, outbox.RootTenant)
	c.exec(`INSERT INTO outbox.held_messages (sink, job_id, tenant_id, key, position) VALUES ('billing', $1, $2, 'order-7', 7)`, id, outbox.RootTenant)
	c.claimed(id)
	c.exec(`UPDATE outbox.jobs SET status = 'retrying', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL, run_at = now() + interval '1 h',
		last_error_code = 'refused', last_error_message = 'message exceeds maximum payload of 1 MB' WHERE id = $1`, id)
}

// operated stores two operations: one that is under way, which takes its next step when the test is over, and one that
// was stopped.
func (c *console) operated() {
	c.Helper()
	c.exec(`INSERT INTO outbox.operations (id, act, filter, per_second, matched, done, passed, actor, reason, request_id, created_at, next_at, stopped_at)
		SELECT outbox.uuid_v7(), 'replay', jsonb_build_object('kind', kind), 10, matched, done, 2, 'grace', reason, gen_random_uuid()::text,
			now() - interval '4 min', now() + interval '1 h', stopped
		FROM (VALUES ('invoice.render', 1200, 860, 'the template is repaired', NULL), ('card.charge', 310, 45, 'the bank is back', now() - interval '3 min'))
			AS o(kind, matched, done, reason, stopped)`)
}

// mayEdit lets the console's login change payloads.
func (c *console) mayEdit() {
	c.Helper()
	c.exec(`GRANT UPDATE (payload) ON outbox.jobs TO outbox_api`)
}

// measured stores two hours that were measured, but for ten minutes of the latter one, and a deploy.
func (c *console) measured() {
	c.Helper()
	c.exec(`INSERT INTO outbox.measured SELECT m, m - interval '1 min', true FROM generate_series(date_trunc('minute', now()) - interval '2 h', date_trunc('minute', now()), '1 min') AS m
		WHERE m NOT BETWEEN date_trunc('minute', now()) - interval '29 min' AND date_trunc('minute', now()) - interval '20 min'`)
	c.exec(`INSERT INTO outbox.measures SELECT at, $1, queue, kind, (share * (40 + 30 * sin(n / 7.0)))::integer, 2, 1, (share * (600 + 200 * cos(n / 9.0)))::integer,
			(share * (600 + 200 * sin(n / 11.0)))::integer, (n % 3)::integer, (share * (n % 13))::integer, ARRAY[NULL, 40, 300, 200, 30, 4, 1]
		FROM (SELECT at, row_number() OVER (ORDER BY at) AS n FROM outbox.measured) AS minute,
			(VALUES ('mail', 'receipt.send', 3), ('payments', 'card.charge', 1), ('default', 'invoice.render', 1), ('reports', 'report.build', 1)) AS part(queue, kind, share)`,
		outbox.RootTenant)
	c.exec(`INSERT INTO outbox.builds VALUES ('v2.4.0', now() - interval '3 days', now()), ('v2.4.1', now() - interval '12 min', now())`)
}

func (c *console) enqueue(args outbox.Args, o outbox.Options) outbox.ID {
	c.Helper()
	id, err := outbox.Enqueue(c.Context(), c.db, args, o)
	if err != nil {
		c.Fatal(err)
	}
	return id
}

// work carries out the jobs until the test ends; it returns when all have come as far as they will.
func (c *console) work() {
	c.Helper()
	begun := make(chan struct{})
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(context.Context, *outbox.Job[receipt]) error { return nil })
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[charge]) error {
		return dispatcher.WithCode("card_declined", errors.New("the bank has declined the card: insufficient funds"))
	})
	dispatcher.Handle(&mux, func(context.Context, *outbox.Job[invoice]) error {
		return dispatcher.Discard(dispatcher.WithCode("template", errors.New(`template "v3" has no field "tax_id"`)))
	})
	dispatcher.Handle(&mux, func(context.Context, *outbox.Job[stock]) error {
		return dispatcher.RetryAfter(10*time.Minute, dispatcher.WithCode("http_503", errors.New("GET https://stock.example.com/mug-blue: 503 Service Unavailable")))
	})
	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[report]) error {
		_ = job.Log(ctx, slog.LevelInfo, "31 days to add up")
		_ = job.Progress(ctx, 12, 31, "12 October")
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- app.Run(ctx, &mux, app.Config{
			DatabaseURL: c.db.Config().ConnString(), Worker: "shop-1", GracePeriod: -1,
			Queues: map[string]dispatcher.QueueConfig{"default": {}, "mail": {}, "payments": {}, "stock": {}, "reports": {}, "archive": {}},
			Schedules: []schedule.Schedule{
				schedule.Cron("month-end", "0 6 1 * *", "Europe/Berlin", report{"last"}, schedule.Options{Queue: "reports"}),
				schedule.Every("stock", time.Hour, stock{"all"}, schedule.Options{Queue: "stock"}),
			},
		})
	}()
	c.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			c.Error(err)
		}
	})
	<-begun
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		var waiting int
		err := c.db.QueryRow(c.Context(), `SELECT count(*) FROM outbox.jobs WHERE status IN ('pending', 'running') AND run_at <= now()
			AND queue NOT IN ('archive') AND kind NOT IN ('report.build', 'evil.kind')`).Scan(&waiting)
		if err != nil || waiting == 0 {
			break
		}
		if time.Now().After(end) {
			c.Fatalf("%d jobs still wait", waiting)
		}
	}
}
