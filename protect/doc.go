// Package protect offers two ways to store a job's content in another form: a [Keyring] encrypts it, and a [ClaimCheck]
// moves it elsewhere when it is large.
//
//	ring, err := protect.NewKeyring(protect.Key{ID: "2026-11", Secret: secret})
//	id, err := outbox.Enqueue(ctx, tx, args, outbox.Options{Protect: ring})
//	…
//	mux.Use(dispatcher.Protect(ring))
//	…
//	waiter, err := await.New(pool, await.Config{Protect: ring})
package protect
