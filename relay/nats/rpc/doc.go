// Package rpc answers operators' questions about jobs and executes their requests over NATS: a micro service with the
// methods Jobs.Health, ListServices, List, Get, GetKey, Retry, Cancel, ListDLQ, ReplayDLQ and DismissDLQ. Like the HTTP
// API, it is a thin layer over package operator; docs/operate/nats.md lists what each method takes, answers and needs.
//
// Guarantees:
//
//   - Every caller needs a bearer token in the header Authorization, with the tokens and capabilities of the API. A
//     method needs the capability of the equivalent API route, and admin.read or admin.mutate in addition.
//   - A caller of one tenant sees and changes jobs of that tenant only; for jobs of others it gets the same answer,
//     at the same cost, as for absent ones.
//   - The statistics of the service, which need no token, contain numbers of requests and nothing of their content or
//     answers.
//   - Acts are recorded in the audit, with the token's name and the request's id.
//
// Any number of processes may serve: they share a queue group, and each request goes to one server.
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
