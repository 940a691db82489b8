package download_test

import (
	"context"
	"log"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/handlers/download"
	"github.com/posthaste-dev/posthaste/outbox"
)

// How do jobs fetch files of any size over connections that break?
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	files, err := download.New(download.Config{Root: "/var/lib/shop/files", MaxBytes: 5 << 30})
	if err != nil {
		log.Fatal(err)
	}
	var mux dispatcher.Mux
	dispatcher.HandleResult(&mux, files.Download, dispatcher.KindConfig{Timeout: 2 * time.Hour})
	worker, err := dispatcher.New(pool, &mux, dispatcher.Config{})
	if err != nil {
		log.Fatal(err)
	}

	_, err = outbox.Enqueue(ctx, pool, download.Args{URL: "https://example.com/catalogue.pdf", Path: "catalogues/2026.pdf"}, outbox.Options{})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(worker.Run(ctx))
}
