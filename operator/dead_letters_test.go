package operator_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/fingerprint"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// fail makes a job of a kind and has it fail as its worker would have it.
func fail(t *testing.T, db *pgxpool.Pool, kind string, opts outbox.Options, status outbox.Status, code, message string) outbox.ID {
	t.Helper()
	id := enqueue(t, db, kind, opts)
	queue := opts.Queue
	if queue == "" {
		queue = engine.DefaultQueue
	}
	failAgain(t, db, queue, id, status, code, message)
	return id
}

func failAgain(t *testing.T, db *pgxpool.Pool, queue string, id outbox.ID, status outbox.Status, code, message string) {
	t.Helper()
	epoch, ok := claim(t, db, queue)[id]
	if !ok {
		t.Fatalf("job %s could not be claimed", id)
	}
	j := job(t, operator.New(db), id)
	stored, err := sqlgen.New(db).SettleUnfinished(t.Context(), sqlgen.SettleUnfinishedParams{
		Ids: []pgtype.UUID{{Bytes: id, Valid: true}}, Epochs: []int64{epoch}, Statuses: []string{string(status)},
		Delays: []pgtype.Interval{{}}, ErrorCodes: []string{code}, ErrorMessages: []string{message}, Stacks: []string{""},
		Fingerprints: []string{fingerprint.Of(j.Kind, code, message)}, Worker: "worker-1",
	})
	if err != nil || len(stored) != 1 {
		t.Fatalf("settled %d, %v", len(stored), err)
	}
}

