package relay

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

const (
	noDestinationLimit = time.Hour // before messages to one that is missing, or silent to one key, are refused
	endlessRound       = 24 * time.Hour
)

// These limit the messages that wait for destinations: all of them are read again in each round, and each may be a hole
// of the stored cursor, besides those of open transactions (see maxHoles). Tests set a lower limit.
var (
	maxWaiting      = 50_000
	maxWaitingBytes = 32 * maxPageBytes
)

// destinations records which destinations of a sink accept nothing, and which messages wait for them. Only the
// publishing goroutine uses it.
//
// A destination that is missing, full or without a leader is an outage of its own, and others go on. If a part of it
// fails on its own (see [Divider]), that part is the destination here. The log is
// published in rounds. In each, one message shows whether the destination accepts messages again. If it does not, the
// destination is shut for this round: its other messages, and later ones of their keys, are not sent but wait. The
// reader passes them, and the cursor that is stored has holes at their positions:
//
//	log      1 of A    2 of B, key k    3 of A    4 of C, key k    5 of A
//	round    sent      sent: B is shut  sent      waits for 2      sent      stored: up to 5, with holes at 2 and 4
//	round              sent: B accepts            sent                       stored: up to 5
//
// A round ends when it is time to try again, and the next one begins with the holes, so what waited is published before
// newer messages of its key. However long it reads what waited, it ends only after it has come to newer events: they
// would never be published while rounds are short. An outage of the broker does not end a round. If too many messages
// wait, nothing more is read until the round ends: the sink stands still, and says so ([CodeWaiting]).
type destinations struct {
	now     func() time.Time
	missing map[string]incident // those that are missing, by the name under which that is stored
	changed bool                // missing was changed since it was last given to the ownership to store
	retry   backoff.Backoff     // between rounds
	before  map[string]bool     // those that were shut in the round before and have not accepted a message since
	silent  map[string]*silence // those that do not answer
	turns   int                 // of silent ones, so far
	waited  int                 // how many messages waited at the end of the round before

	// These describe the round.
	newer   bool          // it has come to events that are newer than those that waited
	lasts   time.Duration // for how long it then goes on; 0: without an end, because no destination is shut
	ends    time.Time     // zero if it has no end, or none yet
	shut    map[string]bool
	why     *failure // what the first one of them answered
	waiting []int64  // positions of the messages that wait
	bytes   int      // of those messages
	keys    keys     // of those messages
	turn    string   // the silent destination that is tried; "" means the first that is met
}

// incident is a time in which a destination has been missing.
type incident struct {
	since time.Time
	met   time.Time // when a message to it last failed
}

// isOver reports whether no message has met the destination for so long that it may have been there meanwhile.
func (i incident) isOver(now time.Time) bool { return now.Sub(i.met) > noDestinationLimit }

// shown returns the part of a destination that may be shown: the rest, a query, may be a secret.
func shown(destination string) string {
	name, _, _ := strings.Cut(destination, "?")
	return name
}

// stored returns the name under which a destination is stored, which may be shown and is one for each destination.
func stored(destination string) string {
	name, query, found := strings.Cut(destination, "?")
	if !found {
		return destination
	}
	sum := sha256.Sum256([]byte(query))
	return name + "?" + hex.EncodeToString(sum[:8])
}

// isShut reports whether messages to a destination wait for the next round.
func (d *destinations) isShut(destination string) bool { return d.shut[destination] }

// isTried reports whether one message has to show whether a destination accepts messages again. Those to a destination
// that has been missing for too long are all sent, since each of them is refused.
func (d *destinations) isTried(destination string) bool {
	missing, is := d.missing[stored(destination)]
	return d.before[destination] && !(is && d.now().Sub(missing.since) > noDestinationLimit)
}

