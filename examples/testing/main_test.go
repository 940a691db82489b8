//go:build !reader

package orders_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

var pool *pgxpool.Pool

// These tests bring their own Postgres. The TestMain that the guide shows, in reader_test.go, takes the reader's.
func TestMain(m *testing.M) { os.Exit(pgtest.Wrap(onDatabase{m}).Run()) }

// onDatabase runs the tests on one database for all.
type onDatabase struct{ tests pgtest.Runner }

func (o onDatabase) Run() int {
	ctx := context.Background()
	made, end := pgtest.Example()
	defer end()
	var err error
	if pool, err = openTestDatabase(ctx, made.Config().ConnString()); err != nil {
		panic(err)
	}
	defer pool.Close()
	return o.tests.Run()
}
