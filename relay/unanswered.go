package relay

import "time"

// unansweredLimit is how often a message alone may be unknown before another one is tried.
const unansweredLimit = 4

// unansweredMessage records a message that is unknown again and again when sent alone. Only the publishing goroutine
// uses it.
//
// Such a message may break the sink. Or the sink, or only the message's destination, accepts no message although Probe
// succeeds: a receiver may answer 500 to each, or hang behind a load balancer. So another message, of another key, is
// tried alone. If it is accepted, the sink accepts messages; whether the first one or its destination is at fault,
// other messages to that destination show (see silence). If it is not, the sink is stopped, and nothing becomes a job;
// the next attempt uses yet another message, because the previous one may break the sink, too. If a message breaks the
// sink and no message of another key follows it, the sink stays stopped until there is one; nobody else is waiting. How
// far ahead the search for another message reaches is limited by what can be read in anotherTime.
type unansweredMessage struct {
	probed      bool   // the sink has just answered
	id          string // of the last message that was unknown although the sink had answered
	destination string // of that message
	err         error  // why
	times       int    // how many times in a row it was unknown
	isolating   bool   // another message is tried, of another key
	others      int    // how many times another was tried
}

// note records that a message was alone in its batch and is unknown, if the sink has just answered.
func (u *unansweredMessage) note(m *outgoing, err error) {
	if !u.probed || u.isolating {
		return
	}
	if u.id != m.ID {
		u.forget()
		u.id, u.destination = m.ID, m.place
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

// silence records a message that was unknown although the sink accepts others, by its destination. Either the message
// is at fault, or its destination accepts none: another message to the destination decides. In each round one message
// to one silent destination is sent, alone because it leaves those beside it unknown; the others are shut untried.
// Rounds take turns among the destinations and among their messages: if one other than the first is accepted, the first
// is sent once more, and is refused if it is unknown again. Until then the messages wait, and none becomes a job.
//
// Where each key has a destination of its own, no other message can decide: all of them are behind the first. If none
// has come for [noDestinationLimit], the first one is refused.
type silence struct {
	id      string    // of the message that was unknown first
	why     *failure  // what was last known of it
	since   time.Time // when that was
	met     time.Time // end of the last round in which messages waited for the destination
	rounds  int       // how many times one was tried
	turn    int       // number of the destination's last turn
	others  bool      // messages to the destination have waited that were not behind it
	another bool      // one of them was accepted after it
}
