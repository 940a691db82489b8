package relay

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"
)

const (
	unansweredLimit    = 4         // how often a message alone may be unknown before another one is tried
	noDestinationLimit = time.Hour // before messages to a missing destination are refused
)

// unansweredMessage records a message that is unknown again and again when sent alone. Only the publishing goroutine
// uses it.
//
// Such a message may break the sink. Or the sink accepts no message although Probe succeeds: a receiver may answer 500
// to each, or hang behind a load balancer. So another message, of another key, is tried alone. If it is accepted, the
// first one is at fault, and is refused. If it is not, the sink is stopped, and nothing becomes a job; the next attempt
// uses yet another message, because the previous one may break the sink, too. If a message breaks the sink and no
// message of another key follows it, the sink stays stopped until there is one; nobody else is waiting. How far ahead
// the search for another message reaches is limited by what can be read in anotherTime.
type unansweredMessage struct {
	probed    bool   // the sink has just answered
	id        string // of the last message that was unknown although the sink had answered
	err       error  // why
	times     int    // how many times in a row it was unknown
	isolating bool   // another message is tried, of another key
	others    int    // how many times another was tried
}

// note records that a message was alone in its batch and is unknown, if the sink has just answered.
func (u *unansweredMessage) note(id string, err error) {
	if !u.probed || u.isolating {
		return
	}
	if u.id != id {
		u.forget()
		u.id = id
	}
	u.err = err
	u.times++
}

// reached records that a message was accepted.
func (u *unansweredMessage) reached(id string) {
	if u.id == id {
		u.forget()
	}
}

// forget drops the message that was unknown.
func (u *unansweredMessage) forget() { *u = unansweredMessage{probed: u.probed} }

// missingDestinations records since when destinations have been missing. Only the publishing goroutine uses it.
type missingDestinations struct {
	now     func() time.Time
	since   map[string]time.Time
	changed bool // since it was last given to the ownership to store
}

// missing records that a destination is missing, and returns for how long it has been. If the record is full, a new
// destination replaces one whose messages are refused by now, or is not recorded yet. It replaces no other: if a page
// had more missing destinations than the record holds, each would be dropped before its hour is over.
func (d *missingDestinations) missing(destination string) time.Duration {
	since, known := d.since[destination]
	if known {
		return d.now().Sub(since)
	}
	maps.DeleteFunc(d.since, func(_ string, since time.Time) bool {
		return len(d.since) >= maxBatch && d.now().Sub(since) > noDestinationLimit
	})
	if len(d.since) < maxBatch {
		d.since[destination] = d.now()
		d.changed = true
	}
	return 0
}

// reached records that a message to a destination was accepted.
func (d *missingDestinations) reached(destination string) {
	if _, was := d.since[destination]; was {
		delete(d.since, destination)
		d.changed = true
	}
}

// load restores what the previous owner stored.
func (d *missingDestinations) load(missing string) error {
	var ages map[string]float64
	if err := json.Unmarshal([]byte(missing), &ages); err != nil {
		return fmt.Errorf("read which destinations are missing: %w", err)
	}
	d.since = make(map[string]time.Time, len(ages))
	for quoted, age := range ages {
		if destination, err := strconv.Unquote(`"` + quoted + `"`); err == nil {
			d.since[destination] = d.now().Add(-time.Duration(age * float64(time.Second)))
		}
	}
	return nil
}

// ages returns what load restores: for how many seconds each destination has been missing. Names are quoted as in Go,
// so that every database can store them.
func (d *missingDestinations) ages() string {
	ages := make(map[string]float64, len(d.since))
	for destination, since := range d.since {
		quoted := strconv.QuoteToASCII(destination)
		ages[quoted[1:len(quoted)-1]] = d.now().Sub(since).Seconds()
	}
	object, _ := json.Marshal(ages) // cannot fail: strings and numbers
	return string(object)
}
