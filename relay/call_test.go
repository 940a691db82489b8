package relay

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// slow is a sink that takes so long for a call, and carries out one after the other, whatever ctx says.
type slow struct {
	Sink
	takes time.Duration
	free  chan struct{}
}

func (s slow) Publish(ctx context.Context, batch []Message) []error {
	s.free <- struct{}{}
	defer func() { <-s.free }()
	time.Sleep(s.takes)
	outcomes := make([]error, len(batch))
	for i := range outcomes {
		outcomes[i] = ctx.Err()
	}
	return outcomes
}

func (s slow) Probe(context.Context) error { return nil }

// Eight held messages at a time are on their way to a sink that is slow. The owner's batch waits for one of them, and
// no call's time runs while it waits.
func TestABatchWaitsForOneHeldMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := slow{takes: 3 * time.Second, free: make(chan struct{}, 1)}
		p := &publisher{sinkClient: newSinkClient("s", sink, newMetrics(nil).of("s"), time.Now), config: &Config{patience: publishTimeout}}
		held := &heldRunner{p, &ownership{}}
		ended := make(chan error, heldConcurrency)
		for range heldConcurrency {
			go func() { ended <- held.publishInTurn(t.Context(), Message{}, false) }()
		}
		synctest.Wait()
		for range 3 {
			began := time.Now()
			if err := p.deliver(t.Context(), []outgoing{{}}, publishTimeout)[0]; err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 2*sink.takes {
				t.Fatalf("a batch took %s, want that it waits for one held message", took)
			}
		}
		for range heldConcurrency {
			if err := <-ended; err != nil {
				t.Errorf("a held message that waited for others: %v", err)
			}
		}
	})
}

// Dead letters, and what comes behind them, need no dispatcher, and are looked at less often the more there are, unless
// some are carried out.
func TestDeadLettersOfASinkAreLeftAlone(t *testing.T) {
	h := held{jobs: map[[16]byte]heldJob{}, keys: map[tenantKey]int{}}
	dead := heldJob{tenantKey{key: "k"}, true, false}
	for i := range 5000 {
		h.set([16]byte{byte(i), byte(i >> 8)}, dead)
	}
	h.add([16]byte{2: 1}, dead.key)
	if pause := h.lookPause(); h.open != 0 || pause != lookInterval+5001*time.Millisecond {
		t.Errorf("%d are to be carried out, and the next look is in %s", h.open, pause)
	}
	retried := dead
	retried.open = true
	h.set([16]byte{}, retried)
	h.set([16]byte{}, retried)
	h.lastRun = time.Now()
	if pause := h.lookPause(); h.open != 1 || pause != lookInterval {
		t.Errorf("once one was retried %d are to be carried out, and the next look is in %s", h.open, pause)
	}
	h.forget([16]byte{})
	if h.open != 0 || h.keys[dead.key] != 5000 {
		t.Errorf("%d are to be carried out, and %d block their key", h.open, h.keys[dead.key])
	}
}

// A program without package tracing allocates nothing for it when it sends a batch.
func TestWithoutTracingABatchCostsNothing(t *testing.T) {
	c := sinkClient{name: "s"}
	batch := []Message{{Headers: []Header{{Name: "traceparent", Value: "t"}}}}
	var ctx context.Context = t.Context()
	allocated := testing.AllocsPerRun(1000, func() {
		with, ended := c.trace(ctx, batch)
		if with != ctx {
			t.Fatal("there is another context")
		}
		ended(nil)
	})
	if allocated != 0 {
		t.Errorf("%v allocations", allocated)
	}
}
