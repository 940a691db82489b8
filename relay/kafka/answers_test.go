package kafka

import "testing"

// As many ends as records are not an end of each.
func TestARecordThatEndsTwiceEndsNoOther(t *testing.T) {
	t.Parallel()
	e := &ends{of: []error{errPending, errPending, errPending}, left: 3, done: make(chan struct{})}
	for range 2 {
		e.end(0, nil)
	}
	e.end(1, nil)
	<-e.done
	got := e.known(nil)
	if got[0] != nil || got[1] != nil || got[2] == nil {
		t.Errorf("%v", got)
	}
	if _, known := classify(got[2]); known {
		t.Errorf("%v is known", got[2])
	}
}
