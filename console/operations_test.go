package console_test

import (
	"maps"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/fingerprint"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

var untilField = regexp.MustCompile(`name="failed_until" value="([^"]+)"`)

// A person has confirmed two dead letters. A third that dies before the form is sent is not touched.
func TestAnOperationDoesWhatWasCounted(t *testing.T) {
	t.Parallel()
	for act, becomes := range map[string]string{"letters-replay": "pending", "letters-dismiss": "dismissed"} {
		t.Run(act, func(t *testing.T) {
			r := newRig(t)
			first, second := r.deadLetter(tenantA, "k", "c", "m"), r.deadLetter(tenantA, "k", "c", "m")
			foreign := r.deadLetter(tenantB, "k", "c", "m")
			page := r.as("a").get(act+"?error=c1&kind=k").is(200).has("2 dead letters", "can be stopped", "posthaste dlq")
			until := untilField.FindStringSubmatch(page.Body.String())
			if until == nil {
				t.Fatal("the form does not say what was counted")
			}
			late := r.deadLetter(tenantA, "k", "c", "m")
			form := url.Values{"error": {"c1"}, "kind": {"k"}, "failed_until": {until[1]}, "matched": {"2"}, "once": {outbox.NewID().String()}, "reason": {"the relay is back"}}
			r.as("a+jobs.read,admin.read").post(act, form).is(403)
			silent := maps.Clone(form)
			silent.Set("reason", " ")
			r.as("a").post(act, silent).is(400).has("A reason is missing", "Nothing was changed")
			if got := r.as("a").post(act, form).is(303).Header().Get("Location"); got != "operations" {
				t.Errorf("led to %s", got)
			}
			o := operator.New(r.db)
			for range 5 {
				if _, err := o.StepOperation(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for id, want := range map[outbox.ID]string{first: becomes, second: becomes, late: "dead", foreign: "dead"} {
				if got := r.statusOf(id); got != want {
					t.Errorf("%s is %s, want %s", id, got, want)
				}
			}
			r.as("a").get("operations").is(200).has("done", "2 "+map[string]string{"letters-replay": "replayed", "letters-dismiss": "dismissed"}[act]+" of 2", "the relay is back")
			r.as("b").get("operations").is(200).has("No operations")
			all, err := o.Operations(t.Context(), outbox.ID{}, outbox.ID{}, 1)
			if err != nil {
				t.Fatal(err)
			}
			id := all[0].ID.String()
			r.as("a").get("operation?id="+id).is(200).has("done", "kind k")
			r.as("b").get("operation?id=" + id).is(404)
			r.as("a").get("audit?request=" + all[0].RequestID).is(200).has("3 acts shown")
		})
	}
}

// A form that is sent twice, by a second click, is done once; and one that is refused is shown once more, of what there
// is by then, with what was entered.
func TestAFormIsDoneOnceAndKeepsWhatWasEntered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.deadLetter(tenantA, "k", "c", "m")
	r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA})
	r.exec(`INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at) VALUES ($1, 'sync', '1 hour', 'sync', '{}', now() + interval '1 hour')`, tenantA)
	for page, count := range map[string]string{
		"letters-replay?error=c1&kind=k":                         `SELECT count(*)::text FROM outbox.operations WHERE act = 'replay' AND open_act IS NULL`,
		"jobs-retry?kind=k":                                      `SELECT count(*)::text FROM outbox.operations WHERE open_act = 'retry'`,
		"schedule-run?tenant=" + tenantA.String() + "&name=sync": `SELECT count(*)::text FROM outbox.jobs WHERE kind = 'sync'`,
	} {
		path, _, _ := strings.Cut(page, "?")
		form := r.as("a").get(page).is(200).fieldsOf()
		form.Set("reason", "the relay is back, and this took long to write")
		if path != "schedule-run" {
			bad := maps.Clone(form)
			bad.Set("rate", "0,5")
			again := r.as("a").post(path, bad).is(400).has("The rate “0,5”", "Nothing was changed", "1 ", "can be stopped", "posthaste ").hasSource(t, `value="0,5"`, `value="the relay is back, and this took long to write"`)
			form = again.fieldsOf()
			form.Set("reason", "the relay is back")
			form.Set("rate", "0.5")
		}
		for range 3 {
			r.as("a").post(path, form).is(303)
		}
		if n := r.read(count); n != "1" {
			t.Errorf("%s was done %s times", path, n)
		}
		if path != "schedule-run" {
			other := maps.Clone(form)
			other.Set("rate", "7")
			r.as("a").post(path, other).is(409).has("This was started before")
		}
		form = r.as("a").get(page).is(200).fieldsOf() // a new page is a new act
		form.Set("reason", "and once more")
		r.as("a").post(path, form).is(303)
		if n := r.read(count); n != "2" {
			t.Errorf("%s was done %s times, want twice", path, n)
		}
	}
	if n := r.read(`SELECT count(*)::text FROM outbox.audit WHERE act IN ('operation.start', 'schedule.run')`); n != "6" {
		t.Errorf("the audit has %s acts, want 6", n)
	}
}

