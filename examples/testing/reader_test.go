//go:build reader

package orders_test

import (
	"context"
	"log"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// snippet:begin

var pool *pgxpool.Pool

func TestMain(m *testing.M) {
	url := os.Getenv("TEST_DATABASE_URL")
	if url == "" {
		log.Fatal("TEST_DATABASE_URL is not set")
	}
	var err error
	if pool, err = openTestDatabase(context.Background(), url); err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	m.Run() // its result is the exit status of the process, once TestMain returns
}

// snippet:end
