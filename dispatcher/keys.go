package dispatcher

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// keyedLook is what a queue's claim loop knows of the jobs that have a key. They
// have an index, a scan and a claiming statement of their own, so that the others
// pay nothing; a queue without any is not even looked at for them, but for a
// question that is part of the survey.
type keyedLook struct {
	on   bool      // there are such jobs, or have been lately
	seen time.Time // when there was one last
	scan scan

	reach  int       // candidates that the next claim looks at
	fits   bool      // all that the last claim looked at could run
	many   bool      // the last claim may have left more than go ahead
	again  bool      // the last claim may have left due jobs: it did not look, or as far as it could, or had no room
	passed int       // claims in a row that passed by jobs whose key somebody else had
	odd    bool      // whose turn it is when there is room for one
	plain  bool      // the last claim of jobs without a key left some
	next   time.Time // while it does, and the last look found little, not before
	turns  keyedTurns

	mu      sync.Mutex
	offered []pgtype.UUID // promoted by this process: they need not be searched for
}

const (
	minReach = 64
	maxReach = 2000
	// A first idea of what a candidate costs: a claim that blocks thousands is not
	// to be mistaken for a scan over dead entries.
	keyedCost   = 20 * time.Microsecond
	keyedPause  = 20 * time.Millisecond
	keyedLinger = 10 * time.Second // the statement of its own is made for this long after the last keyed job
	passedRetry = 5 * time.Millisecond
	maxOffered  = 4000 // beyond, the scan finds them
)

func newKeyedLook() keyedLook {
	return keyedLook{reach: minReach, scan: scan{nearCost: keyedCost}}
}

// found notes that there are jobs with a key.
func (k *keyedLook) found() { k.on, k.seen = true, time.Now() }

// offer names jobs that are due now. Any goroutine may call it.
func (k *keyedLook) offer(id pgtype.UUID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.offered) < maxOffered {
		k.offered = append(k.offered, id)
	}
}

// hasOffers reports whether jobs were offered that no claim has looked at yet.
func (k *keyedLook) hasOffers() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.offered) > 0
}

func (k *keyedLook) takeOffers(most int) []pgtype.UUID {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := min(len(k.offered), max(most, 0))
	taken := slices.Clone(k.offered[:n])
	k.offered = slices.Delete(k.offered, 0, n)
	return taken
}

// claimBoth gives jobs with and without a key a part of the room: half each while
// there are more of both than fit. While it is not known that jobs without a key
// wait, an eighth is kept for finding out.
func (q *queue) claimBoth(ctx context.Context, db within, room int, hand func(*haul) error) (int, error) {
	k := &q.keyed
	k.again = true // nobody may go to sleep on a look that was left out
	claimed := 0
	if share := k.share(room, time.Now()); share > 0 {
		n, err := q.claimKeyed(ctx, db, share, hand)
		if err != nil {
			return 0, err
		}
		claimed = n
	}
	if room -= claimed; room == 0 {
		return claimed, nil
	}
	n, err := q.claimPlain(ctx, db, room, hand)
	k.plain = err == nil && n == room
	return claimed + n, err
}

// share is the part of the room that jobs with a key may take now.
func (k *keyedLook) share(room int, now time.Time) int {
	switch {
	case k.plain && now.Before(k.next):
		return 0
	case room == 1: // in turns
		k.odd = !k.odd
		if k.odd {
			return 0
		}
		return 1
	case k.plain:
		return room / 2
	}
	return room - max(room/8, 1)
}

// claimKeyed leases up to room jobs that have a key.
func (q *queue) claimKeyed(ctx context.Context, db within, room int, hand func(*haul) error) (int, error) {
	k := &q.keyed
	room = min(room, k.turns.most(time.Now()))
	if k.turns.behind && !db.limits { // a limited claim has looked before it held the queue
		if err := q.lookForTurns(ctx, room); err != nil {
			return 0, err
		}
	}
	found := k.turns.take()
	started := time.Now()
	depth := k.scan.depth(started)
	priorities, fromRunAt, fromID := k.scan.from(depth)
	reach := 2 * room
	if k.fits { // what is looked at and not taken is work for nothing
		reach = room + room/8
	}
	also := found.jobs(false)
	reach = min(max(reach, k.reach, len(also)), maxReach) // of either sort
	also = append(also, k.takeOffers(reach-len(also))...)

	bound, cancel := bounded(context.WithoutCancel(ctx)) // as in claimPlain
	defer cancel()
	rows, _ := db.Query(bound, sqlgen.ClaimKeyedJobs, q.worker, interval(q.config.LeaseTTL), // its error is also that of Err
		priorities, fromRunAt, fromID, q.claimable(), also, int32(room), int32(reach), q.name, db.limits)
	var done tally
	h := q.readClaim(rows, room, started, &done)
	if h.err != nil {
		k.scan.charge(depth, started, time.Now())
		for _, id := range also {
			k.offer(id)
		}
		return 0, hand(h)
	}
	slices.SortFunc(h.claimed, byUrgency)
	k.scan.noteCost(depth, started, time.Now(), int(done.looked))
	k.note(done, len(h.claimed), room, reach)
	k.turns.noteCost(time.Since(started), len(h.claimed))
	h.halted = done.halted
	h.learn = func() {
		k.scan.advance(started, found.others(h.claimed))
		if found.goAhead(h.claimed); found != nil {
			takeTurns(h.claimed)
		}
	}
	return len(h.claimed), hand(h)
}

