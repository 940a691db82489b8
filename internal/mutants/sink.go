package mutants

const inOrderOfAKey = "A sink stores no message of a key after one that it has not stored"

const asItsMessage = "A job of a sink ends as its message did"

const toItsReceiver = "A webhook goes to its receiver"

// sinks are bugs of the sinks. A client of NATS that reconnects by itself is not among them, because it needs two bugs
// at once: its dialer ends with the call that made the connection, so nothing is flushed later without a call.
var sinks = []Mutant{
	{
		Name:      "a key's messages together",
		Breaks:    "what is behind a refused message of its key is stored, and a full stream stores a small one before a large one",
		Invariant: inOrderOfAKey,
		Edits:     []Edit{{"relay/nats.window.chain", `if before, ok := last[key]; ok && key != "" {`, `if before, ok := last[key]; ok && key == "" {`}},
		Checks:    []Check{test("relay/nats", "TestConformance/window/Refused", "but one of the key before it was refused")},
	},
	{
		Name:      "the rest of a run goes on with every key",
		Breaks:    "what is behind a refused message of its key is stored",
		Invariant: inOrderOfAKey,
		Edits:     []Edit{{"relay/nats.publication.take", `		if p.failed[m.Key] {`, `		if p.over {`}},
		Checks:    []Check{test("relay/nats", "TestConformance/fast_ingest/Refused", "but one of the key before it was refused")},
	},
	{
		Name:      "two streams at once",
		Breaks:    "a key that goes to two streams goes on in one of them after the other has refused it",
		Invariant: inOrderOfAKey,
		Edits:     []Edit{{"relay/nats.publication.divide", `if other := keys[m.Key]; other != nil && other != s {`, `if other := keys[m.Key]; other != nil && other == nil {`}},
		Checks:    []Check{test("relay/nats", "TestAKeyInTwoStreams", "110: <nil>")},
	},
	{
		Name:      "a part is the whole",
		Breaks:    "all of a run is taken for stored when the server has stored the beginning of it",
		Invariant: inOrderOfAKey,
		Edits: []Edit{{"relay/nats.ingest.answered", `		f.reached(a.Count)
`, `		f.reached(f.sent)
`}},
		Checks: []Check{test("relay/nats", "TestAnswersToARun", "a part: 3 are taken for stored, want 2")},
	},
	{
		Name:      "no answer is an answer",
		Breaks:    "what was under way when the connection was lost is taken for stored",
		Invariant: inOrderOfAKey,
		Edits:     []Edit{{"relay/nats.publication.broken", `		p.settle(i, err)`, `		p.settle(i, nil)`}},
		Checks:    []Check{test("relay/nats", "TestConformance/window/Stopped", "outcomes of a broker that stands still")},
	},
	{
		Name:      "nobody waits for the acknowledgement",
		Breaks:    "what is sent without a stream's answer, as by a plain publish, is lost with the server",
		Invariant: inOrderOfAKey,
		Edits: []Edit{{"relay/nats.window.send", `		w.waiting[n] = true
		w.left++
		return
`, `		w.settle(i, nil)
		if next := w.next[n]; next > 0 {
			w.send(next)
		}
		return
`}},
		Checks: []Check{test("relay/nats", "TestConformance/window/Stopped", "outcomes of a broker that stands still")},
	},
	{
		Name:      "a header with line breaks in it",
		Breaks:    "a producer's header arrives as another text, or, where a client does not mend it, as two headers",
		Invariant: inOrderOfAKey,
		Edits:     []Edit{{"relay/nats.checkHeader", `strings.ContainsAny(h.Value, "\r\n\x00")`, `strings.ContainsAny(h.Value, "\x00")`}},
		Checks:    []Check{test("relay/nats", "TestSubjectsThatCannotBe", `value "a\r\nNats-Rollup: all": <nil>`)},
	},
	{
		Name:      "a message without its ID",
		Breaks:    "the server stores what is sent again a second time",
		Invariant: inOrderOfAKey,
		Edits:     []Edit{{"relay/nats.encode", `		set(headerID, m.ID)`, `		_ = headerID`}},
		Checks:    []Check{test("relay/nats", "TestConformance/window/Again", "different messages of 1500")},
	},
	{
		Name:      "a refusal is an outage",
		Breaks:    "a message that is too large is sent again for ever, and nothing behind it is",
		Invariant: inOrderOfAKey,
		Edits: []Edit{{"relay/nats.classify", `	case messageTooLarge, headersTooLarge:
		return refused(relay.CodeTooLarge)`, `	case messageTooLarge, headersTooLarge:
		return unavailable(relay.CodeTooLarge)`}},
		Checks: []Check{test("relay/nats", "TestConformance/window/Refused", "want refused relay_too_large")},
	},
	{
		Name:      "an outage is a refusal",
		Breaks:    "messages to a full stream become dead letters",
		Invariant: inOrderOfAKey,
		Edits:     []Edit{{"relay/nats.classify", `		return unavailable(relay.CodeFull)`, `		return refused(relay.CodeFull)`}},
		Checks:    []Check{test("relay/nats", "TestConformance/window/Full", "outcomes of a destination that has become full")},
	},
	{
		Name:      "a violation of permissions that nobody hears",
		Breaks:    "a message to a forbidden subject is waited for, and the connection given up, again and again",
		Invariant: inOrderOfAKey,
		Edits:     []Edit{{"relay/nats.conn.asynchronous", `	if subject, ok := violation(err); ok {`, `	if subject, ok := violation(err); ok && subject == "" {`}},
		Checks:    []Check{test("relay/nats", "TestConformance/window/Forbidden", "a timeout, and no answer")},
	},
	{
		Name:      "a producer that commands the server",
		Breaks:    "an event's header makes the server purge the stream",
		Invariant: inOrderOfAKey,
		Edits:     []Edit{{"relay/nats.checkHeader", `strings.EqualFold(h.Name[:len(reserved)], reserved)`, `strings.EqualFold(h.Name, reserved)`}},
		Checks:    []Check{test("relay/nats", "TestSubjectsThatCannotBe", `header "Nats-Rollup": <nil>`)},
	},
	{
		Name:      "redirects are followed",
		Breaks:    "a receiver sends what we post, with its signature, to a place of its choice",
		Invariant: toItsReceiver,
		Edits:     []Edit{{"relay/webhook.followNone", `return http.ErrUseLastResponse`, `return nil`}},
		Checks:    []Check{test("relay/webhook", "TestASinkFollowsNoRedirect", "followed true")},
	},
	{
		Name:      "private addresses are public",
		Breaks:    "a name that leads to our own network is connected to",
		Invariant: toItsReceiver,
		Edits:     []Edit{{"relay/webhook.dialer.control", `if !isPublic(addr) && !slices.ContainsFunc(d.allow, within) {`, `if !isPublic(addr) && slices.ContainsFunc(d.allow, within) && false {`}},
		Checks:    []Check{test("relay/webhook", "TestANameThatLeadsToUsIsNotConnectedTo", "asked true")},
	},
	{
		Name:      "only the new key signs",
		Breaks:    "receivers that still have the old secret refuse everything while it is changed",
		Invariant: toItsReceiver,
		Edits:     []Edit{{"relay/webhook.sign", `for _, key := range keys {`, `for _, key := range keys[:1] {`}},
		Checks:    []Check{test("relay/webhook", "TestTwoKeysSignWhileTheyChange", "no signature of ours")},
	},
	{
		Name:      "no answer of a receiver is taken for stored",
		Breaks:    "what a receiver has not answered is lost, and what is behind it of its key is sent",
		Invariant: inOrderOfAKey,
		Edits: []Edit{{"relay/webhook.Sink.exchange", `		return 0, failed
`, `		return 0, nil
`}},
		Checks: []Check{test("relay/webhook", "TestNoAnswerIsUnknown", "stored:")},
	},
	{
		Name:      "a job that its sink has not tried is done",
		Breaks:    "messages behind one that was not accepted are lost",
		Invariant: asItsMessage,
		Edits: []Edit{{"relay/jobs.handler.outcome", `	case err == nil:
`, `	case err == nil || errors.Is(err, relay.ErrNotTried):
`}},
		Checks: []Check{test("relay/jobs", "TestAJobEndsAsItsMessageDid", "are missing")},
	},
	{
		Name:      "a job that its sink has not tried has failed",
		Breaks:    "an outage kills jobs that were never sent",
		Invariant: asItsMessage,
		Edits: []Edit{{"relay/jobs.handler.outcome", `	case errors.Is(err, relay.ErrNotTried):
`, `	case errors.Is(err, relay.ErrNotTried) && h.sink == nil:
`}},
		Checks: []Check{test("relay/jobs", "TestAJobEndsAsItsMessageDid", "spent attempts")},
	},
	{
		Name:      "a sink's outage costs attempts",
		Breaks:    "a broker that is away for long kills every job",
		Invariant: asItsMessage,
		Edits: []Edit{{"relay/jobs.handler.outcome", `	case isUnavailable:
`, `	case isUnavailable && h.sink == nil:
`}},
		Checks: []Check{test("relay/jobs", "TestAJobEndsAsItsMessageDid", "spent attempts")},
	},
	{
		Name:      "a confirm is that of the next message",
		Breaks:    "a message is taken for stored when the server has confirmed another",
		Invariant: inOrderOfAKey,
		Edits:     []Edit{{"relay/amqp.publication.confirmed", `if c.DeliveryTag != first.tag {`, `if c.DeliveryTag == 0 {`}},
		Checks:    []Check{test("relay/amqp", "TestAnswersThatCannotBeTrusted/the_second_first", "are taken for stored, want 0")},
	},
	{
		Name:      "as many ends as records are all of them",
		Breaks:    "a record that ends twice has another one taken for stored",
		Invariant: inOrderOfAKey,
		Edits: []Edit{{"relay/kafka.ends.known", `	err = cmp.Or(err, errPending)
`, `	_ = cmp.Or(err, errPending)
`}},
		Checks: []Check{test("relay/kafka", "TestARecordThatEndsTwiceEndsNoOther", "<nil> <nil> <nil>")},
	},
	{
		Name:      "a refused message of a run is stored",
		Breaks:    "a run of which the server has refused one message is taken for stored whole",
		Invariant: inOrderOfAKey,
		Edits:     []Edit{{"relay/nats.ingest.settleStored", `if n >= 1 && n <= f.stored {`, `if n >= 1 && n <= 0 {`}},
		Checks:    []Check{test("relay/nats", "TestAnswersToARun", "one is refused, and all: 3 are taken for stored")},
	},
	{
		Name:      "a call that hangs is left behind",
		Breaks:    "a publisher stores an earlier message of a key behind a later one",
		Invariant: inOrderOfAKey,
		Edits: []Edit{{"relay/watermill.Sink.call", `	case <-ctx.Done():
		return fmt.Errorf(`, `	case <-ctx.Done():
		s.free <- struct{}{}
		return fmt.Errorf(`}},
		Checks: []Check{test("relay/watermill", "TestACallThatHangsIsWaitedFor", "beside the call that hangs")},
	},
	{
		Name:      "a message has another ID each time",
		Breaks:    "a broker that drops repeats stores a message again after each outage",
		Invariant: "A message has one effect, by its position",
		Edits:     []Edit{{"relay/nats.encode", `set(headerID, m.ID)`, `set(headerID, fmt.Sprintf("%s-%p", m.ID, header))`}},
		Checks: []Check{
			test("relay/nats", "TestConformance/window/Again", "key-0 has "),
			row("E1", "repeated messages with another id than the first time"),
			row("E5", "repeated messages with another id than the first time"),
		},
	},
	{
		Name:      "a repeat is a failure",
		Breaks:    "a sink does not get past a message that the broker has already stored",
		Invariant: "No event is lost",
		Edits: []Edit{{"relay/nats.window.answered", `	w.settle(w.run[n], err)
`, `	if err == nil && a.Duplicate {
		err = away(errors.New("a repeat"))
	}
	w.settle(w.run[n], err)
`}},
		Checks: []Check{test("relay/nats", "TestConformance/window/Again", "a repeat")},
	},
}