func TestAnOperationIsStoppedAndResumed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.deadLetter(tenantA, "k", "c", "m")
	op, err := operator.New(r.db).StartOperation(t.Context(), operator.OperationSpec{Act: operator.ReplayLetters, Filter: operator.DeadLetterFilter{Tenant: tenantA}})
	if err != nil {
		t.Fatal(err)
	}
	form := url.Values{"id": {op.ID.String()}, "reason": {"wrong ones"}}
	r.get("operation-stop?id=" + op.ID.String()).is(200).has("stays done")
	r.confirm("operation-stop", form).is(303)
	r.get("operation?id="+op.ID.String()).is(200).has("stopped", "Resume…")
	r.confirm("operation-resume", form).is(303)
	r.get("operation?id=" + op.ID.String()).is(200).has("going on")
	for _, until := range []string{"now", "0001-01-01T00:00:00Z"} {
		r.post("letters-replay", url.Values{"failed_until": {until}, "matched": {"1"}, "reason": {"x"}, "once": {outbox.NewID().String()}}).is(400).has("failed_until")
	}
	r.post("letters-replay", url.Values{"failed_until": {"2026-01-01T00:00:00Z"}, "matched": {"1"}, "rate": {"fast"}, "once": {outbox.NewID().String()}, "reason": {"x"}}).is(400).has("rate")
	if page := r.get("letters-replay?since=2h").is(200).Body.String(); strings.Contains(page, `name="since" value="2h"`) {
		t.Error("the form says how long ago, which is another instant when it is sent")
	}
}

// Why a step failed is the database's to say, and not to those of one tenant.
func TestWhyAnOperationFailsIsNotForTenants(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	op, err := operator.New(r.db).StartOperation(t.Context(), operator.OperationSpec{Act: operator.CancelJobs, Jobs: operator.OpenFilter{Tenant: tenantA}})
	if err != nil {
		t.Fatal(err)
	}
	r.exec(`UPDATE outbox.operations SET failure = 'dial tcp 10.0.0.7:5432: refused'`)
	r.get("operation?id=" + op.ID.String()).is(200).has("10.0.0.7")
	page := r.as("a").get("operation?id="+op.ID.String()).is(200).has("the step failed", "tries again").Body.String()
	if strings.Contains(page, "10.0.0.7") {
		t.Error("a tenant reads the database's address")
	}
}

// An operation that cancels jobs was stopped. A login that may not cancel a job may not resume it either.
func TestACancellationGoesOnForThoseWhoMayCancel(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.enqueue("k", `{}`, outbox.Options{Tenant: tenantA})
	op, err := operator.New(r.db).StartOperation(t.Context(), operator.OperationSpec{Act: operator.CancelJobs, Jobs: operator.OpenFilter{Tenant: tenantA}})
	if err != nil {
		t.Fatal(err)
	}
	form := url.Values{"id": {op.ID.String()}}
	may, mayNot := r.as("a"), r.as("a+jobs.read,admin.read,admin.mutate")
	undo := mayNot.confirm("operation-stop", form).is(303).undoes(r)
	for page, form := range map[string]url.Values{"operation-resume": form, "undo": undo} {
		mayNot.get(page + "?" + form.Encode()).is(403).has("jobs.cancel")
		mayNot.post(page, form).is(403).has("Nothing was changed")
		may.get("operation?id=" + op.ID.String()).is(200).has("stopped")
	}
	may.confirm("operation-resume", form).is(303)
	may.get("operation?id=" + op.ID.String()).is(200).has("going on")
}

