package checker

import (
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/outbox"
)

func TestTheQueueTellsWhatWasLostOrInvented(t *testing.T) {
	q := NewQueue()
	for _, key := range []string{"fine", "lost", "recovered", "refused", "ghost", "again", "killed", "repeated"} {
		q.Attempted(key)
	}
	for _, key := range []string{"fine", "lost", "again"} {
		q.Acked(key)
	}
	q.Unknown("recovered")
	q.Failed("refused")
	q.Failed("ghost")
	q.Unknown("repeated") // first with an unknown outcome, then refused
	q.Attempted("repeated")
	q.Failed("repeated")
	for _, key := range []string{"fine", "recovered", "ghost", "again", "again", "killed", "nobody's", "repeated"} {
		q.Delivered(key)
	}
	got := q.Verdict()
	for what, sets := range map[string][2][]string{
		"lost":       {{"lost"}, got.Lost},
		"unexpected": {{"ghost", "nobody's"}, got.Unexpected},
		"duplicated": {{"again"}, got.Duplicated},
		"recovered":  {{"killed", "recovered", "repeated"}, got.Recovered},
	} {
		if diff := cmp.Diff(sets[0], sorted(sets[1])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	if got.Attempted != 8 || got.Acked != 3 || got.Unknown != 3 || got.Delivered != 7 {
		t.Errorf("counts are %+v", got)
	}
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// history returns the moves of one job, a second apart.
func history(moves ...Move) iter.Seq2[Move, error] {
	return func(yield func(Move, error) bool) {
		from := outbox.Status("")
		for i, m := range moves {
			m.Job, m.At = "job", noon.Add(time.Duration(i)*time.Second)
			if m.From == "" {
				m.From = from
			}
			from = m.To
			if !yield(m, nil) {
				return
			}
		}
	}
}

func claim(epoch int64, owner string, seconds int) Move {
	return Move{To: outbox.Running, Epoch: epoch, Owner: owner, Expires: noon.Add(time.Duration(seconds) * time.Second)}
}

// Each case has one planted mistake, which must be found. The last history has none.
func TestReplayFindsWhatIsPlanted(t *testing.T) {
	made, done := Move{To: outbox.Pending}, Move{To: outbox.Succeeded, Epoch: 3}
	lapse := Move{To: outbox.Retrying, Epoch: 2, LostLeases: 1}
	again := claim(3, "b", 60)
	again.LostLeases, done.LostLeases = 1, 1
	for name, c := range map[string]struct {
		moves []Move
		want  func(Replayed) int
	}{
		"an illegal move":          {[]Move{made, {To: outbox.Succeeded}}, func(r Replayed) int { return len(r.Illegal) }},
		"a move from elsewhere":    {[]Move{made, {From: outbox.Retrying, To: outbox.Running, Epoch: 1, Owner: "a"}, {To: outbox.Succeeded, Epoch: 1}}, func(r Replayed) int { return len(r.Illegal) }},
		"no beginning":             {[]Move{{From: outbox.Pending, To: outbox.Cancelled}}, func(r Replayed) int { return len(r.Illegal) }},
		"stored as dead":           {[]Move{{To: outbox.Dead}}, func(r Replayed) int { return len(r.Illegal) }},
		"stored with an epoch":     {[]Move{{To: outbox.Pending, Epoch: 1}, {To: outbox.Cancelled, Epoch: 1}}, func(r Replayed) int { return len(r.Illegal) }},
		"stored as claimed twice":  {[]Move{claim(2, "a", 60), {To: outbox.Succeeded, Epoch: 2}}, func(r Replayed) int { return len(r.Illegal) }},
		"a claim at the old epoch": {[]Move{made, claim(1, "a", 1), lapse, {To: outbox.Running, Epoch: 2, Owner: "b", LostLeases: 1}, done}, func(r Replayed) int { return len(r.Epochs) }},
		"an epoch that falls":      {[]Move{made, claim(4, "a", 1), {To: outbox.Retrying, Epoch: 5}, again, done}, func(r Replayed) int { return len(r.Epochs) }},
		"a lease taken too early":  {[]Move{made, claim(1, "a", 60), lapse, again, done}, func(r Replayed) int { return len(r.TwoLeases) }},
		"a lease passed on":        {[]Move{made, claim(1, "a", 60), claim(2, "b", 60), {To: outbox.Succeeded, Epoch: 2}}, func(r Replayed) int { return len(r.TwoLeases) }},
		"a job that came back":     {[]Move{made, claim(1, "a", 60), {To: outbox.Succeeded, Epoch: 1}, {To: outbox.Pending, Epoch: 1}, {To: outbox.Cancelled, Epoch: 1}}, func(r Replayed) int { return len(r.Regressions) }},
		"a job that is still open": {[]Move{made, claim(1, "a", 1), lapse}, func(r Replayed) int { return len(r.Open) }},
	} {
		r, err := Replay(history(c.moves...))
		if err != nil {
			t.Fatal(err)
		}
		if c.want(r) != 1 {
			t.Errorf("%s: not found, or not once: %+v", name, r)
		}
	}
	r, err := Replay(history(made, claim(1, "a", 1), claim(1, "a", 2), claim(1, "a", 3), lapse, again, done))
	want := Replayed{Jobs: 1, Moves: 7, Claims: 2, Expired: 1, GivenUp: map[Lease]time.Time{}}
	if diff := cmp.Diff(want, r); diff != "" || err != nil {
		t.Errorf("a good history (-want +got):\n%s%v", diff, err)
	}
}

func TestAJobMayBeStoredClaimed(t *testing.T) {
	r, err := Replay(history(claim(1, "a", 60), Move{To: outbox.Succeeded, Epoch: 1}))
	want := Replayed{Jobs: 1, Moves: 2, Claims: 1, GivenUp: map[Lease]time.Time{}}
	if diff := cmp.Diff(want, r); diff != "" || err != nil {
		t.Errorf("(-want +got):\n%s%v", diff, err)
	}
}

func TestOverlapsNeedAnExplanation(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	zombie := []Execution{{2, "b", at(20), at(30)}, {1, "a", at(0), at(25)}}
	for name, c := range map[string]struct {
		executions             []Execution
		windows                []Window
		explained, unexplained int
		same                   int
	}{
		"one after the other":     {executions: []Execution{{1, "a", at(0), at(20)}, {2, "b", at(20), at(30)}}},
		"without a fault":         {executions: zombie, unexplained: 1},
		"its process was stopped": {executions: zombie, windows: []Window{{Process: "a", From: at(5), Until: at(24)}}, explained: 1},
		"the other was stopped":   {executions: zombie, windows: []Window{{Process: "b", From: at(5), Until: at(24)}}, unexplained: 1},
		"stopped too briefly":     {executions: zombie, windows: []Window{{Process: "a", From: at(5), Until: at(7)}}, unexplained: 1},
		"stopped too late":        {executions: zombie, windows: []Window{{Process: "a", From: at(21), Until: at(40)}}, unexplained: 1},
		"not by this":             {executions: zombie, windows: []Window{{Process: "a", From: at(5), Until: at(24), Explains: func(_ string, x Execution) bool { return x.Epoch == 2 }}}, unexplained: 1},
		"by this":                 {executions: zombie, windows: []Window{{Process: "a", From: at(5), Until: at(24), Explains: func(_ string, x Execution) bool { return x.Epoch == 1 }}}, explained: 1},
		"stopped long before":     {executions: zombie, windows: []Window{{Process: "a", From: at(1), Until: at(8)}}, unexplained: 1},
		"everybody was cut off":   {executions: zombie, windows: []Window{{Process: "", From: at(5), Until: at(24)}}, explained: 1},
		"under one lease":         {executions: []Execution{{1, "a", at(0), at(1)}, {1, "b", at(2), at(3)}}, same: 1},
	} {
		var o Overlaps
		o.Add("job", c.executions, c.windows, 5*time.Second)
		if o.Explained != c.explained || len(o.Unexplained) != c.unexplained || len(o.SameLease) != c.same {
			t.Errorf("%s: %+v, want %d explained, %d unexplained, %d under one lease", name, o, c.explained, c.unexplained, c.same)
		}
	}
}

// In the moves, a give-back looks the same whether or not the handler has ended. Only the worker's ledger shows that
// the job was still being executed: by then another worker may have started it.
func TestALeaseIsGivenUpByWhoIsDone(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	made, back := Move{To: outbox.Pending}, Move{To: outbox.Pending, Epoch: 2}
	moves, err := Replay(history(made, claim(1, "a", 60), back, claim(3, "b", 60), Move{To: outbox.Retrying, Epoch: 4},
		claim(5, "a", 6), Move{To: outbox.Retrying, Epoch: 6, LostLeases: 1}, Move{To: outbox.Cancelled, Epoch: 7, LostLeases: 1}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[Lease]time.Time{{"job", 1}: at(2), {"job", 3}: at(4)}, moves.GivenUp); diff != "" {
		t.Errorf("leases given up (-want +got):\n%s", diff) // the third lapsed
	}
	for name, c := range map[string]struct {
		x   Execution
		bad int
	}{
		"it was done":              {Execution{1, "a", at(1), at(2)}, 0},
		"it was done just then":    {Execution{1, "a", at(1), at(2).Add(time.Millisecond)}, 0},
		"it went on":               {Execution{1, "a", at(1), at(3)}, 1},
		"it had not begun by then": {Execution{1, "a", at(3), at(5)}, 1},
		"another's":                {Execution{3, "b", at(3), at(4)}, 0},
		"whose lease lapsed":       {Execution{5, "a", at(5), at(9)}, 0},
	} {
		if got := WentOn("job", []Execution{c.x}, moves.GivenUp, 10*time.Millisecond); len(got) != c.bad {
			t.Errorf("%s: %v, want %d", name, got, c.bad)
		}
	}
}

func TestAtOnceCountsWhatSharesAnInstant(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	span := func(from, until int) Span { return Span{From: at(from), Until: at(until)} }
	for name, c := range map[string]struct {
		spans []Span
		most  int
		which []Span
	}{
		"nothing":                        {nil, 0, nil},
		"one":                            {[]Span{span(0, 1)}, 1, []Span{span(0, 1)}},
		"one after the other":            {[]Span{span(1, 2), span(0, 1)}, 1, []Span{span(0, 1)}},
		"two that overlap":               {[]Span{span(0, 2), span(1, 3)}, 2, []Span{span(0, 2), span(1, 3)}},
		"one within the other":           {[]Span{span(0, 9), span(1, 2), span(3, 4)}, 2, []Span{span(0, 9), span(1, 2)}},
		"a chain":                        {[]Span{span(0, 3), span(2, 5), span(4, 7)}, 2, []Span{span(0, 3), span(2, 5)}},
		"three, in another order":        {[]Span{span(4, 6), span(0, 5), span(3, 9)}, 3, []Span{span(0, 5), span(3, 9), span(4, 6)}},
		"one that takes no time":         {[]Span{span(1, 1), span(0, 2)}, 1, []Span{span(0, 2)}},
		"one that ends before it begins": {[]Span{span(2, 1), span(0, 3)}, 1, []Span{span(0, 3)}},
		"the same twice":                 {[]Span{span(0, 1), span(0, 1)}, 2, []Span{span(0, 1), span(0, 1)}},
	} {
		most, which := AtOnce(c.spans)
		if most != c.most || !cmp.Equal(which, c.which) {
			t.Errorf("%s: %d at once: %v, want %d: %v", name, most, which, c.most, c.which)
		}
	}
}

func TestOrphansAndEffects(t *testing.T) {
	noJob, noRow, twice := Orphans([]string{"a", "b", "c"}, []string{"a", "b", "b", "x"})
	if diff := cmp.Diff([][]string{{"c"}, {"x"}, {"b"}}, [][]string{noJob, noRow, twice}); diff != "" {
		t.Errorf("orphans (-want +got):\n%s", diff)
	}
	missing, duplicated, nobodys := Effects([]string{"a", "b", "c"}, []string{"a", "b", "b", "x"})
	if diff := cmp.Diff([][]string{{"c"}, {"b"}, {"x"}}, [][]string{missing, duplicated, nobodys}); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
}

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}
