package nats

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/posthaste-dev/posthaste/relay"
)

// ingesting returns a run of three messages that were sent and not answered.
func ingesting() *ingest {
	p := &publication{sink: &Sink{}, batch: make([]relay.Message, 3), outcomes: make([]error, 3), failed: map[string]bool{}, forbidden: map[string]error{}}
	for i := range p.outcomes {
		p.outcomes[i] = relay.ErrNotTried
	}
	return &ingest{publication: p, run: []int{0, 1, 2}, sent: 3, ending: "b", refusals: map[int]error{}}
}

// Of a run that was sent together, no message behind one that was refused is taken for stored, whatever the last answer
// says; nor one that was not sent.
func TestAnswersToARun(t *testing.T) {
	t.Parallel()
	answer := func(n, text string) event {
		return event{to: ingestFail + n + ".1" + ingestMark, answer: &nats.Msg{Data: []byte(text)}}
	}
	for name, c := range map[string]struct {
		answers []event
		stored  int
	}{
		"all of it":                  {[]event{answer("3", `{"stream":"S","count":3}`)}, 3},
		"a part":                     {[]event{answer("3", `{"stream":"S","count":2}`)}, 2},
		"more than was sent":         {[]event{answer("3", `{"stream":"S","count":4}`)}, 0},
		"one is refused, and all":    {[]event{answer("2", `{"type":"err","seq":2,"error":{"code":400,"err_code":10054}}`), answer("3", `{"stream":"S","count":3}`)}, 1},
		"refused after it was there": {[]event{answer("3", `{"type":"ack","seq":3}`), answer("1", `{"type":"err","seq":1,"error":{"code":400,"err_code":10054}}`)}, 0},
		"a repeat of another":        {[]event{answer("2", `{"stream":"S","duplicate":true}`)}, 0},
		"no stream":                  {[]event{answer("3", `{"count":3}`)}, 0},
		"a type that there is not":   {[]event{answer("3", `{"type":"x","stream":"S","count":3}`)}, 0},
		"not a number":               {[]event{answer("x", `{"stream":"S","count":3}`)}, 0},
	} {
		f := ingesting()
		for _, a := range c.answers {
			f.answered(a)
		}
		f.settleStored()
		stored := 0
		for stored < 3 && f.outcomes[stored] == nil {
			stored++
		}
		if stored != c.stored {
			t.Errorf("%s: %d are taken for stored, want %d", name, stored, c.stored)
		}
	}
}