// Two operations that concern different tenants or times must not read alike.
func TestAnOperationSaysWhomItConcerns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	at := func(hour int) time.Time { return time.Date(2001, 2, 3, hour, 0, 0, 0, time.UTC) }
	for _, c := range []struct {
		of   operator.OperationSpec
		want string
	}{
		{operator.OperationSpec{Act: operator.ReplayLetters}, "all dead letters, failed before "},
		{
			operator.OperationSpec{Act: operator.DismissLetters, Filter: operator.DeadLetterFilter{Tenant: tenantA, FailedSince: at(4), FailedUntil: at(5)}},
			"tenant " + tenantA.String()[:8] + "…" + tenantA.String()[32:] + ", failed since 3 Feb 2001 04:00:00, failed before 3 Feb 2001 05:00:00",
		},
		{
			operator.OperationSpec{Act: operator.DismissLetters, Filter: operator.DeadLetterFilter{Tenant: outbox.RootTenant, CreatedSince: at(6), CreatedUntil: at(7)}},
			"tenant root, created since 3 Feb 2001 06:00:00, created before 3 Feb 2001 07:00:00",
		},
		{operator.OperationSpec{Act: operator.ReleaseJobs}, "status created"},
		{operator.OperationSpec{Act: operator.ReleaseJobs, Jobs: operator.OpenFilter{Tenant: tenantA, CreatedUntil: at(8)}}, "status created, tenant 0a000000…0001, created before 3 Feb 2001 08:00:00"},
	} {
		c.of.ID = outbox.NewID()
		started, err := operator.New(r.db).StartOperation(t.Context(), c.of)
		if err != nil {
			t.Fatal(err)
		}
		r.get("operation?id=" + started.ID.String()).is(200).has(" of " + c.want)
		r.get("operations").is(200).has(c.want)
		if started.Tenant == tenantA {
			r.as("a").get("operation?id=" + started.ID.String()).is(200).hasNot("tenant " + tenantA.String()[:8] + "…")
		}
	}
}

// The preview of an act on dead letters says what they are of, which of them are left alone, and how long it takes.
func TestAPreviewSaysWhatTheLettersAre(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 38 {
		r.deadLetter(tenantA, "mail", "smtp", "m")
	}
	r.deadLetter(tenantA, "bill", "card", "m")
	r.exec(`UPDATE outbox.jobs SET deadline = now() - interval '1 min' WHERE id = $1`, r.deadLetter(tenantB, "mail", "smtp", "m"))
	r.get("letters-replay").is(200).has("Kinds mail 39, bill 1", "Queues default 40", "Tenants 0a000000…0001 39, 0b000000…0001 1", "Errors smtp 39, card 1",
		"Of 1 the deadline has passed", "at 10 a second it takes 4.0 s", "It cannot be undone")
	r.as("a").get("letters-replay?kind=mail").is(200).has("Kinds mail 38", "None has a deadline that has passed").hasNot("Tenants", "bill")
	r.get("letters-dismiss?kind=bill").is(200).has("Kinds bill 1", "It cannot be undone").hasNot("mail 3")
}

