package pgtest

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
)

// maintenance keeps connections to the servers' maintenance databases for the next test: each test creates and drops a
// database, and on a slow machine connecting takes as long as a test.
var maintenance struct {
	sync.Mutex
	idle map[string][]*pgx.Conn
}

// maintain calls do with a connection to the server's maintenance database, and returns its error.
func maintain(ctx context.Context, server string, do func(*pgx.Conn) error) error {
	for {
		conn, kept, err := maintenanceConn(ctx, server)
		if err != nil {
			return err
		}
		err = do(conn)
		switch {
		case !conn.IsClosed():
			keepConn(server, conn)
			return err
		case kept && ctx.Err() == nil:
			continue // the kept connection was broken before: the server was restarted
		}
		return err
	}
}

func maintenanceConn(ctx context.Context, server string) (conn *pgx.Conn, kept bool, err error) {
	maintenance.Lock()
	if idle := maintenance.idle[server]; len(idle) > 0 {
		conn, maintenance.idle[server] = idle[len(idle)-1], idle[:len(idle)-1]
	}
	maintenance.Unlock()
	if conn != nil {
		return conn, true, nil
	}
	conn, err = pgx.Connect(ctx, server)
	return conn, false, err
}

func keepConn(server string, conn *pgx.Conn) {
	maintenance.Lock()
	defer maintenance.Unlock()
	if maintenance.idle == nil {
		maintenance.idle = map[string][]*pgx.Conn{}
	}
	maintenance.idle[server] = append(maintenance.idle[server], conn)
}

// closeMaintenance closes the connections that maintain has kept.
func closeMaintenance(ctx context.Context) {
	maintenance.Lock()
	defer maintenance.Unlock()
	for _, idle := range maintenance.idle {
		for _, conn := range idle {
			_ = conn.Close(ctx)
		}
	}
	maintenance.idle = nil
}
