package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/pgdev"
)

// lostCommits runs row E7, in which two events get the same position in turn.
func lostCommits(ctx context.Context, r *Run) (err error) {
	const lost = 500
	standby, err := r.Server.Standby(ctx, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, standby.Stop()) }()
	if err := r.connectToEither(ctx, standby); err != nil {
		return err
	}
	defer func() { r.DB.Close() }()
	relay, err := r.relay("relay", "VERIFY_SINKS=s=ledger", "OUTBOX_LEASE_TTL=1s")
	if err != nil {
		return err
	}
	acked := map[string]time.Time{}
	publish := func() error {
		p := &publishing{clients: 8, keys: 100, open: 4 * time.Millisecond, rest: 10 * time.Millisecond}
		if err := r.publish(ctx, p); err != nil {
			return err
		}
		err := backoff.Sleep(ctx, 3*time.Second)
		if err = errors.Join(err, p.stop()); err != nil {
			return err
		}
		maps.Copy(acked, p.acked)
		return r.awaitPublished(ctx, "s", patience)
	}
	if err := publish(); err != nil {
		return err
	}
	times := r.Size(1, 5)
	for i := range times {
		if i > 0 { // a new standby takes the place of the dead server
			if standby, err = r.Server.Standby(ctx, port(standby)); err != nil {
				return err
			}
		}
		if err := r.leaveBehind(ctx, standby); err != nil {
			return err
		}
		if err := r.store(ctx, lost, fmt.Sprintf("lost%d-", i)); err != nil {
			return err
		}
		if err := r.awaitPublished(ctx, "s", patience); err != nil {
			return err
		}
		if _, err := r.promote(ctx, &standby); err != nil {
			return err
		}
		r.DB.Reset() // our own connections are gone, too
		if err := publish(); err != nil {
			return err
		}
	}
	if err := r.stop(ctx, relay); err != nil {
		return err
	}
	return r.checkLost(ctx, acked, times)
}

// leaveBehind stops replication to the standby, and makes commits stop waiting for it.
func (r *Run) leaveBehind(ctx context.Context, standby *pgdev.Server) error {
	for _, at := range []struct{ url, setting string }{
		{r.Server.URL(), "synchronous_standby_names"},
		{standby.URL(), "primary_conninfo"},
	} {
		conn, err := pgx.Connect(ctx, at.url)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, `ALTER SYSTEM SET `+at.setting+` = ''`)
		if err == nil {
			_, err = conn.Exec(ctx, `SELECT pg_reload_conf()`)
		}
		if err = errors.Join(err, conn.Close(ctx)); err != nil {
			return err
		}
	}
	return r.Await(ctx, patience, "the standby to be cut off", func(ctx context.Context) (off bool, err error) {
		err = r.DB.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM pg_stat_replication)`).Scan(&off)
		return off, err
	})
}

// checkLost compares the messages that the sink has accepted with the log of the last server.
func (r *Run) checkLost(ctx context.Context, acked map[string]time.Time, times int) error {
	got, err := r.accepted("s")
	if err != nil {
		return err
	}
	repeats, err := r.checkPublished(ctx, acked, got, func(body string) bool { return strings.HasPrefix(body, "lost") })
	if err != nil {
		return err
	}
	ids, twice := map[int64]string{}, 0
	for _, m := range got {
		if id, known := ids[m.position]; known && id != m.id {
			twice++
		}
		ids[m.position] = m.id
	}
	r.Figure("messages_repeated", float64(repeats))
	r.Expect("messages published more than once", float64(repeats), "<=", float64(1000*times))
	r.Expect("positions that two events had in turn", float64(twice), ">=", float64(100*times))
	r.atLeast(times, failedOver)
	return nil
}
