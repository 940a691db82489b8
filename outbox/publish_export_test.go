package outbox

import "context"

type PublishRequest = publishRequest

func PublishMany(ctx context.Context, db DB, requests []PublishRequest) ([]ID, error) {
	return publishMany(ctx, db, requests, notifiesAtCommit(db, eventsChannel))
}

func (p *Producer) Publish(ctx context.Context, db DB, event Event, opts EventOptions) (ID, error) {
	return publish(ctx, db, event, opts, p.mode != NotifyOff && notifiesAtCommit(db, eventsChannel))
}

func (p *Producer) PublishMany(ctx context.Context, db DB, requests []PublishRequest) ([]ID, error) {
	return publishMany(ctx, db, requests, p.mode != NotifyOff && notifiesAtCommit(db, eventsChannel))
}