// claimKeyedAhead is claimAhead for jobs with a key.
func (q *queue) claimKeyedAhead(ctx context.Context, room int) (int, error) {
	k := &q.keyed
	if err := q.lookForTurns(ctx, room); err != nil {
		return 0, err
	}
	also := k.turns.take().jobs(true)
	if len(also) == 0 {
		return 0, nil
	}
	bound, cancel := bounded(context.WithoutCancel(ctx)) // as in claimPlain
	defer cancel()
	var done tally
	started := time.Now()
	rows, _ := q.pool.Query(bound, sqlgen.ClaimKeyedJobs, q.worker, interval(q.config.LeaseTTL), // its error is also that of Err
		[]int16{}, []pgtype.Timestamptz{}, []pgtype.UUID{}, q.claimable(), also, int32(room), int32(len(also)), q.name, false)
	h := q.readClaim(rows, room, started, &done)
	h.halted = done.halted
	h.learn = func() {
		for _, a := range h.claimed { // there is no room for them in the buffer
			a.ahead = true
		}
	}
	return len(h.claimed), q.take(ctx, h)
}

// note learns from a claim how far the next one has to look: many jobs of a few
// keys at the front are blocked in bulk.
func (k *keyedLook) note(done tally, claimed, room, reach int) {
	looked := int(done.looked)
	if looked > 0 {
		k.seen = time.Now()
	}
	k.next = time.Time{}
	if claimed < room/4 { // a commit for a job or two would hold up thousands of the others
		k.next = time.Now().Add(keyedPause)
	}
	k.fits = done.blocked == 0 && done.passed == 0
	k.many = looked > sparse
	k.turns.behind = looked >= reach || claimed >= room
	k.again = done.promoted > 0 || claimed >= room || (looked >= reach && int(done.blocked)+claimed > 0)
	switch {
	case claimed >= room || claimed > looked/2:
		k.reach = minReach
	case looked >= reach && claimed < looked/4:
		k.reach = min(2*reach, maxReach)
	}
	if k.passed++; done.passed == 0 {
		k.passed = 0
	}
}

// surveyKeyed is the survey's part for jobs with a key.
func (q *queue) surveyKeyed(ctx context.Context) (sleep time.Duration, more bool, err error) {
	k := &q.keyed
	sleep, more, err = q.surveyScan(ctx, &k.scan, func(ctx context.Context, p sqlgen.SurveyLevelsParams) ([]sqlgen.SurveyLevelsRow, error) {
		rows, err := q.db.SurveyKeyedLevels(ctx, sqlgen.SurveyKeyedLevelsParams{
			Priorities: p.Priorities, Queue: p.Queue, Since: p.Since, Above: p.Above, Below: p.Below,
		})
		same := make([]sqlgen.SurveyLevelsRow, len(rows))
		for i, row := range rows {
			same[i] = sqlgen.SurveyLevelsRow(row)
		}
		return same, err
	})
	if err != nil {
		return sleep, more, err
	}
	if k.passed > 0 { // soon, but not for ever: somebody may hold a key's row for an hour
		sleep = min(sleep, passedRetry<<min(k.passed-1, 8))
	}
	// Only after a look at all of them may the survey's cheaper question do again.
	if _, notAll := k.scan.wideAfter(time.Now()); !more && !notAll && time.Since(k.seen) > keyedLinger {
		k.on = false
	}
	return sleep, more || k.again || k.hasOffers(), nil
}

// tally is what the rows without a job tell of a keyed claim.
type tally struct {
	looked, passed, blocked, promoted int32
	halted                            []keyName // something of them was blocked
	none                              [4]any
}

func (t *tally) read(rows pgx.Rows, queue string) error {
	var tenant pgtype.UUID
	var key *string
	err := rows.Scan(nil, &tenant, nil, nil, nil, nil, nil, nil, &key, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil,
		&t.looked, &t.passed, &t.blocked, &t.promoted) // the last row says them
	if err == nil && key != nil {
		t.halted = append(t.halted, keyName{tenant.Bytes, queue, *key})
	}
	return err
}

// ignored are the columns of the tally in the other rows.
func (t *tally) ignored() []any {
	if t == nil {
		return nil
	}
	return t.none[:]
}