// failed records that a destination accepts nothing, and returns for how long it has been missing; 0 if it is there, or
// if no message has met it for so long that it may have been. If the record is full, a new destination replaces one
// whose messages are refused by now, or is not recorded yet. It replaces no other: if a page had more missing
// destinations than the record holds, each would be dropped before its hour is over.
func (d *destinations) failed(destination, code string) time.Duration {
	if code != CodeNoDestination {
		d.found(destination)
		return 0
	}
	name, now := stored(destination), d.now()
	missing, is := d.missing[name]
	if !is {
		maps.DeleteFunc(d.missing, func(_ string, other incident) bool {
			return len(d.missing) >= maxBatch && now.Sub(other.since) > noDestinationLimit
		})
		if len(d.missing) >= maxBatch {
			return 0
		}
	}
	if !is || missing.isOver(now) {
		missing.since = now
		d.changed = true
	}
	missing.met = now
	d.missing[name] = missing
	return now.Sub(missing.since)
}

// found records that a destination is not missing.
func (d *destinations) found(destination string) {
	if len(d.missing) == 0 {
		return
	}
	name := stored(destination)
	if _, was := d.missing[name]; was {
		delete(d.missing, name)
		d.changed = true
	}
}

// shuts records that messages to a destination wait for the next round.
func (d *destinations) shuts(destination string, why *failure) {
	if d.shut == nil {
		d.why = why
	}
	d.shut = with(d.shut, destination)
	if d.lasts == 0 {
		d.lasts = d.retry.Next()
	}
	d.setEnd()
}

// setEnd gives the round an end, if it has come so far.
func (d *destinations) setEnd() {
	if d.newer && d.lasts > 0 && d.ends.IsZero() {
		d.ends = time.Now().Add(d.lasts)
	}
}

// wait records that an event waits, and returns false if too many do.
func (d *destinations) wait(e *Event) bool {
	if len(d.waiting) >= maxWaiting || d.bytes >= maxWaitingBytes {
		return false
	}
	d.waiting = append(d.waiting, e.Position)
	d.bytes += e.bytes
	d.keys.add(e)
	return true
}

// tooMany returns why the sink stands still when no more messages may wait. The round comes to nothing newer.
func (d *destinations) tooMany() *failure {
	d.newer = true
	d.setEnd()
	return &failure{code: CodeWaiting, err: fmt.Errorf("%d messages with %d bytes wait, and more may not: %w",
		len(d.waiting), d.bytes, d.why.err)}
}

// waits returns how many messages wait. Until the round has come to newer events, it does not know about those that
// waited in the round before.
func (d *destinations) waits() int {
	if d.newer {
		return len(d.waiting)
	}
	return max(len(d.waiting), d.waited)
}

// isBehind reports whether an event of the same key waits.
func (d *destinations) isBehind(e *Event) bool { return d.keys.has(e) }

// silences records that a message was unknown while others were accepted, and whether one of those had the same
// destination.
func (d *destinations) silences(destination, id string, another bool) {
	if d.silent == nil {
		d.silent = map[string]*silence{}
	}
	now := d.now()
	d.silent[destination] = &silence{id: id, since: now, met: now, another: another}
}

// shutUntried shuts a silent destination if it is the turn of another one, and reports whether it has.
func (d *destinations) shutUntried(destination string) bool {
	s := d.silent[destination]
	if s == nil || s.another {
		return false
	}
	if d.turn == "" {
		d.take(destination)
	}
	if d.turn == destination {
		return false
	}
	d.shuts(destination, s.why)
	return true
}

// take gives a silent destination its turn.
func (d *destinations) take(destination string) {
	d.turns++
	d.turn = destination
	d.silent[destination].turn = d.turns
}

// nextTurn gives that destination the turn that was silent in the round before, and has not had it the longest.
func (d *destinations) nextTurn() {
	var next string
	for destination := range d.before {
		s := d.silent[destination]
		if s != nil && !s.another && (next == "" || s.turn < d.silent[next].turn) {
			next = destination
		}
	}
	if next != "" {
		d.take(next)
	}
}

// isTrial reports whether a message must be sent alone, because its destination may be silent or the message at fault.
func (d *destinations) isTrial(destination, id string) bool {
	s := d.silent[destination]
	return s != nil && (!s.another || s.id == id)
}

// trial returns one of the messages that must be sent alone.
func (d *destinations) trial(of []outgoing) []outgoing {
	place := of[0].place
	of = slices.DeleteFunc(of, func(m outgoing) bool { return m.place != place })
	s := d.silent[place]
	s.others = s.others || len(of) > 1
	n := s.rounds % len(of)
	s.rounds++
	of[n].Trial = true
	return of[n : n+1]
}

