package watermill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/relay"
)

func messages(n, keys int) []relay.Message {
	all := make([]relay.Message, n)
	for i := range all {
		all[i] = relay.Message{
			ID: fmt.Sprint("m", i), Key: fmt.Sprint("k", i%keys), Destination: "orders", ContentType: "application/json", Position: int64(i + 1),
			Body: fmt.Appendf(nil, `{"n":%d}`, i), Headers: []relay.Header{{Name: "ce-id", Value: fmt.Sprint("m", i)}},
		}
	}
	return all
}

func open(t *testing.T, config Config) *Sink {
	t.Helper()
	s, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMessagesComeToASubscriber(t *testing.T) {
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	s := open(t, Config{Publisher: channel})
	incoming, err := channel.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	var got []relay.Message
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range incoming {
			got = append(got, relay.Message{
				ID: m.UUID, Key: m.Metadata["posthaste-key"], ContentType: m.Metadata["content-type"], Body: []byte(m.Payload),
				Headers: []relay.Header{{Name: "ce-id", Value: m.Metadata["ce-id"]}},
			})
			m.Ack()
		}
	}()
	want := messages(500, 20)
	for i, err := range s.Publish(t.Context(), want) {
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		want[i].Position, want[i].Destination = 0, ""
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	<-done
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-published +received):\n%s", diff)
	}
	if err := s.Publish(t.Context(), messages(3, 1)); err[0] == nil || !errors.Is(err[1], relay.ErrNotTried) {
		t.Errorf("by a publisher that is closed: %v", err)
	}
}

// faulty keeps messages, or does not, whatever it says.
type faulty struct {
	mu      sync.Mutex
	stored  []*message.Message
	publish func(topic string, all []*message.Message) (stored int, err error)
}

func (f *faulty) Publish(topic string, all ...*message.Message) error {
	n, err := f.publish(topic, all)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stored = append(f.stored, all[:n]...)
	return err
}

func (f *faulty) Close() error { return nil }

func (f *faulty) ids() (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.stored {
		all = append(all, m.UUID)
	}
	return all
}

var errBroken = errors.New("broken")

// Whether a call that fails has stored nothing, a part or everything, the order of a key is kept and nothing is lost.
func TestAFaultyPublisherLosesNothing(t *testing.T) {
	for _, size := range []int{1, 7} {
		t.Run(fmt.Sprint(size, " a call"), func(t *testing.T) {
			f := &faulty{publish: func(_ string, all []*message.Message) (int, error) {
				switch n := rand.IntN(len(all) + 1); rand.IntN(10) {
				case 0:
					return n, errBroken
				case 1:
					panic("a bug")
				default:
					return len(all), nil
				}
			}}
			s := open(t, Config{Publisher: f, Batch: size})
			want := messages(2000, 10)
			for rest := want; len(rest) > 0; {
				n := min(100, len(rest))
				var again []relay.Message
				for i, err := range s.Publish(t.Context(), rest[:n]) {
					if err != nil {
						again = append(again, rest[i])
					}
				}
				rest = append(again, rest[n:]...)
			}
			last, have := map[string]int{}, map[string]bool{}
			for _, m := range f.stored {
				var n int
				_, _ = fmt.Sscanf(m.UUID, "m%d", &n)
				if k := m.Metadata[key]; !have[m.UUID] && n < last[k] {
					t.Errorf("%s of %s is stored after %d", m.UUID, k, last[k])
				} else if !have[m.UUID] {
					last[k] = n
				}
				have[m.UUID] = true
			}
			if len(have) != len(want) {
				t.Errorf("%d of %d are stored", len(have), len(want))
			}
		})
	}
}

// A call that has not returned may still store its message: nothing goes before it.
func TestACallThatHangsIsWaitedFor(t *testing.T) {
	release := make(chan struct{})
	f := &faulty{publish: func(_ string, all []*message.Message) (int, error) {
		if all[0].UUID == "m0" {
			<-release
		}
		return len(all), nil
	}}
	s := open(t, Config{Publisher: f})
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	all := messages(3, 1)
	errs := s.Publish(short(), all)
	if _, unavailable := errors.AsType[*relay.UnavailableError](errs[0]); !errors.Is(errs[0], context.DeadlineExceeded) || unavailable || !errors.Is(errs[1], relay.ErrNotTried) {
		t.Errorf("%v", errs)
	}
	if errs := s.Publish(short(), all[1:]); !errors.Is(errs[0], errUnderWay) || len(f.ids()) > 0 {
		t.Errorf("beside the call that hangs: %v, stored %v", errs, f.ids())
	}
	if err := s.Probe(short()); !errors.Is(err, errUnderWay) {
		t.Errorf("Probe: %v", err)
	}
	close(release)
	if errs := s.Publish(t.Context(), all); errors.Join(errs...) != nil {
		t.Errorf("%v", errs)
	}
	if diff := cmp.Diff([]string{"m0", "m0", "m1", "m2"}, f.ids()); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

func TestErrorsThatAreKnown(t *testing.T) {
	f := &faulty{publish: func(_ string, all []*message.Message) (int, error) {
		if all[0].UUID == "m3" {
			return 0, errBroken
		}
		return len(all), nil
	}}
	for name, c := range map[string]struct {
		meaning error
		batch   int
		stored  int
	}{
		"refused":     {&relay.RefusedError{Code: relay.CodeTooLarge, Err: errBroken}, 1, 18}, // m3, and m13 behind it
		"unavailable": {&relay.UnavailableError{Code: relay.CodeFull, Err: errBroken}, 1, 3},
		"unknown":     {errBroken, 1, 3},
		"of many":     {&relay.RefusedError{Code: relay.CodeTooLarge, Err: errBroken}, 3, 3},
	} {
		f.stored = nil
		s := open(t, Config{Publisher: f, Batch: c.batch, Classify: func(error) error { return c.meaning }})
		errs := s.Publish(t.Context(), messages(20, 10))
		want := c.meaning
		if c.batch > 1 {
			want = errBroken
		}
		if !errors.Is(errs[3], want) || !errors.Is(errs[13], relay.ErrNotTried) || len(f.ids()) != c.stored {
			t.Errorf("%s: %v, %d stored, want %d", name, errs, len(f.ids()), c.stored)
		}
	}
}

func TestAnEmptyConfigIsRefused(t *testing.T) {
	for _, config := range []Config{{}, {Publisher: &faulty{}, Batch: -1}} {
		if _, err := Open(config); err == nil {
			t.Errorf("%+v is taken", config)
		}
	}
}
