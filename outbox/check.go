package outbox

// A Checker decides whether a payload is valid for its kind: package kinds has one that uses JSON Schemas. Set it as
// the Check of [Options]. It must be safe for concurrent use.
type Checker interface {
	// Check returns nil, or the [*InvalidError]s of the payload, joined. The Field of each is Args followed by the JSON
	// pointer to the faulty value, as in Args/order/id.
	Check(kind string, payload Content) error
}
