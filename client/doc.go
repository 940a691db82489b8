// Package client is a Go client of the REST API: a method for each route, typed requests and answers. It speaks HTTP
// and imports none of the server's packages; a test compares it with the API's description, route by route and property
// by property.
//
//	c, err := client.New("https://jobs.example.com", client.Config{Token: token})
//	accepted, err := c.Enqueue(ctx, client.NewJob{
//		Kind: "receipt.send", Payload: map[string]any{"orderId": 7}, IdempotencyKey: "receipt-7",
//	})
//
// If the API does not answer with the requested result, methods return a [*Problem]. Its Outcome states whether nothing
// was done, or that this is unknown: not every problem is a refusal. A request is repeated only where the API declares
// that safe: when it only reads, when it enqueues with idempotency keys, and when the server reports that nothing was
// done (429).
package client