// Two people confirm the same letters: each letter is replayed once, each by an act with an entry of its own, and the
// page of the operation that came too late names the other person.
func TestTheSecondPersonLearnsWhoWasFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const letters = 20
	for range letters {
		r.deadLetter(tenantA, "k", "c", "m")
	}
	other := r.deadLetter(tenantA, "other", "c", "m")
	first, second := r.as("a"), r.as("all")
	failure := fingerprint.Of("k", "c", "m")
	r.exec(`UPDATE outbox.jobs SET error_fingerprint = $1 WHERE kind = 'k'`, failure)
	pages := []string{"letters-replay?kind=k&error=" + failure, "letters-replay?kind=k&tenant=" + tenantA.String() + "&error=" + failure}
	forms := []url.Values{first.get(pages[0]).is(200).hiddenFields(), second.get(pages[1]).is(200).hiddenFields()}
	o := operator.New(r.db)
	for n, person := range []*rig{first, second} {
		forms[n].Set("reason", "the relay is back")
		person.post("letters-replay", forms[n]).is(303)
		if n == 0 {
			if _, err := o.As(operator.Actor{Name: "grace"}).StepOperation(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := o.As(operator.Actor{Name: "grace"}).Retry(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := o.StepOperation(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	all, err := o.Operations(t.Context(), outbox.ID{}, outbox.ID{}, 10)
	if err != nil || len(all) != 2 || all[0].Done+all[1].Done != letters {
		t.Fatalf("the operations are %+v, %v; want two that have replayed %d together", all, err, letters)
	}
	if n := r.audited("job.replay", "the relay is back"); n != letters {
		t.Errorf("the audit has %d replays, want %d", n, letters)
	}
	r.get("operation?id="+all[0].ID.String()).is(200).has("0 replayed of 0", "a was first with 20 jobs", "job.replay").hasNot("grace was first", "all was first")
	r.get("operation?id=" + all[1].ID.String()).is(200).hasNot("was first")
}

// Two people replay letters of one kind that died of different errors: Ada's operation leaves one of hers alone, with
// which Grace was first, and Grace has replayed five others, dismissed one and read one. Ada's page counts one job.
func TestOnlyWhatAnOperationLeftAloneIsSaidToBeAnothers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const mine, others = "relay down", "no such mailbox"
	letter := func(message string) outbox.ID {
		id := r.deadLetter(tenantA, "mail", "smtp", message)
		r.exec(`UPDATE outbox.jobs SET error_fingerprint = $2 WHERE id = $1`, id, fingerprint.Of("mail", "smtp", message))
		return id
	}
	first := letter(mine)
	for range 3 {
		letter(mine)
	}
	o := operator.New(r.db)
	grace := o.As(operator.Actor{Name: "grace", RequestID: "graces"})
	start := func(actor string) operator.Operation {
		op, err := o.As(operator.Actor{Name: actor, RequestID: "of " + actor}).StartOperation(t.Context(), operator.OperationSpec{
			Act: operator.ReplayLetters, Filter: operator.DeadLetterFilter{Fingerprint: fingerprint.Of("mail", "smtp", mine)},
		})
		if err != nil {
			t.Fatal(err)
		}
		return op
	}
	finish := func(op operator.Operation) operator.Operation {
		for op.FinishedAt.IsZero() {
			if _, err := o.StepOperation(t.Context()); err != nil {
				t.Fatal(err)
			}
			var err error
			if op, err = o.Operation(t.Context(), outbox.ID{}, op.ID); err != nil {
				t.Fatal(err)
			}
		}
		return op
	}
	ada := start("ada")
	for range 5 {
		if err := grace.Retry(t.Context(), letter(others)); err != nil {
			t.Fatal(err)
		}
	}
	if err := grace.Retry(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	r.exec(`INSERT INTO outbox.audit (actor, request_id, act, tenant_id, job_id, queue) SELECT 'grace', 'graces', 'payload.read', tenant_id, id, queue FROM outbox.jobs`)
	ada = finish(ada)
	if ada.Done != 3 || ada.Passed != 1 {
		t.Fatalf("the operation has done %d and left %d alone, want 3 and 1", ada.Done, ada.Passed)
	}
	// What the operation itself has done, before and after, hides nobody.
	r.exec(`INSERT INTO outbox.audit (actor, request_id, act, tenant_id, job_id, queue, before, at)
		SELECT 'ada', 'of ada', 'job.replay', $1, gen_random_uuid(), 'default', '{"status": "dead"}', $2 FROM generate_series(1, 950)`, tenantA, ada.FinishedAt.Add(-time.Millisecond))
	page := r.get("operation?id="+ada.ID.String()).is(200).has("grace was first with 1 job", "job.replay").hasNot("payload.read")
	if strings.Contains(page.Body.String(), "data-every") {
		t.Error("the page of a finished operation is read again and again")
	}

	letter(mine)
	alone := start("ada")
	for range 5 {
		if err := grace.Retry(t.Context(), letter(others)); err != nil {
			t.Fatal(err)
		}
	}
	if page := r.get("operation?id=" + alone.ID.String()).is(200); !strings.Contains(page.Body.String(), "data-every") {
		t.Error("the page of an operation that goes on is not read again")
	}
	finish(alone)
	r.get("operation?id=" + alone.ID.String()).is(200).has("1 replayed of 1").hasNot("was first")
}

// Grace has replayed letters of two days ago. Ada then replays those that died more than a day ago: no preview has
// counted Grace's for her, and her operation leaves none alone.
func TestAnInstantInAFilterIsNoPreview(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := operator.New(r.db)
	graces, old := r.deadLetter(tenantA, "mail", "smtp", "m"), r.deadLetter(tenantA, "mail", "smtp", "m")
	r.exec(`UPDATE outbox.jobs SET failed_at = now() - interval '2 days' WHERE id = $1 OR id = $2`, graces, old)
	if err := o.As(operator.Actor{Name: "grace", RequestID: "graces"}).Retry(t.Context(), graces); err != nil {
		t.Fatal(err)
	}
	op, err := o.As(operator.Actor{Name: "ada", RequestID: "adas"}).StartOperation(t.Context(), operator.OperationSpec{
		Act: operator.ReplayLetters, Filter: operator.DeadLetterFilter{Kind: "mail", FailedUntil: time.Now().Add(-24 * time.Hour)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.StepOperation(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.get("operation?id=" + op.ID.String()).is(200).has("1 replayed of 1").hasNot("was first")
}

// A program embeds the console and runs no operations. The page of one that waits for it says so, and one that goes on
// says for how long.
func TestAnOperationThatNobodyCarriesOnSaysSo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.deadLetter(tenantA, "k", "c", "m")
	r.deadLetter(tenantA, "k", "c", "m")
	op, err := operator.New(r.db).StartOperation(t.Context(), operator.OperationSpec{Act: operator.ReplayLetters, PerSecond: 0.01})
	if err != nil {
		t.Fatal(err)
	}
	page := "operation?id=" + op.ID.String()
	r.get(page).is(200).has("0 replayed of 2, about 3 min 20 s left").hasNot("no process goes on")
	r.exec(`UPDATE outbox.operations SET next_at = now() - interval '2 minutes'`)
	r.get(page).is(200).has("no process goes on with it", "RunOperations").hasNot(" left")
	r.exec(`UPDATE outbox.operations SET stopped_at = now()`)
	r.get(page).is(200).hasNot("no process goes on")
}

// A handler's transaction takes longer than a preview waits. The letter that it stores is acted on, but not counted.
func TestAPreviewSaysThatALetterMayStillCome(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.deadLetter(tenantA, "k", "c", "m")
	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `INSERT INTO outbox.jobs (id, kind, payload, status, failed_at) VALUES (outbox.uuid_v7(), 'k', '', 'dead', clock_timestamp())`); err != nil {
		t.Fatal(err)
	}
	r.get("letters-dismiss?kind=k").is(200).has("1 dead letter", "that is one more")
}

// An operation that stores the jobs it concerns, because they are many, says how many it has stored.
func TestAnOperationThatCollectsItsJobsSaysHowFarItIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.operations (id, tenant_id, act, open_act, next_at, open_at, filter, per_second, matched, actor, reason, request_id)
		VALUES ('01976f0e-7a5c-7d3e-8f4b-000000000001', '` + tenantA.String() + `', 'replay', 'collect cancel', 'infinity', now(), '{"kind":"mail","statuses":["pending"],"as_of":"3:3:@0","collected":50000}', 0, 120000, 'ada', '', '')`)
	for _, page := range []string{"operations", "operation?id=01976f0e-7a5c-7d3e-8f4b-000000000001"} {
		r.as("a").get(page).is(200).has("collecting: 50\u202f000 of 120\u202f000 so far")
	}
}
