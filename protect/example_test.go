package protect_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/await"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/protect"
)

type PayOut struct{ IBAN string }

func (PayOut) Kind() string { return "pay.out" }

// How do I keep account numbers out of the database and its backups?
func ExampleKeyring() {
	ring, err := protect.NewKeyring(
		protect.Key{ID: "2026-11", Secret: fromVault("2026-11")}, // seals from now on
		protect.Key{ID: "2025-11", Secret: fromVault("2025-11")}, // still opens
	)
	if err != nil {
		log.Fatal(err)
	}
	_ = func(ctx context.Context, pool *pgxpool.Pool) error { // the producer
		_, err := outbox.Enqueue(ctx, pool, PayOut{"DE02…"}, outbox.Options{Protect: ring})
		return err
	}
	var mux dispatcher.Mux // the worker
	mux.Use(dispatcher.Protect(ring))
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[PayOut]) error {
		fmt.Println(job.Args.IBAN)
		return nil
	})
	_ = func(pool *pgxpool.Pool) (*await.Waiter, error) { // for callers that wait for results
		return await.New(pool, await.Config{Protect: ring})
	}
}

// How do I rotate a key while old and new processes run side by side?
func ExampleNewKeyring_rotation() {
	old := protect.Key{ID: "2025-11", Secret: fromVault("2025-11")}
	next := protect.Key{ID: "2026-11", Secret: fromVault("2026-11")}

	before, err := protect.NewKeyring(old)
	if err != nil {
		log.Fatal(err)
	}
	first, err := protect.NewKeyring(old, next) // opens with the new key, seals with the old one
	if err != nil {
		log.Fatal(err)
	}
	second, err := protect.NewKeyring(next, old) // once every process has the first: seals with the new one
	if err != nil {
		log.Fatal(err)
	}
	opens := func(by, from *protect.Keyring) bool {
		ctx, part := context.Background(), outbox.Part{Column: "payload"}
		sealed, err := from.Seal(ctx, part, outbox.Content{Type: "text/plain", Bytes: []byte("DE02…")})
		if err != nil {
			log.Fatal(err)
		}
		_, err = by.Open(ctx, part, sealed)
		return err == nil
	}
	fmt.Println("first rollout: ", opens(before, first), opens(first, before))
	fmt.Println("second rollout:", opens(first, second), opens(second, first))
	fmt.Println("both in one:   ", opens(before, second), opens(second, before))
	// Output:
	// first rollout:  true true
	// second rollout: true true
	// both in one:    false true
}

func fromVault(name string) [32]byte { return sha256.Sum256([]byte(name)) } // replace with your own

// How do I enqueue a job of 20 MB?
func ExampleClaimCheck() {
	folder, err := protect.OpenDir("/srv/shared/claims")
	if err != nil {
		log.Fatal(err)
	}
	checks := &protect.ClaimCheck{Store: folder, MaxBytes: 100 << 20} // smaller ones stay in the job
	_ = func(ctx context.Context, pool *pgxpool.Pool, scan []byte) error {
		_, err := outbox.Enqueue(ctx, pool, outbox.Raw{KindName: "scan.read", Payload: scan, ContentType: "image/tiff"}, outbox.Options{Protect: checks})
		return err
	}
	var mux dispatcher.Mux
	mux.Use(dispatcher.Protect(checks))
}
