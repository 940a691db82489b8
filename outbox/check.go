package outbox

// Checker says whether a payload is one of its kind's: package kinds has one that goes
// by JSON Schemas. Give it to [Options] as Check. It has to be safe for concurrent use.
type Checker interface {
	// Check returns nil, or the [*InvalidError]s of the payload, joined. Their Field is
	// Args and the JSON pointer of what is wrong, as in Args/order/id.
	Check(kind string, payload Content) error
}
