package operator_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func audit(t *testing.T, o *operator.Operator, f operator.AuditFilter) []operator.AuditEntry {
	t.Helper()
	entries, err := o.Audit(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func field(t *testing.T, object json.RawMessage, name string) string {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal(object, &fields); err != nil {
		t.Fatalf("%v in %s", err, object)
	}
	return fmt.Sprint(fields[name])
}

func TestEveryActIsRecorded(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	dead, _ := reach(t, db, outbox.Dead)
	failed, _ := reach(t, db, outbox.Failed)
	waiting := enqueue(t, db, "mail", outbox.Options{Queue: "post", Delay: time.Hour})
	ada := o.As(operator.Actor{Name: "ada", RequestID: "req-1"})
	for _, err := range []error{
		ada.Retry(t.Context(), dead),
		ada.Because("the mailbox is gone").Dismiss(t.Context(), failed),
		o.Retry(t.Context(), waiting),
		ada.Pause(t.Context(), "post"),
		ada.Pause(t.Context(), "post"), // changes nothing
		ada.Resume(t.Context(), "post"),
		ada.Resume(t.Context(), "post"), // changes nothing
	} {
		if err != nil {
			t.Fatal(err)
		}
	}

	type act struct {
		Actor, RequestID, Act, Queue, Reason, Was, Became string
		Job                                               outbox.ID
	}
	var got []act
	for _, e := range slices.Backward(audit(t, o, operator.AuditFilter{})) {
		if e.At.IsZero() || e.ID == 0 {
			t.Errorf("%s has no time or no id: %+v", e.Act, e)
		}
		a := act{e.Actor, e.RequestID, e.Act, e.Queue, e.Reason, "", "", e.JobID}
		if !e.JobID.IsZero() {
			a.Was, a.Became = field(t, e.Before, "status"), field(t, e.After, "status")
			if e.Tenant != outbox.RootTenant {
				t.Errorf("%s: tenant = %s, want the job's", e.Act, e.Tenant)
			}
		}
		got = append(got, a)
	}
	want := []act{
		{"ada", "req-1", "job.replay", "default", "", "dead", "pending", dead},
		{"ada", "req-1", "job.dismiss", "default", "the mailbox is gone", "failed", "dismissed", failed},
		{"unknown", "", "job.retry", "post", "", "pending", "pending", waiting},
		{"ada", "req-1", "queue.pause", "post", "", "", "", outbox.ID{}},
		{"ada", "req-1", "queue.resume", "post", "", "", "", outbox.ID{}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
}

func TestWhatIsRefusedIsNotRecorded(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	running, _ := reach(t, db, outbox.Running)
	for _, id := range []outbox.ID{running, outbox.NewID()} {
		if o.Retry(t.Context(), id) == nil || o.Dismiss(t.Context(), id) == nil {
			t.Fatal("the act was not refused")
		}
	}
	if entries := audit(t, o, operator.AuditFilter{}); len(entries) != 0 {
		t.Errorf("audit = %+v, want none", entries)
	}
}

func TestTheAuditIsFilteredAndPaged(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	job, _ := reach(t, db, outbox.Dead)
	for _, act := range []func() error{
		func() error { return o.As(operator.Actor{Name: "ada", RequestID: "r1"}).Pause(t.Context(), "a") },
		func() error { return o.As(operator.Actor{Name: "bob"}).Pause(t.Context(), "b") },
		func() error { return o.As(operator.Actor{Name: "ada"}).Retry(t.Context(), job) },
	} {
		if err := act(); err != nil {
			t.Fatal(err)
		}
	}
	all := audit(t, o, operator.AuditFilter{})
	if len(all) != 3 {
		t.Fatalf("acts = %d, want 3", len(all))
	}
	for name, tt := range map[string]struct {
		filter operator.AuditFilter
		want   []string
	}{
		"everything, newest first": {operator.AuditFilter{}, []string{"job.replay default", "queue.pause b", "queue.pause a"}},
		"an actor":                 {operator.AuditFilter{Actor: "ada"}, []string{"job.replay default", "queue.pause a"}},
		"an act":                   {operator.AuditFilter{Act: "queue.pause"}, []string{"queue.pause b", "queue.pause a"}},
		"a queue":                  {operator.AuditFilter{Queue: "b"}, []string{"queue.pause b"}},
		"a request":                {operator.AuditFilter{RequestID: "r1"}, []string{"queue.pause a"}},
		"a job":                    {operator.AuditFilter{JobID: job}, []string{"job.replay default"}},
		"a tenant":                 {operator.AuditFilter{Tenant: outbox.RootTenant}, []string{"job.replay default"}},
		"since":                    {operator.AuditFilter{Since: all[0].At}, []string{"job.replay default"}},
		"until":                    {operator.AuditFilter{Until: all[1].At}, []string{"queue.pause a"}},
		"a page":                   {operator.AuditFilter{Limit: 1}, []string{"job.replay default"}},
		"the page after that":      {operator.AuditFilter{Limit: 1, Before: all[0].ID}, []string{"queue.pause b"}},
		"a target that has none":   {operator.AuditFilter{Target: "k"}, nil},
	} {
		var got []string
		for _, e := range audit(t, o, tt.filter) {
			got = append(got, e.Act+" "+e.Queue)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
	for _, f := range []operator.AuditFilter{{Limit: -1}, {Before: -1}, {Actor: "a\x00"}} {
		_, err := o.Audit(t.Context(), f)
		if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
			t.Errorf("audit of %+v = %v, want an InvalidError", f, err)
		}
	}
}

func TestAnOddActorDoesNotStopTheAct(t *testing.T) {
	t.Parallel()
	o, _ := newRig(t)
	odd := operator.Actor{Name: strings.Repeat("ä", 150) + "\x00\xff", RequestID: "\x00" + strings.Repeat("\xf0", 300)}
	if err := o.As(odd).Because(strings.Repeat("€", 2000)).Pause(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	e := audit(t, o, operator.AuditFilter{})[0]
	if e.Actor != strings.Repeat("ä", 100)+"…" || !strings.HasSuffix(e.RequestID, "\uFFFD…") || len(e.Reason) > 2051 || !utf8.ValidString(e.Reason) || len(e.Reason) < 2040 {
		t.Errorf("recorded as %q, request %q, reason of %d bytes", e.Actor, e.RequestID, len(e.Reason))
	}
	if err := o.As(operator.Actor{}).Resume(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	if e := audit(t, o, operator.AuditFilter{})[0]; e.Actor != "unknown" {
		t.Errorf("recorded as %q, want unknown", e.Actor)
	}
}

// However long the audit is, a page reads a part of it; nothing is read of a time long before the one that is meant.
func TestAPageOfTheAuditReadsAPartOfIt(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox.audit (at, actor, act, queue) SELECT now() - (10 - n) * interval '40 minutes',
		CASE WHEN n IN (1, 9) THEN 'ada' ELSE 'bob' END, 'x.y', CASE WHEN n IN (1, 9) THEN 'reports' ELSE 'mail' END FROM generate_series(1, 9) AS n`); err != nil {
		t.Fatal(err)
	}
	all := audit(t, o, operator.AuditFilter{})
	for name, tt := range map[string]struct {
		filter       operator.AuditFilter
		found, pages int
	}{
		"all of it":      {operator.AuditFilter{Actor: "ada"}, 2, 5},
		"of a queue":     {operator.AuditFilter{Queue: "reports"}, 2, 5},
		"by full pages":  {operator.AuditFilter{Actor: "ada", Limit: 1}, 2, 6},
		"since a moment": {operator.AuditFilter{Actor: "ada", Since: all[0].At}, 1, 1},
		"nothing":        {operator.AuditFilter{Actor: "eve"}, 0, 5},
	} {
		found, pages := 0, 0
		for f := tt.filter; pages == 0 || f.Before > 0; pages++ {
			page, err := o.FirstAuditPage(t.Context(), f, 2)
			if err != nil {
				t.Fatal(err)
			}
			found, f.Before = found+len(page.Entries), page.Next
		}
		if whole := audit(t, o, tt.filter); found != tt.found || pages != tt.pages || tt.filter.Limit == 0 && len(whole) != tt.found {
			t.Errorf("%s: %d acts on %d pages, and %d at once; want %d on %d", name, found, pages, len(whole), tt.found, tt.pages)
		}
	}
}

// A page of a queue's acts reads a part of the audit, however few acts the queue has: no index has the acts on its
// jobs.
func TestAPageOfAQueuesActsReadsAPartOfTheAudit(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	exec(t, db, `INSERT INTO outbox.audit (actor, act, tenant_id, job_id, queue)
		SELECT 'ada', 'job.cancel', tenant, outbox.uuid_v7(), CASE WHEN n = 1 THEN 'reports' ELSE 'mail' END
		FROM generate_series(1, 20000) AS n, unnest($1::uuid[]) AS tenant`, []outbox.ID{outbox.RootTenant, outbox.NewID()})
	for _, tenant := range []outbox.ID{{}, outbox.RootTenant} {
		var plans []string
		page, err := o.Planned(&plans).AuditPage(t.Context(), operator.AuditFilter{Queue: "reports", Tenant: tenant})
		if err != nil || page.Next == 0 && len(page.Entries) == 0 {
			t.Errorf("of %s: %+v, %v; want the acts, or where to go on", tenant, page, err)
		}
		if len(plans) < 2 || strings.Contains(plans[0], "queue") || !strings.Contains(plans[1], "id >") {
			t.Errorf("of %s: the plans are %s; want first how far to read, whatever the queue, and then no further", tenant, strings.Join(plans, "\n\n"))
		}
	}
}

// A tenant's acts are found among those of others, of which there may be a million, by an index, root's too.
func TestATenantsActsAreReadAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := operator.New(db)
	tenant := outbox.NewID()
	for _, of := range []outbox.ID{outbox.RootTenant, tenant} {
		if _, err := db.Exec(t.Context(), `INSERT INTO outbox.audit (actor, act, tenant_id) SELECT 'ada', 'x.y', $1 FROM generate_series(1, 3)`, of.String()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox.audit (actor, act, tenant_id) SELECT 'zoe', 'x.y', $1 FROM generate_series(1, 3000)`, outbox.NewID().String()); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]operator.AuditFilter{"root": {Tenant: outbox.RootTenant}, "a tenant": {Tenant: tenant}} {
		var plans []string
		entries, err := o.Planned(&plans).Audit(t.Context(), f)
		if err != nil || len(entries) != 3 {
			t.Errorf("%s: %d entries, %v; want 3", name, len(entries), err)
		}
		if len(plans) != 1 || !strings.Contains(plans[0], "audit_tenant_idx") || strings.Contains(plans[0], "Sort") {
			t.Errorf("%s: its plan is %s", name, plans)
		}
	}
}

// The acts on a queue are those on the queue and its keys. However many acts on its jobs there are, none is read.
func TestActsOnAQueueAreNotThoseOnItsJobs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o, tenant := operator.New(db), outbox.NewID()
	exec(t, db, `INSERT INTO outbox.audit (actor, act, queue, tenant_id, job_id, target) VALUES
		('ada', 'queue.pause', 'mail', NULL, NULL, NULL), ('ada', 'job.retry', 'mail', $1, gen_random_uuid(), NULL),
		('ada', 'key.unblock', 'mail', $1, NULL, 'k'), ('ada', 'queue.pause', 'other', NULL, NULL, NULL)`, tenant)
	for name, c := range map[string]struct {
		tenant outbox.ID
		limit  int
		want   []string
	}{
		"any tenant": {want: []string{"key.unblock", "queue.pause"}},
		"the newest": {limit: 1, want: []string{"key.unblock"}},
		"one tenant": {tenant: tenant, want: []string{"key.unblock"}},
	} {
		var got []string
		entries, err := o.QueueActs(t.Context(), "mail", c.tenant, c.limit)
		for _, e := range entries {
			got = append(got, e.Act)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
	if _, err := o.QueueActs(t.Context(), "mail", tenant, -1); err == nil {
		t.Error("a negative limit is accepted")
	}
}
