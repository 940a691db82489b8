package console_test

import "testing"

// A sink with a destination that accepts nothing goes on with others, and its page says so, unless it is paused; one
// whose broker accepts nothing stands still.
func TestAPageSaysWhetherASinkStandsStill(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`INSERT INTO outbox.sinks (sink, owner, lease_expires_at, away_since, away_code, away_message)
		VALUES ('part', 'o', now() + interval '5 minutes', now(), 'relay_full', 'destination mails accepts nothing: no room'),
			('all', 'o', now() + interval '5 minutes', now(), 'relay_unavailable', 'connection refused')`)
	r.exec(`INSERT INTO outbox.sinks (sink, owner, lease_expires_at, away_since, away_code, paused_at)
		VALUES ('rests', 'o', now() + interval '5 minutes', now(), 'relay_full', now())`)
	const still, others = "It stands still since", "messages to others go on"
	r.get("sink?name=part").is(200).has("A destination has accepted nothing since", others, "destination mails").hasNot(still)
	r.get("sink?name=all").is(200).has(still).hasNot(others)
	r.get("sink?name=rests").is(200).has("Paused since").hasNot(still, others)
}
