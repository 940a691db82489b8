package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// heard is a recorder that keeps what is reported.
type heard struct {
	messages   []string
	checkpoint []byte
	err        error
}

func (h *heard) Progress(_, _ int64, message string) error {
	h.messages = append(h.messages, message)
	return h.err
}

func (h *heard) Log(_ slog.Level, message string) error {
	h.messages = append(h.messages, message)
	return h.err
}

func (h *heard) SaveCheckpoint(_ context.Context, checkpoint []byte) error {
	h.checkpoint = checkpoint
	return h.err
}

func (h *heard) LoadCheckpoint(context.Context) ([]byte, error) { return h.checkpoint, h.err }
func (h *heard) Flush(context.Context, engine.DB) error         { return h.err }

func TestReportsThatAreNotAcceptable(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for name, tt := range map[string]struct {
		report func(*Claimed) error
		want   InvalidError
	}{
		"negative progress":   {func(c *Claimed) error { return c.Progress(ctx, -1, 0, "") }, InvalidError{"current", "is -1, want at least 0"}},
		"a negative total":    {func(c *Claimed) error { return c.Progress(ctx, 0, -1, "") }, InvalidError{"total", "is -1, want at least 0; 0 is not known"}},
		"an absurd level":     {func(c *Claimed) error { return c.Log(ctx, 1001, "") }, InvalidError{"level", "is 1001, want -1000 to 1000"}},
		"an absurd low level": {func(c *Claimed) error { return c.Log(ctx, math.MinInt, "") }, InvalidError{"level", "is -9223372036854775808, want -1000 to 1000"}},
		"a checkpoint that is too large": {
			func(c *Claimed) error { return SaveCheckpoint(ctx, c, strings.Repeat("x", engine.MaxCheckpointBytes)) },
			InvalidError{"checkpoint", "is 262146 bytes as JSON, want at most 262144; store large data elsewhere and keep a reference"},
		},
		"a checkpoint that JSON has no form for": {
			func(c *Claimed) error { return SaveCheckpoint(ctx, c, math.NaN()) },
			InvalidError{"checkpoint", "cannot be encoded as JSON: json: unsupported value: NaN"},
		},
		"a checkpoint that is not UTF-8": {
			func(c *Claimed) error { return SaveCheckpoint(ctx, c, json.RawMessage("\"\xff\"")) },
			InvalidError{"checkpoint", "is not valid UTF-8 as JSON"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := new(heard)
			if diff := cmp.Diff([]InvalidError{tt.want}, mistakes(tt.report(recording(&Claimed{}, h)))); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
			if h.messages != nil || h.checkpoint != nil {
				t.Errorf("recorded %+v, want nothing", h)
			}
		})
	}
}

// Whatever a handler says fits into its column, as bytes and as text.
func TestMessagesAreMadeToFit(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"fine":                             "fine",
		"a\x00b\xffc":                      "a\uFFFDb\uFFFDc",
		strings.Repeat("é", 300):           strings.Repeat("é", 250) + "…",
		strings.Repeat("\x00", 10):         strings.Repeat("\uFFFD", 10),
		strings.Repeat("x", 500):           strings.Repeat("x", 500),
		"x" + strings.Repeat("é", 300):     "x" + strings.Repeat("é", 249) + "…",
		strings.Repeat("\x00", 400):        strings.Repeat("\uFFFD", 166),
		strings.Repeat("\xff", 1000) + "x": "\uFFFD…",
	} {
		h := new(heard)
		if err := recording(&Claimed{}, h).Progress(t.Context(), 1, 1, in); err != nil {
			t.Error(err)
		}
		if got := h.messages[0]; got != want || len(got) > 510 || !utf8.ValidString(got) {
			t.Errorf("message %q is stored as %q, want %q", in, got, want)
		}
	}
}

// A loop that returns the error of its reports ends when it is told to.
func TestReportsReturnWhyTheContextEnded(t *testing.T) {
	t.Parallel()
	h := new(heard)
	job := recording(&Claimed{}, h)
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	for what, err := range map[string]error{"Progress": job.Progress(ctx, 1, 1, "last"), "Log": job.Log(ctx, slog.LevelInfo, "last")} {
		if !errors.Is(err, stopped) {
			t.Errorf("%s = %v, want %v", what, err, stopped)
		}
	}
	if len(h.messages) != 2 {
		t.Errorf("recorded %q, want both: they are the last ones", h.messages)
	}
	h.err = ErrLeaseLost
	if err := job.Progress(ctx, 1, 1, ""); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("without the lease = %v, want %v", err, ErrLeaseLost)
	}
}

func TestCheckpointsAreTyped(t *testing.T) {
	t.Parallel()
	type position struct{ Row int }
	job := &Job[greet]{Claimed: recording(&Claimed{ID: RootTenant, Kind: "greet"}, new(heard))}
	if _, found, err := LoadCheckpoint[position](t.Context(), job.Claimed); found || err != nil {
		t.Errorf("before the first: %v, %v; want none", found, err)
	}
	if err := SaveCheckpoint(t.Context(), job.Claimed, position{7}); err != nil {
		t.Fatal(err)
	}
	if got, found, err := LoadCheckpoint[position](t.Context(), job.Claimed); got.Row != 7 || !found || err != nil {
		t.Errorf("loaded %+v, %v, %v; want row 7", got, found, err)
	}
	_, found, err := LoadCheckpoint[[]string](t.Context(), job.Claimed)
	if found || err == nil || !strings.Contains(err.Error(), "decode the checkpoint of job "+RootTenant.String()+" (greet) into []string") {
		t.Errorf("as another type: %v, %v; want an error that names job and type", found, err)
	}
}

// recording has h take what the job reports.
func recording(job *Claimed, h engine.Recorder) *Claimed {
	engine.InternalOf(job).Recorder = h
	return job
}
