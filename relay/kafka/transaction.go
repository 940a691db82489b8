package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/posthaste-dev/posthaste/relay"
)

var errNotCommitted = errors.New("it was sent, and its transaction has not been committed")

// transact sends a run as a transaction. If the transaction was aborted because of some messages, it sends the rest
// again.
//
// A process that takes the sink over begins by asking for the transactional ID. The broker then aborts the open
// transaction of the previous process, and refuses whatever that process sends later:
//
//	old    sends 1 and 2, and stands still
//	new    asks for the ID          1 and 2 are aborted
//	new    sends 1, 2 and 3, commits
//	old    goes on: sends 3         refused
func (p *publication) transact(ctx context.Context, r *run) {
	for len(r.of) > 0 && !p.over {
		r = p.transactOnce(ctx, r)
	}
}

// transactOnce sends one transaction and returns the messages to send again.
func (p *publication) transactOnce(ctx context.Context, r *run) (again *run) {
	again = &run{}
	if err := p.client.BeginTransaction(); err != nil {
		p.abandon(r, make([]error, len(r.of)), err)
		return again
	}
	ends := p.exchange(ctx, r)
	if p.over { // the client is closed, and its transaction will be aborted
		p.abandon(r, ends, errNotCommitted)
		return again
	}
	some := slices.ContainsFunc(ends, func(err error) bool { return err != nil })
	if err := p.client.EndTransaction(ctx, kgo.TransactionEndTry(!some)); err != nil {
		p.abandon(r, ends, err)
		return again
	}
	if len(r.of) > 1 && slices.ContainsFunc(ends, isOfBatch) {
		p.halve(ctx, r)
		return again
	}
	for n, i := range r.of {
		switch err := ends[n]; {
		case err == nil && !some:
			p.settle(i, nil)
		case err == nil:
			again.add(i, fresh(r.records[n]), 0)
		default:
			p.end(i, err)
		}
	}
	// A message that is not stored because a later one of its key found the topic away has the same outcome.
	for _, i := range again.of {
		if away, ok := errors.AsType[*relay.UnavailableError](p.failed[p.batch[i].Key]); ok {
			p.outcomes[i] = away
		}
	}
	return p.unfailed(again)
}

// halve sends a refused run in two parts, if the broker does not name the message at fault.
func (p *publication) halve(ctx context.Context, r *run) {
	half := len(r.of) / 2
	for _, part := range []*run{
		{of: r.of[:half], records: r.records[:half]},
		{of: r.of[half:], records: r.records[half:]},
	} {
		again := &run{}
		for n, i := range part.of {
			again.add(i, fresh(part.records[n]), 0)
		}
		p.transact(ctx, p.unfailed(again))
	}
}

// unfailed returns a run without the messages of keys that have one that was not accepted.
func (p *publication) unfailed(r *run) *run {
	kept := &run{}
	for n, i := range r.of {
		if p.failed[p.batch[i].Key] == nil {
			kept.add(i, r.records[n], 0)
		}
	}
	return kept
}

// abandon settles a run of which nothing is known to be committed, and drops the client.
func (p *publication) abandon(r *run, ends []error, err error) {
	p.over = true
	p.sink.drop()
	for n, i := range r.of {
		outcome := cmp.Or(ends[n], err)
		if isFenced(outcome) {
			outcome = &relay.UnavailableError{
				Code: relay.CodeUnavailable, Err: fmt.Errorf("another process has the transactional ID %q now: %w",
					p.sink.config.TransactionalID, outcome),
			}
		} else {
			outcome, _ = classify(outcome)
		}
		p.settle(i, outcome)
	}
}

func isFenced(err error) bool {
	return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)
}
