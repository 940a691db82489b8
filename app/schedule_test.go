package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/schedule"
)

func TestAScheduledJobIsHandled(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	handled := make(chan schedule.Tick, 100)
	mux := new(dispatcher.Mux)
	dispatcher.Handle(mux, func(_ context.Context, job *outbox.Job[greet]) error {
		if tick, ok := schedule.TickOf(job.Claimed); ok && job.Args.Name == "Ada" {
			handled <- tick
		}
		return nil
	})
	start(t, mux, Config{DatabaseURL: pool.Config().ConnString(), Schedules: []schedule.Schedule{
		schedule.Every("every-second", time.Second, greet{"Ada"}, schedule.Options{}),
	}})
	for range 2 {
		select {
		case tick := <-handled:
			if tick.Schedule != "every-second" || tick.At.Nanosecond() != 0 {
				t.Errorf("got the tick %+v, want one of a full second", tick)
			}
		case <-time.After(time.Minute):
			t.Fatal("waited in vain for a scheduled job")
		}
	}
}

// One that is made while the process runs is noticed by its notification: the poll would take half a minute.
func TestAScheduleThatIsMadeAtRunTimeIsNoticed(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	handled := make(chan time.Time, 100)
	mux := new(dispatcher.Mux)
	dispatcher.Handle(mux, func(context.Context, *outbox.Job[greet]) error {
		handled <- time.Now()
		return nil
	})
	p := start(t, mux, Config{DatabaseURL: pool.Config().ConnString()})
	p.awaitReadyz(200, "ready", nil)
	made := time.Now()
	every := schedule.Edit{Every: new(time.Second), Kind: new("greet"), Payload: []byte(`{"Name":"Ada"}`)}
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := every.New(outbox.RootTenant, "at-run-time").CreateIn(t.Context(), tx, "ada")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	select {
	case at := <-handled:
		if took := at.Sub(made); took > 20*time.Second {
			t.Errorf("its first job came after %s", took)
		}
	case <-time.After(time.Minute):
		t.Fatal("waited in vain for a scheduled job")
	}
}

func TestASchedulesQueueThatIsNotWorkedIsAWarning(t *testing.T) {
	t.Parallel()
	for queue, want := range map[string]bool{"reports": true, "": false} {
		var log bytes.Buffer
		s := schedule.Every("s", time.Minute, greet{}, schedule.Options{Queue: queue})
		p, err := newProcess(greeter(nothing), Config{
			DatabaseURL: "postgres://nobody@127.0.0.1:1/none", Schedules: []schedule.Schedule{s}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		p.closePools()
		if got := strings.Contains(log.String(), "does not work its queue"); got != want {
			t.Errorf("queue %q: warned %t, want %t:\n%s", queue, got, want, log.String())
		}
	}
}

func TestAMistakeInAScheduleStartsNothing(t *testing.T) {
	t.Parallel()
	wrong := schedule.Cron("s", "0 99 * * *", "UTC", greet{}, schedule.Options{})
	err := Run(t.Context(), nil, Config{DatabaseURL: "postgres://nobody@127.0.0.1:1/none", Schedules: []schedule.Schedule{wrong}})
	if invalid, ok := errors.AsType[*outbox.InvalidError](err); !ok || invalid.Field != "expression.hour" {
		t.Errorf("got %v, want an InvalidError of expression.hour", err)
	}
	if err := Run(t.Context(), nil, Config{DatabaseURL: "postgres://nobody@127.0.0.1:1/none", NoSchedule: true, Schedules: []schedule.Schedule{wrong}}); err == nil {
		t.Error("schedules that nobody would declare have no error")
	}
}
