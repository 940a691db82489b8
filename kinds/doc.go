// Package kinds describes the payloads of each kind of job by JSON Schemas (draft 2020-12 unless a schema names
// another) and validates payloads against them.
//
//	var schemas kinds.Schemas
//	err := kinds.AddType[SendReceipt](&schemas)             // derived from the Go type
//	err = schemas.AddFolder(os.DirFS("schemas"))            // files KIND.schema.json
//
//	api.Config{Kinds: &schemas}                             // POST /jobs refuses others; GET /kinds shows them
//	outbox.Enqueue(ctx, tx, args, outbox.Options{Check: &schemas})
//
// A payload is checked where it enters and nowhere else: a stored payload goes to its handler even if the schema has
// changed since. Payloads of kinds without a schema, and payloads that are not JSON, are not checked.
package kinds
