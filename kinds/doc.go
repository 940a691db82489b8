// Package kinds says what the payloads of each kind of job look like, as JSON Schemas
// (draft 2020-12 unless they say otherwise), and checks payloads by them.
//
//	var schemas kinds.Schemas
//	err := kinds.AddType[SendReceipt](&schemas)             // derived from the Go type
//	err = schemas.AddFolder(os.DirFS("schemas"))            // files KIND.schema.json
//
//	api.Config{Kinds: &schemas}                             // POST /jobs refuses others; GET /kinds shows them
//	outbox.Enqueue(ctx, tx, args, outbox.Options{Check: &schemas})
//
// A payload is checked where it enters, and nowhere else: what is stored is handed
// to its handler whatever the schema says by then. Payloads of kinds without a schema, and
// those that are not JSON, are not looked at.
package kinds
