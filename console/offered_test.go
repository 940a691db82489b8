package console_test

import (
	"html"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// The page of a job and Problems offer the act that helps: once a person has confirmed it, the cause is gone.
func TestTheActThatHelpsHelps(t *testing.T) {
	t.Parallel()
	keyed := outbox.KeyRules{Name: "acme/eu %?", Ordered: true}
	for name, cause := range map[string]struct {
		problem string // a part of its sentence; "" if Problems do not have it
		reason  string // a part of its sentence on the page of the job; "" if it has none
		act     string
		make    func(*rig) outbox.ID
		also    url.Values // what a person enters
	}{
		"paused queue": {"is paused", "has been paused", "queue-resume", func(r *rig) outbox.ID {
			r.exec(`INSERT INTO outbox.queues (queue, paused_at) VALUES ('a/b:c', now())`)
			return r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA, Queue: "a/b:c"})
		}, nil},
		"full queue": {"is at its limit", "is at its limit", "queue-limits", func(r *rig) outbox.ID {
			r.exec(`INSERT INTO outbox.queues (queue, max_running) VALUES ('mail', 1)`)
			r.exec(`INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing) VALUES ('w', 'v1', '{mail}', '{4}', '{k}', true)`)
			r.running(r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA, Queue: "mail"}))
			id := r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA, Queue: "mail"})
			r.exec(`UPDATE outbox.jobs SET run_at = now() - interval '5 min' WHERE id = $1`, id)
			return id
		}, url.Values{"running": {"2"}}},
		"held": {"", "nobody has released it", "job-release", func(r *rig) outbox.ID {
			return r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA, Hold: true})
		}, nil},
		"not due": {"", "not due", "job-retry", func(r *rig) outbox.ID {
			return r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA, Delay: time.Hour})
		}, nil},
		"parked key": {"is parked", "unblocks it", "key-unblock", func(r *rig) outbox.ID {
			first := r.letterOf(tenantA, keyed, "x")
			r.exec(`INSERT INTO outbox.keys (tenant_id, queue, key, parked_at, parked_for) VALUES ($1, 'mail', $2, now(), $3)`, tenantA, keyed.Name, first)
			return r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA, Queue: "mail", Key: keyed})
		}, nil},
		"dead letters": {"failed", "", "letters-replay", func(r *rig) outbox.ID {
			return r.deadLetter(tenantA, "k", "smtp", "refused")
		}, url.Values{"reason": {"the server is back"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			page := "job?id=" + cause.make(r).String()
			if cause.reason != "" {
				r.get(page).is(200).has(cause.reason)
			} else {
				page = "problems"
			}
			if cause.problem != "" {
				r.get("problems").is(200).has(cause.problem).hasHTML(`href="` + cause.act + `?`)
			}
			if cause.act == "queue-resume" {
				r.as("all+jobs.read,admin.read").get(page).is(200).has("Resume queue a/b:c… : Needs admin.mutate").hasNot(`href="queue-resume`)
				r.as("a").get("problems").is(200).has("Queues are shared by all tenants").hasNot(`href="queue-resume`)
			}
			r.follow(page, cause.act, cause.also)
			if cause.reason != "" {
				r.get(page).is(200).hasNot(cause.reason)
			}
			if cause.act == "letters-replay" {
				if begun := r.read(`SELECT string_agg(act, ' ') FROM outbox.operations`); begun != "replay" {
					t.Errorf("the operations are %q, want one that replays", begun)
				}
				return // the operation does the rest
			}
			if cause.problem != "" {
				r.get("problems").is(200).hasNot(cause.problem)
			}
		})
	}
}

// follow opens the form of an act that a page offers, and sends it with what a person enters.
func (r *rig) follow(page, act string, also url.Values) {
	r.t.Helper()
	to := regexp.MustCompile(`<a class="button" href="(`+act+`\?[^"]*)"`).FindAllStringSubmatch(r.get(page).Body.String(), -1)
	if len(to) == 0 {
		r.t.Fatalf("%s offers no %s", page, act)
	}
	form := r.get(html.UnescapeString(to[len(to)-1][1])).is(200).hiddenFields()
	form.Del("back") // of the menu
	form.Set("reason", "")
	for name, values := range also {
		form[name] = values
	}
	r.post(act, form).is(303)
}

func (r *rig) running(id outbox.ID) {
	r.t.Helper()
	r.exec(`UPDATE outbox.jobs SET status = 'running', epoch = epoch + 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 h', started_at = now() WHERE id = $1`, id)
}
