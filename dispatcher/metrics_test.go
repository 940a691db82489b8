package dispatcher_test

import (
	"context"
	"log/slog"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Every series exists before the first job, so that rates start at zero. The
// names and labels are what dashboards and docs/operate/operations.md rely on.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	config := quiet(nil)
	config.Registerer = registry
	config.Worker = "host-a" // a restart does not change the label
	mux := handle(func(context.Context, *outbox.Job[probe]) error { return nil })
	if _, err := dispatcher.New(pgtest.New(t), mux, config); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			got = append(got, f.GetName()+"{"+strings.Join(labels, ",")+"}")
		}
	}
	slices.Sort(got)
	want := []string{
		"job_claimed_total{job_type=probe,worker_id=host-a}",
		"job_completed_total{job_type=probe,status=dead}",
		"job_completed_total{job_type=probe,status=failed}",
		"job_completed_total{job_type=probe,status=success}",
		"job_poll_scanned_total{}",
		"job_processing_seconds{job_type=probe}",
		"outbox_dispatcher_attempts_total{job_type=probe,outcome=cancelled}",
		"outbox_dispatcher_attempts_total{job_type=probe,outcome=dead}",
		"outbox_dispatcher_attempts_total{job_type=probe,outcome=expired}",
		"outbox_dispatcher_attempts_total{job_type=probe,outcome=failed}",
		"outbox_dispatcher_attempts_total{job_type=probe,outcome=pending}",
		"outbox_dispatcher_attempts_total{job_type=probe,outcome=retrying}",
		"outbox_dispatcher_attempts_total{job_type=probe,outcome=succeeded}",
		"outbox_dispatcher_claim_batch_size{}",
		"outbox_dispatcher_enqueue_to_start_seconds{job_type=probe}",
		"outbox_dispatcher_extensions_late_total{}",
		"outbox_dispatcher_kind_unavailable{job_type=probe,queue=default}",
		"outbox_dispatcher_leases_lost_total{}",
		"outbox_dispatcher_limit_stops_total{limit=max_running,queue=default}",
		"outbox_dispatcher_limit_stops_total{limit=paused,queue=default}",
		"outbox_dispatcher_limit_stops_total{limit=rate,queue=default}",
		"outbox_dispatcher_overruns_total{job_type=probe}",
		"outbox_dispatcher_settle_batch_size{}",
		"outbox_dispatcher_slots_busy{queue=default}",
		"outbox_dispatcher_slots{queue=default}",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func TestSlotsAreBusyWhileHandlersRun(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config := quiet(nil)
	config.Queues = map[string]dispatcher.QueueConfig{"default": {Concurrency: 3}}
	release := make(chan struct{})
	enqueueProbes(t, db, 5, outbox.Options{MaxAttempts: 1})
	d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		<-release
		if job.Args.N == 0 {
			runtime.Goexit()
		}
		return nil
	}), config)
	const slots, busy = "outbox_dispatcher_slots", "outbox_dispatcher_slots_busy"
	awaitThat(t, "all slots are busy", func() bool { return d.metric(t, busy) == 3 })
	if got := d.metric(t, slots); got != 3 {
		t.Errorf("%v slots, want 3", got)
	}
	close(release)
	await(t, db, "all have ended", `SELECT count(*) = 4 AND (SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'dead') FROM outbox.history`)
	awaitThat(t, "no slot is busy", func() bool { return d.metric(t, busy) == 0 })
	d.stop(t)
}

func TestLogJobsSaysWhichLinesAreLogged(t *testing.T) {
	t.Parallel()
	for mode, want := range map[dispatcher.LogJobs][]string{
		dispatcher.LogAll: {"job_claimed", "job_completed", "job_failed"}, dispatcher.LogFailures: {"job_failed"}, dispatcher.LogNone: nil,
	} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			enqueueProbes(t, db, 2, outbox.Options{MaxAttempts: 1})
			config := quiet(nil)
			config.LogJobs = mode
			d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
				if job.Args.N == 0 {
					return errBoom
				}
				return nil
			}), config)
			await(t, db, "both have ended", `SELECT count(*) = 1 AND (SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'dead') FROM outbox.history`)
			d.stop(t)
			for _, event := range []string{"job_claimed", "job_completed", "job_failed"} {
				if got := strings.Contains(d.log.String(), "event="+event); got != slices.Contains(want, event) {
					t.Errorf("a line with %s: %t", event, got)
				}
			}
		})
	}
}

// The lines about jobs that docs/operate/operations.md shows have the members of those that are logged, in their order.
func TestThePageShowsTheLinesAboutJobs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operate/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(page), "<!-- run by dispatcher/metrics_test.go -->\n```json\n")
	shown, _, _ = strings.Cut(shown, "```")
	db := pgtest.New(t)
	ids := enqueueProbes(t, db, 3, outbox.Options{})
	started := make(chan struct{}, 1)
	config, lines := quiet(nil), new(logbook)
	config.Logger = slog.New(slog.NewJSONHandler(lines, nil))
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		switch job.Args.N {
		case 0:
			return dispatcher.RetryAfter(time.Hour, errBoom)
		case 1:
			started <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}), config)
	receive(t, started, "the handler to start")
	cancelJob(t, db, ids[1], "running")
	await(t, db, "all have ended", `SELECT count(*) = 2 AND (SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'retrying') FROM outbox.history`)
	d.stop(t)
	member := regexp.MustCompile(`"(\w+)":`)
	members := func(line string) string {
		var names []string
		for _, m := range member.FindAllStringSubmatch(line, -1) {
			if m[1] != "time" { // which the page leaves out
				names = append(names, m[1])
			}
		}
		return strings.Join(names, " ")
	}
	for _, event := range strings.Fields("job_claimed job_completed job_cancelled job_failed") {
		line := regexp.MustCompile(`(?m)^.*"event":"` + event + `".*$`)
		if got, want := members(line.FindString(shown)), members(line.FindString(lines.String())); got != want || want == "" {
			t.Errorf("docs/operate/operations.md shows %s with %s, it is logged with %s", event, got, want)
		}
	}
}

func TestMetricsCountWhatHappened(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 10, outbox.Options{MaxAttempts: 2})
	d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		switch job.Args.N {
		case 0:
			return dispatcher.Discard(errBoom)
		case 1:
			return dispatcher.RetryAfter(0, errBoom)
		}
		return nil
	}), quiet(nil))
	await(t, db, "all are settled", `SELECT count(*) = 8 AND (SELECT count(*) = 2 FROM outbox.jobs WHERE status IN ('failed', 'dead')) FROM outbox.history`)
	d.stop(t)
	for name, want := range map[string]float64{
		"job_claimed_total":                          11, // one was tried twice
		"job_completed_total":                        10,
		"job_processing_seconds":                     11,
		"outbox_dispatcher_attempts_total":           11,
		"outbox_dispatcher_enqueue_to_start_seconds": 11,
		"outbox_dispatcher_leases_lost_total":        0,
	} {
		if got := d.metric(t, name); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	for _, event := range []string{"event=job_claimed", "event=job_completed", "event=job_failed"} {
		if !strings.Contains(d.log.String(), event) {
			t.Errorf("the log has no %s", event)
		}
	}
}
