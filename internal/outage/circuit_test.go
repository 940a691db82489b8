package outage

import (
	"testing"
	"testing/synctest"
	"time"
)

// opened returns a circuit that was just opened, and the channel that signals a due probe.
func opened(t *testing.T) (c *Circuit, due chan struct{}) {
	t.Helper()
	due = make(chan struct{}, 1000)
	c = NewCircuit(func() { due <- struct{}{} })
	for n := range opensAfter {
		if ok, probe := c.Admit(); !ok || probe || c.State() != Closed {
			t.Fatalf("after %d outcomes a job may run: %t, as a probe: %t", n, ok, probe)
		}
		if opened := c.Away(false, 0); opened != (n == opensAfter-1) {
			t.Fatalf("outcome %d has opened the circuit: %t", n+1, opened)
		}
	}
	return c, due
}

func wantState(t *testing.T, c *Circuit, want State) {
	t.Helper()
	if got := c.State(); got != want {
		t.Errorf("state = %d, want %d", got, want)
	}
}

func wantAdmits(t *testing.T, c *Circuit, want, wantProbe bool) {
	t.Helper()
	if ok, probe := c.Admit(); ok != want || probe != wantProbe {
		t.Errorf("a job may run: %t, as a probe: %t, want %t and %t", ok, probe, want, wantProbe)
	}
}

func TestOutcomesInARowOpenACircuit(t *testing.T) {
	c := NewCircuit(func() {})
	for range 3 {
		for range opensAfter - 1 {
			c.Away(false, 0)
		}
		if _, closed := c.Reached(); closed {
			t.Error("what was closed has been closed")
		}
	}
	wantState(t, c, Closed)
	c, _ = opened(t)
	wantState(t, c, Open)
	wantAdmits(t, c, false, false)
	c.Away(false, 0) // from a job that was running already
	wantState(t, c, Open)
}

func TestOneProbeAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, due := opened(t)
		if c.Probe() {
			t.Error("a probe is due at once")
		}
		<-due
		if !c.Probe() || c.Probe() {
			t.Error("want one probe when it is due")
		}
		wantState(t, c, Probing)
		wantAdmits(t, c, true, true)
		wantAdmits(t, c, false, false)
		c.Away(true, 0)
		wantState(t, c, Open)
		<-due
		if !c.Probe() {
			t.Error("no probe after one that has failed")
		}
		wantAdmits(t, c, true, true)
		time.Sleep(time.Second)
		if lasted, closed := c.Reached(); !closed || lasted < time.Second {
			t.Errorf("closed: %t, after %s", closed, lasted)
		}
		wantState(t, c, Closed)
		wantAdmits(t, c, true, false)
		for len(due) > 0 {
			<-due
		}
		time.Sleep(time.Hour)
		if len(due) > 0 || c.Probe() {
			t.Error("a probe is due though the circuit is closed")
		}
	})
}

// The first probes come soon, the later ones seldom, and each outage starts anew.
func TestProbesGrowFurtherApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, due := opened(t)
		for range 2 {
			began, count := time.Now(), map[string]int{}
			for last := began; time.Since(began) < 10*time.Hour; last = time.Now() {
				<-due
				gap, age := time.Since(last), time.Since(began)
				if age < 40*time.Second && gap > 5*time.Second || gap > max(age/7, 5*time.Second) || gap > longestGap {
					t.Errorf("after %s a probe comes %s after the one before", age, gap)
				}
				switch {
				case age < 20*time.Second:
					count["20 s"]++
				case age > time.Hour:
					count["hours"]++
				}
				if !c.Probe() {
					t.Fatal("no probe though it is due")
				}
				wantAdmits(t, c, true, true)
				c.Away(true, 0)
			}
			if count["20 s"] > 20 || count["20 s"] < 7 || count["hours"] > 600 || count["hours"] < 500 {
				t.Errorf("%v probes, want about ten in the first 20 s and one a minute later", count)
			}
			c.Reached()
			for range opensAfter {
				c.Away(false, 0)
			}
		}
	})
}

// The next probe does not wait for one that takes long.
func TestALongProbeIsFollowedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, due := opened(t)
		began := time.Now()
		for range 5 {
			<-due
			if !c.Probe() {
				t.Fatal("no probe though it is due")
			}
			wantAdmits(t, c, true, true)
		}
		if since := time.Since(began); since > 6*time.Second {
			t.Errorf("five probes took %s", since)
		}
		c.Away(true, 0)
		<-due
		c.Probe()
		c.Away(true, 0) // from one of the older ones
		wantState(t, c, Probing)
		wantAdmits(t, c, true, true)
	})
}

func TestNoProbeFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, due := opened(t)
		<-due
		c.Probe()
		c.NoProbe(20 * time.Second)
		wantState(t, c, Open)
		wantAdmits(t, c, false, false)
		began := time.Now()
		<-due
		if rest := time.Since(began); rest != 20*time.Second || !c.Probe() {
			t.Errorf("looked again after %s, want 20 s", rest)
		}
		wantAdmits(t, c, true, true)
		c.NoProbe(20 * time.Second) // there was one: it was waiting for a worker
		wantState(t, c, Probing)
		<-due
		c.Probe()
		c.NoProbe(time.Hour)
		began = time.Now()
		<-due
		if rest := time.Since(began); rest != longestGap {
			t.Errorf("looked again after %s, want %s at most", rest, longestGap)
		}
	})
}

func TestAWaitThatWasAskedForIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for asked, want := range map[time.Duration]time.Duration{30 * time.Second: 30 * time.Second, 24 * time.Hour: longestGap} {
			c, due := opened(t)
			<-due
			c.Probe()
			wantAdmits(t, c, true, true)
			c.Away(true, asked)
			began := time.Now()
			<-due
			if rest := time.Since(began); rest != want {
				t.Errorf("asked for %s the next probe came after %s, want %s", asked, rest, want)
			}
			c.Reached()
		}
	})
}

// Jobs that ran when the circuit was opened may end in any way.
func TestWhatRanWhenACircuitWasOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, due := opened(t)
		<-due
		c.Probe()
		wantAdmits(t, c, true, true)
		c.Away(false, 0)
		wantState(t, c, Probing) // the probe goes on
		if _, closed := c.Reached(); !closed {
			t.Error("a job has reached it, and the circuit is open")
		}
		c.Away(true, 0) // the probe
		wantState(t, c, Closed)
		wantAdmits(t, c, true, false)
	})
}
