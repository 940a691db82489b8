// Package rpc answers operators' questions about jobs, and does what they ask for, over NATS: a micro service with the
// methods Jobs.Health, ListServices, List, Get, GetKey, Retry, Cancel, ListDLQ, ReplayDLQ and DismissDLQ. It is a skin
// over package operator, as the HTTP API is; docs/operate/nats.md has what each method takes, answers and needs.
//
// Guarantees:
//
//   - Nobody gets in without a bearer token in the header Authorization, with the tokens and capabilities of the API. A
//     method needs what the API's route needs that does the same, and admin.read or admin.mutate besides.
//   - A caller of one tenant sees and changes jobs of that tenant only; those of others answer, and cost, what absent
//     ones do.
//   - The statistics of the service, which need no token, have numbers of requests in them and nothing of what was
//     asked for or answered.
//   - Acts are in the audit, with the token's name and the request's id.
//
// Any number of processes may serve: they share a queue group, and each request is one server's.
//
// # Files
//
//	service.go  Config, New and Run: a connection, its endpoints, how they end
//	request.go  one request: what it may, and its answer
//	methods.go  what is asked for and answered
//	list.go     pages by offset, made of pages by keyset
//	key.go      how a key stands
//	wire.go     jobs as they are sent
//	fault.go    errors as they are sent
package rpc
