package console

import (
	"encoding/json"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

const keysParams = "tenant queue parked after_since after_tenant after_queue after_key"

// keyList is a page of keys that block jobs.
type keyList struct {
	keys   []operator.Key
	parked bool
	first  bool // it is the first page
}

func (s *site) keys(v *visit) (err error) {
	f := operator.KeyFilter{Tenant: v.tenant(), Queue: v.param("queue"), Parked: v.param("parked") != ""}
	if tenant := v.param("tenant"); tenant != "" {
		if f.Tenant, err = v.tenantParam(tenant); err != nil {
			return err
		}
	}
	if f.After, err = v.keyPlace(); err != nil {
		return err
	}
	l := keyList{parked: f.Parked, first: f.After == (operator.KeyPlace{})}
	if l.keys, err = v.operator.Keys(v.ctx(), f); err != nil {
		return err
	}
	return v.render(keysPage(v, l))
}

// ofKeys returns the conditions of the list of keys, without its place, and the pairs, which override them.
func (v *visit) ofKeys(pairs ...string) []string {
	conditions := []string{"tenant", v.param("tenant"), "queue", v.param("queue"), "parked", v.param("parked")}
	return append(conditions, pairs...)
}

// keyPlace returns where the page begins; zero means at the first key.
func (v *visit) keyPlace() (p operator.KeyPlace, err error) {
	p.Queue, p.Key = v.param("after_queue"), v.param("after_key")
	if p.Key == "" {
		return operator.KeyPlace{}, nil
	}
	if since := v.param("after_since"); since != "" {
		if p.BlockedSince, err = time.Parse(time.RFC3339Nano, since); err != nil {
			return p, unreadable("after_since", "is no instant")
		}
	}
	if p.Tenant, err = outbox.ParseID(v.param("after_tenant")); err != nil {
		return p, unreadable("after_tenant", "is no tenant’s id")
	}
	return p, nil
}

// after returns the parameters of the page behind a key.
func after(k operator.Key) []string {
	p := k.Place()
	pairs := []string{"after_tenant", p.Tenant.String(), "after_queue", p.Queue, "after_key", p.Key}
	if !p.BlockedSince.IsZero() {
		pairs = append(pairs, "after_since", p.BlockedSince.UTC().Format(time.RFC3339Nano))
	}
	return pairs
}

// shownKey is a key with its jobs.
type shownKey struct {
	operator.Key
	jobs    []operator.Job
	next    outbox.ID // before which to search on for more of them; zero if these are all
	blocks  int       // the dead letters that unblocking it would run again
	retried int       // those that run again because it was just unblocked; -1 if it was not
}

func (s *site) key(v *visit) error {
	name, err := v.keyName()
	if err != nil {
		return err
	}
	var k shownKey
	if k.Key, err = v.operator.Key(v.ctx(), name); err != nil {
		k.KeyName = name
		v.again = place{"Jobs that had it", string(k.search().link())}
		return err
	}
	tenant := name.Tenant
	if tenant.IsZero() {
		tenant = outbox.RootTenant
	}
	found, err := v.operator.Page(v.ctx(), operator.Filter{
		Tenant: tenant, Queue: k.Queue, Key: k.Key.Key,
		Statuses: []outbox.Status{
			outbox.Created, outbox.Pending, outbox.Blocked, outbox.Running, outbox.Retrying,
			outbox.Failed, outbox.Dead,
		},
	})
	if err != nil {
		return err
	}
	k.jobs, k.next = found.Jobs, found.Next
	if k.DeadLetters > 0 { // else nothing blocks it
		blocks, err := v.operator.BlockingLetters(v.ctx(), name)
		if err != nil {
			return err
		}
		k.blocks = len(blocks)
	}
	if k.retried, err = v.justUnblocked(k.KeyName); err != nil {
		return err
	}
	return v.render(keyPage(v, k))
}

// justUnblockedFor is for how long the page of a key says what was done to it.
const justUnblockedFor = time.Hour

// justUnblocked returns how many dead letters the request that the parameters name has run again by unblocking the key
// within the last hour; -1 if it has not. It reads as much of the audit as a page of it takes.
func (v *visit) justUnblocked(name operator.KeyName) (retried int, err error) {
	request := v.param("request")
	if request == "" {
		return -1, nil
	}
	done, err := v.operator.AuditPage(v.ctx(), operator.AuditFilter{
		RequestID: request, Act: "key.unblock", Queue: name.Queue, Target: name.Key, Tenant: name.Tenant, Limit: 1,
		Since: v.now.Add(-justUnblockedFor),
	})
	var after struct{ Retried int }
	if err != nil || len(done.Entries) == 0 || json.Unmarshal(done.Entries[0].After, &after) != nil {
		return -1, err
	}
	return after.Retried, nil
}

// search returns the search for all jobs of the key.
func (k shownKey) search() search {
	return search{tenant: k.Tenant, queue: k.Queue, key: k.Key.Key}
}

// unblocks reports whether unblocking the key would change anything.
func (k shownKey) unblocks() bool { return k.blocks > 0 || !k.ParkedSince.IsZero() }

// keyPairs returns the parameters of a key's page.
func keyPairs(n operator.KeyName) []string {
	return []string{"tenant", n.Tenant.String(), "queue", n.Queue, "key", n.Key}
}

// unblockCommand returns the command line that unblocks a key.
func unblockCommand(n operator.KeyName) string {
	return "posthaste keys unblock " + shellQuoted(n.Key) + " --queue " + shellQuoted(n.Queue) + tenantFlag(n.Tenant)
}

// standing describes the state of a key.
func standing(k operator.Key) string {
	switch {
	case !k.ParkedSince.IsZero():
		return "parked"
	case !k.ParkedFor.IsZero():
		return "behind a dead letter"
	case k.Blocked > 0 && k.Running > 0:
		return "at its limit"
	case k.Blocked > 0:
		return "blocked"
	}
	return "free"
}
