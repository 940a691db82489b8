// Package client is the REST API in Go: a method a route, typed requests and
// answers. It speaks HTTP and knows nothing of the server's packages; a test
// compares it with the API's description, route by route and property by property.
//
//	c, err := client.New("https://jobs.example.com", client.Config{Token: token})
//	accepted, err := c.Enqueue(ctx, client.NewJob{
//		Kind: "receipt.send", Payload: map[string]any{"orderId": 7}, IdempotencyKey: "receipt-7",
//	})
//
// What the API answers in place of what was asked for is a [*Problem]. Its Outcome says
// whether nothing was done, or that is not known: not every problem is a refusal. A
// request is repeated only where the API
// says that this is safe: when it only looks, when it enqueues with idempotency
// keys, and when the server says that nothing was done (429).
package client
