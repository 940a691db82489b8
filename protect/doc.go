// Package protect has two ways to store something else than a job's payload: a
// [Keyring] encrypts it, a [ClaimCheck] puts it elsewhere when it is large.
//
//	ring, err := protect.NewKeyring(protect.Key{ID: "2026-11", Secret: secret})
//	id, err := outbox.Enqueue(ctx, tx, args, outbox.Options{Protect: ring})
//	…
//	mux.Use(dispatcher.Protect(ring))
//	…
//	waiter, err := await.New(pool, await.Config{Protect: ring})
package protect