func deadLetters(t *testing.T, o *operator.Operator, f operator.DeadLetterFilter) (ids []outbox.ID) {
	t.Helper()
	letters, err := o.DeadLetters(t.Context(), f, outbox.ID{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range letters {
		ids = append(ids, l.ID)
	}
	return ids
}

func TestDeadLettersAreFilteredEverywhereAlike(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	tenant := outbox.NewID()
	first := fail(t, db, "mail", outbox.Options{}, outbox.Dead, "smtp", "mailbox of 7 is full")
	second := fail(t, db, "mail", outbox.Options{Queue: "post", Key: outbox.KeyRules{Name: "k"}}, outbox.Failed, "smtp", "mailbox of 8 is full")
	third := fail(t, db, "bill", outbox.Options{Tenant: tenant}, outbox.Failed, "gone", "no account")
	reach(t, db, outbox.Retrying)
	reach(t, db, outbox.Succeeded)
	letters, err := o.DeadLetters(t.Context(), operator.DeadLetterFilter{}, outbox.ID{}, 0)
	if err != nil || len(letters) != 3 {
		t.Fatalf("dead letters = %+v, %v, want 3", letters, err)
	}
	newest, middle := letters[0], letters[1]
	if middle.Kind != "mail" || middle.Queue != "post" || middle.Status != outbox.Failed || middle.ErrorCode != "smtp" || middle.FailedAt.IsZero() ||
		middle.Fingerprint == "" || middle.Fingerprint != letters[2].Fingerprint || middle.Payload != nil || middle.PayloadBytes != 7 {
		t.Errorf("a dead letter is %+v", middle)
	}

	deadline := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	exec(t, db, `UPDATE outbox.jobs SET deadline = $2, parent_id = $3 WHERE id = $1`, second, deadline, first)
	if letters, err = o.DeadLetters(t.Context(), operator.DeadLetterFilter{Queue: "post"}, outbox.ID{}, 0); err != nil || !letters[0].Deadline.Equal(deadline) || letters[0].Parent != first {
		t.Errorf("a dead letter is %+v, %v; want its deadline %s and its parent %s", letters, err, deadline, first)
	}
	for name, c := range map[string]struct {
		filter operator.DeadLetterFilter
		want   []outbox.ID
	}{
		"all":           {operator.DeadLetterFilter{}, []outbox.ID{third, second, first}},
		"kind":          {operator.DeadLetterFilter{Kind: "bill"}, []outbox.ID{third}},
		"queue":         {operator.DeadLetterFilter{Queue: "post"}, []outbox.ID{second}},
		"status":        {operator.DeadLetterFilter{Status: outbox.Dead}, []outbox.ID{first}},
		"code":          {operator.DeadLetterFilter{ErrorCode: "smtp"}, []outbox.ID{second, first}},
		"fingerprint":   {operator.DeadLetterFilter{Fingerprint: middle.Fingerprint}, []outbox.ID{second, first}},
		"key":           {operator.DeadLetterFilter{Key: "k"}, []outbox.ID{second}},
		"tenant":        {operator.DeadLetterFilter{Tenant: tenant}, []outbox.ID{third}},
		"created since": {operator.DeadLetterFilter{CreatedSince: newest.CreatedAt}, []outbox.ID{third}},
		"created until": {operator.DeadLetterFilter{CreatedUntil: middle.CreatedAt}, []outbox.ID{first}},
		"failed since":  {operator.DeadLetterFilter{FailedSince: middle.FailedAt}, []outbox.ID{third, second}},
		"failed until":  {operator.DeadLetterFilter{FailedUntil: newest.FailedAt}, []outbox.ID{second, first}},
		"all of it":     {operator.DeadLetterFilter{Kind: "mail", Queue: "post", Status: outbox.Failed, Key: "k", Tenant: outbox.RootTenant}, []outbox.ID{second}},
		"nothing":       {operator.DeadLetterFilter{Kind: "none"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := deadLetters(t, o, c.filter); !slices.Equal(got, c.want) {
				t.Errorf("listed %v, want %v", got, c.want)
			}
			if n, err := o.CountDeadLetters(t.Context(), c.filter); err != nil || n != int64(len(c.want)) {
				t.Errorf("counted %d, %v, want %d", n, err, len(c.want))
			}
			// What would be acted on, in a transaction that is rolled back.
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(t.Context()) }()
			var found []outbox.ID
			for p, err := range operator.Within(tx).DismissDeadLetters(t.Context(), c.filter) {
				if err != nil || p.Matched != int64(len(c.want)) {
					t.Errorf("acting: %+v, %v", p, err)
				}
			}
			rows, _ := tx.Query(t.Context(), `SELECT id FROM outbox.history WHERE status = 'dismissed' ORDER BY id DESC`)
			for rows.Next() {
				var id outbox.ID
				if err := rows.Scan(&id); err != nil {
					t.Fatal(err)
				}
				found = append(found, id)
			}
			if !slices.Equal(found, c.want) {
				t.Errorf("acted on %v, want %v", found, c.want)
			}
		})
	}
}

func TestDeadLettersArePaged(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	var want []outbox.ID
	for i := range 5 {
		want = append(want, fail(t, db, "mail", outbox.Options{}, outbox.Dead, "smtp", fmt.Sprint(i)))
	}
	slices.Reverse(want)
	var got []outbox.ID
	var before outbox.ID
	for {
		page, err := o.DeadLetters(t.Context(), operator.DeadLetterFilter{}, before, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range page {
			got = append(got, l.ID)
		}
		if len(page) < 2 {
			break
		}
		before = page[1].ID
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages have %v, want %v", got, want)
	}
	_, err := o.DeadLetters(t.Context(), operator.DeadLetterFilter{Status: outbox.Retrying}, outbox.ID{}, 0)
	_, negative := o.DeadLetterGroups(t.Context(), operator.DeadLetterFilter{}, -1)
	_, odd := o.CountDeadLetters(t.Context(), operator.DeadLetterFilter{Key: "\xff"})
	for _, err := range []error{err, negative, odd} {
		if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
			t.Errorf("got %v, want an InvalidError", err)
		}
	}
}

func TestDeadLettersAreGrouped(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	var mails []outbox.ID
	for i := range 3 {
		mails = append(mails, fail(t, db, "mail", outbox.Options{}, outbox.Dead, "smtp", fmt.Sprintf("mailbox of %d is full", i)))
	}
	bill := fail(t, db, "bill", outbox.Options{}, outbox.Failed, "smtp", "mailbox of 9 is full")
	strange := enqueue(t, db, "bill", outbox.Options{})
	claim(t, db, engine.DefaultQueue)
	if _, err := db.Exec(t.Context(), `UPDATE outbox.jobs SET status = 'dead', epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL WHERE id = $1`, strange); err != nil {
		t.Fatal(err)
	}
	groups, err := o.DeadLetterGroups(t.Context(), operator.DeadLetterFilter{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range groups {
		if g := &groups[i]; g.Oldest.IsZero() || g.Newest.Before(g.Oldest) || g.Jobs == 3 && !g.Newest.After(g.Oldest) {
			t.Errorf("the times of a group are %s and %s", g.Oldest, g.Newest)
		}
		groups[i].Oldest, groups[i].Newest = time.Time{}, time.Time{}
	}
	want := []operator.DeadLetterGroup{
		{Fingerprint: fingerprint.Of("mail", "smtp", "mailbox of 0 is full"), Kind: "mail", ErrorCode: "smtp", Message: "mailbox of 2 is full", Example: mails[2], Jobs: 3},
		{Kind: "bill", Example: strange, Jobs: 1},
		{Fingerprint: fingerprint.Of("bill", "smtp", "mailbox of 0 is full"), Kind: "bill", ErrorCode: "smtp", Message: "mailbox of 9 is full", Example: bill, Jobs: 1},
	}
	if diff := cmp.Diff(want, groups); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	few, err := o.DeadLetterGroups(t.Context(), operator.DeadLetterFilter{}, 1)
	if err != nil || len(few) != 1 || few[0].Jobs != 3 {
		t.Errorf("the largest group is %+v, %v, want the mails'", few, err)
	}
}

// A login that row security ties to a tenant counts its dead letters only, in one statement each for a bound, the sum
// and the parts, whatever its filter lacks.
func TestALoginOfATenantCountsItsDeadLetters(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"a tenant": outbox.NewID(), "the root tenant": outbox.RootTenant} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner, db := newRig(t)
			foreign := outbox.NewID()
			storeForeign(t, db, tenant, foreign)
			ctx := operator.WithTenant(t.Context(), tenant)
			if n, err := owner.CountDeadLetters(ctx, operator.DeadLetterFilter{}); err != nil || n != 3000 {
				t.Fatalf("the owner counts %d, %v; want all 3000", n, err)
			}
			for _, role := range []string{"outbox_api", "outbox_reader"} {
				var plans []string
				o := operator.New(pgtest.Login(t, db, role)).Planned(&plans)
				for _, f := range []operator.DeadLetterFilter{{}, {Tenant: tenant}, {Tenant: foreign}} {
					plans = nil
					want := int64(10)
					if f.Tenant == foreign {
						want = 0
					}
					if n, err := o.CountDeadLetters(ctx, f); err != nil || n != want {
						t.Errorf("%s of %+v: %d dead letters, %v; want %d", role, f, n, err, want)
					}
					parts, err := o.SplitDeadLetters(ctx, f)
					var sum int64
					for _, p := range parts {
						if sum += p.Jobs; p.Tenant != tenant {
							t.Errorf("%s of %+v: a part of %s", role, f, p.Tenant)
						}
					}
					if err != nil || sum != want {
						t.Errorf("%s of %+v: %d dead letters in parts, %v; want %d", role, f, sum, err, want)
					}
					if len(plans) != 3 {
						t.Errorf("%s of %+v: %d statements, want one each:\n%s", role, f, len(plans), strings.Join(plans, "\n"))
					}
				}
			}
		})
	}
}
