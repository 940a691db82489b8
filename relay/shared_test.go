package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// logOf is a log of which positions can be seen.
type logOf struct {
	positions []int64
	looks     int
	delay     time.Duration
	err       error
}

func (l *logOf) behind(top int64) func() ([]Event, error) {
	return func() (found []Event, err error) {
		l.looks++
		seen := slices.Clone(l.positions)
		time.Sleep(l.delay)
		for _, position := range seen {
			if position > top && len(found) < maxBatch {
				found = append(found, Event{Position: position})
			}
		}
		return found, l.err
	}
}

func TestSinksShareALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &logOf{positions: []int64{3, 5, 6}, delay: 10 * time.Millisecond}
		s := &shared{}
		type result struct {
			positions []int64
			more      bool
			err       error
		}
		newer := func(timeline string, top int64) (r result) {
			events, more, err := s.newer(t.Context(), timeline, top, l.behind(top))
			return result{positions(events), more, err}
		}
		expect := func(about string, r result, want []int64, more bool, looks int) {
			t.Helper()
			if r.err != nil || !slices.Equal(r.positions, want) {
				t.Errorf("%s: %v, %v, want %v", about, r.positions, r.err, want)
			}
			if r.more != more {
				t.Errorf("%s: there may be more: %t, want %t", about, r.more, more)
			}
			if l.looks != looks {
				t.Errorf("%s: %d looks at the log, want %d", about, l.looks, looks)
			}
		}

		beside := make(chan result)
		go func() { beside <- newer("1", 2) }()
		synctest.Wait()
		expect("while another looks", newer("1", 2), []int64{3, 5, 6}, false, 1)
		expect("the one that looks", <-beside, []int64{3, 5, 6}, false, 1)
		expect("within what another has read", newer("1", 4), []int64{5, 6}, false, 1)
		expect("of another timeline", newer("2", 4), []int64{5, 6}, false, 2)
		expect("at the end", newer("1", 6), nil, false, 3)

		l.positions = append(l.positions, 8)
		expect("at the end, where nothing was before", newer("1", 6), []int64{8}, false, 4)
		s.wakes.Add(1)
		expect("after a wake-up", newer("1", 2), []int64{3, 5, 6}, true, 4)

		go func() { beside <- newer("1", 8) }()
		synctest.Wait()
		l.positions = append(l.positions, 9)
		s.wakes.Add(1)
		expect("woken while another looks", newer("1", 8), nil, true, 5)
		<-beside
		expect("and again", newer("1", 8), []int64{9}, false, 6)

		s.forget()
		expect("once all is forgotten", newer("1", 2), []int64{3, 5, 6, 8, 9}, false, 7)
		time.Sleep(lookLife + time.Second)
		expect("of long ago", newer("1", 2), []int64{3, 5, 6, 8, 9}, false, 8)
	})
}

// That another sink fails, or is stopped, is not what the others get.
func TestALookThatFailsIsNobodyElses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shared{}
		broken := &logOf{delay: 10 * time.Millisecond, err: context.Canceled}
		go func() { _, _, _ = s.newer(t.Context(), "1", 0, broken.behind(0)) }()
		synctest.Wait()
		l := &logOf{positions: []int64{1}}
		events, _, err := s.newer(t.Context(), "1", 0, l.behind(0))
		if err != nil || len(events) != 1 || l.looks != 1 {
			t.Errorf("%d events, %v, in %d looks", len(events), err, l.looks)
		}
		go func() { _, _, _ = s.newer(t.Context(), "1", 1, broken.behind(1)) }()
		synctest.Wait()
		brief, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, _, err := s.newer(brief, "1", 1, l.behind(1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a sink that waits for another's look beyond its time: %v", err)
		}
		time.Sleep(broken.delay)
	})
}

// A sink that is far behind makes nobody keep what it has yet to read.
func TestOnlyTheLastLooksAreKept(t *testing.T) {
	s, l := &shared{}, &logOf{}
	for position := range int64(20 * maxBatch) {
		l.positions = append(l.positions, position+1)
	}
	for top := int64(0); top < 20*maxBatch; top += maxBatch {
		if events, more, err := s.newer(t.Context(), "1", top, l.behind(top)); len(events) != maxBatch || !more || err != nil {
			t.Fatalf("behind %d: %d events, more %t, %v", top, len(events), more, err)
		}
	}
	if len(s.looks) != maxLooks {
		t.Errorf("%d looks are kept, want %d", len(s.looks), maxLooks)
	}
	before := l.looks
	if events, _, err := s.newer(t.Context(), "1", 0, l.behind(0)); err != nil || fmt.Sprint(positions(events)[:2]) != "[1 2]" || l.looks != before+1 {
		t.Errorf("one that is far behind: %v in %d looks, %v", positions(events)[:2], l.looks-before, err)
	}
}

// Looks begin, and trim the others, while one ends. The race detector says whether what they have in common is guarded.
func TestLooksBeginWhileOthersEnd(t *testing.T) {
	s, l := &shared{}, &logOf{positions: []int64{1, 2, 3, 4}}
	var sinks sync.WaitGroup
	for top := range int64(4) {
		sinks.Go(func() {
			for range 200 {
				s.forget() // or the first look is what all take
				read := *l
				if events, _, err := s.newer(t.Context(), "1", top, read.behind(top)); err != nil || int64(len(events)) != 4-top {
					t.Errorf("behind %d: %d events, %v", top, len(events), err)
				}
			}
		})
	}
	sinks.Wait()
}