// isAtFault reports whether a message that is unknown is the only one to its destination that is, or has long been the
// only one that could be sent there.
func (d *destinations) isAtFault(destination, id string) bool {
	s := d.silent[destination]
	isAlone := !s.others && d.now().Sub(s.since) > noDestinationLimit
	if s.id != id || !s.another && !isAlone {
		return false
	}
	delete(d.silent, destination)
	return true
}

// refused records that a message is not sent to its destination any more.
func (d *destinations) refused(destination, id string) {
	if s := d.silent[destination]; s != nil && s.id == id {
		delete(d.silent, destination)
	}
}

// reached records that a message to a destination was accepted, and reports whether it was shut in the round before.
func (d *destinations) reached(destination, id string) bool {
	d.found(destination)
	if s := d.silent[destination]; s != nil {
		if s.another = true; s.id == id {
			delete(d.silent, destination)
		}
	}
	was := d.before[destination]
	delete(d.before, destination)
	return was
}

// untilEnd returns how long the round still lasts.
func (d *destinations) untilEnd() time.Duration {
	if d.ends.IsZero() {
		return endlessRound
	}
	return time.Until(d.ends)
}

// isOver reports whether the round has ended.
func (d *destinations) isOver() bool { return !d.ends.IsZero() && !time.Now().Before(d.ends) }

// endRound begins a round in which all destinations are tried. Rounds become longer while one of them has accepted
// nothing in two of them. A silent destination is forgotten once nothing has waited for it for [noDestinationLimit]:
// its messages have become jobs, or have no route to the sink any more. Sooner, they may only be behind as many
// messages as may wait, which a round does not come past.
func (d *destinations) endRound() {
	if len(d.before) == 0 {
		d.retry.Reset()
	}
	now := d.now()
	maps.DeleteFunc(d.silent, func(destination string, s *silence) bool {
		if d.shut[destination] {
			s.met = now
		}
		return now.Sub(s.met) > noDestinationLimit
	})
	*d = destinations{
		now: d.now, missing: d.missing, changed: d.changed, retry: d.retry, before: d.shut, silent: d.silent,
		turns: d.turns, waited: len(d.waiting),
	}
	d.nextTurn()
}

// extend makes the round last as much longer as a message took that was sent alone: otherwise little else would be
// published in short rounds.
func (d *destinations) extend(took time.Duration) {
	if !d.ends.IsZero() {
		d.ends = d.ends.Add(took)
	}
}

// limit records that a page was read, and whether it has come to newer events. A round that ended before its first page
// was read would try nothing.
func (d *destinations) limit(newer bool) {
	d.newer = d.newer || newer
	if d.lasts == 0 && len(d.before) > 0 {
		d.lasts = d.retry.Next()
	}
	d.setEnd()
}

// outage returns why destinations are shut, or nil if none is. Until a round has shown that those of the round before
// accept messages, known is false.
func (d *destinations) outage() (why *failure, known bool) {
	return d.why, d.why != nil || len(d.before) == 0
}

// load restores what the previous owner stored. When a message last met a missing destination is not stored: now stands
// for it, so that an owner who takes over in the middle of an hour goes on counting.
func (d *destinations) load(missing string) error {
	var ages map[string]float64
	if err := json.Unmarshal([]byte(missing), &ages); err != nil {
		return fmt.Errorf("read which destinations are missing: %w", err)
	}
	now := d.now()
	d.missing = make(map[string]incident, len(ages))
	for quoted, age := range ages {
		if destination, err := strconv.Unquote(`"` + quoted + `"`); err == nil {
			d.missing[destination] = incident{now.Add(-time.Duration(age * float64(time.Second))), now}
		}
	}
	return nil
}

// ages returns what load restores: for how many seconds each destination has been missing. Names are quoted as in
// Go, so that every database can store them.
func (d *destinations) ages() string {
	ages := make(map[string]float64, len(d.missing))
	for destination, missing := range d.missing {
		quoted := strconv.QuoteToASCII(destination)
		ages[quoted[1:len(quoted)-1]] = d.now().Sub(missing.since).Seconds()
	}
	object, _ := json.Marshal(ages) // cannot fail: strings and numbers
	return string(object)
}
