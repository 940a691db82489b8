package listener_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/listener"
)

// hears runs a listener until it hears, and has it woken once.
func hears(t *testing.T, db *pgxpool.Pool, l *listener.Listener, wake listener.Signal) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	defer func() { stop(); <-done }()
	await(t, "it hears", l.Listening)
	for len(wake) > 0 {
		<-wake
	}
	if _, err := db.Exec(t.Context(), "NOTIFY "+channel); err != nil {
		t.Fatal(err)
	}
	await(t, "it is woken", func() bool { return len(wake) > 0 })
}

// A login that is made in code: the string alone leads nowhere.
func TestConnectsAsThePoolDoes(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	config, user := db.Config(), db.Config().ConnConfig.User
	config.ConnConfig.User = "nobody_such"
	config.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
		conn.User = user
		return nil
	}
	var dialled atomic.Int64
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled.Add(1)
		return dial(ctx, network, address)
	}
	config.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	wake := listener.NewSignal()
	l, err := listener.New("", channel, wake, listener.Config{Pool: pool, CanaryInterval: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	hears(t, db, l, wake)
	if dialled.Load() == 0 {
		t.Error("the pool's dialler was not used")
	}
}

func TestTheStringMayHoldSettingsOfPools(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	dsn, wake := db.Config().ConnString(), listener.NewSignal()
	separator := " "
	if strings.Contains(dsn, "://") {
		separator = "?"
		if strings.Contains(dsn, "?") {
			separator = "&"
		}
	}
	l, err := listener.New(dsn+separator+"pool_max_conns=3", channel, wake, listener.Config{CanaryInterval: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	hears(t, db, l, wake)
}

// Nobody waits for a listener to say something.
func TestABoundOnIdleSessionsIsNotForListeners(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(_ *rig, c *listener.Config) { c.CanaryInterval = time.Minute })
	r.exec(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET idle_session_timeout = 500', current_database()); END $$`)
	r.startHearing(t)
	<-time.After(2 * time.Second) // the window, not a synchronisation
	if got := r.metric(t, "outbox_listener_reconnects_total"); got != 0 || !r.Listening() {
		t.Errorf("%v reconnects in two seconds, hearing = %t", got, r.Listening())
	}
}
