package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

// outcomes maps brokers' answers to outcomes. An answer that is not listed leaves the message unknown.
var (
	refusals = map[*kerr.Error]string{
		kerr.MessageTooLarge:          relay.CodeTooLarge,
		kerr.RecordListTooLarge:       relay.CodeTooLarge,
		kerr.InvalidTopicException:    relay.CodeBadDestination,
		kerr.TopicAuthorizationFailed: relay.CodeForbidden,
		kerr.PolicyViolation:          relay.CodeRefused,
		kerr.InvalidRecord:            relay.CodeRefused,
		kerr.InvalidTimestamp:         relay.CodeRefused,
	}
	outages = map[*kerr.Error]string{
		kerr.UnknownTopicOrPartition:      relay.CodeNoDestination,
		kerr.UnknownTopicID:               relay.CodeNoDestination, // see perhapsStored
		kerr.KafkaStorageError:            relay.CodeFull,
		kerr.ThrottlingQuotaExceeded:      relay.CodeFull,
		kerr.LeaderNotAvailable:           relay.CodeNoLeader,
		kerr.NotLeaderForPartition:        relay.CodeNoLeader,
		kerr.BrokerNotAvailable:           relay.CodeUnavailable,
		kerr.ReplicaNotAvailable:          relay.CodeNoLeader,
		kerr.CoordinatorNotAvailable:      relay.CodeUnavailable,
		kerr.NotEnoughReplicas:            relay.CodeNoLeader,
		kerr.NotEnoughReplicasAfterAppend: relay.CodeNoLeader, // see perhapsStored
		kerr.RequestTimedOut:              relay.CodeNoLeader, // see perhapsStored
		kerr.ConcurrentTransactions:       relay.CodeUnavailable,
		kerr.SaslAuthenticationFailed:     relay.CodeForbidden,
		kerr.UnsupportedSaslMechanism:     relay.CodeForbidden,
		kerr.IllegalSaslState:             relay.CodeForbidden,
		kerr.ClusterAuthorizationFailed:   relay.CodeForbidden, // no permission for a producer ID

		kerr.TransactionalIDAuthorizationFailed: relay.CodeForbidden,
	}
)

// perhapsStored lists answers of a leader that has the record, but not the replicas' word that they have it, and the
// answer of a client that finds a topic deleted and created again: the new one may have the record, and this client
// never publishes to it.
var perhapsStored = map[*kerr.Error]bool{
	kerr.NotEnoughReplicasAfterAppend: true, kerr.RequestTimedOut: true, kerr.UnknownTopicID: true,
}

// ofBatch lists refusals of a whole batch because of one of its messages.
var ofBatch = []*kerr.Error{
	kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.PolicyViolation, kerr.InvalidRecord,
	kerr.InvalidTimestamp,
}

func isOfBatch(err error) bool {
	answer, ok := errors.AsType[*kerr.Error](err)
	for _, e := range ofBatch {
		if ok && answer.Code == e.Code {
			return true
		}
	}
	return false
}

// classify returns the outcome for the error of a record. known reports whether the record is certainly not stored.
func classify(err error) (outcome error, known bool) {
	if answer, ok := errors.AsType[*kerr.Error](err); ok {
		for e, code := range refusals {
			if e.Code == answer.Code {
				return &relay.RefusedError{Code: code, Err: err}, true
			}
		}
		for e, code := range outages {
			if e.Code == answer.Code {
				return &relay.UnavailableError{Code: code, Err: err}, !perhapsStored[e]
			}
		}
		return err, false
	}
	if unreachable(err) {
		return away(err), false
	}
	if errors.Is(err, kgo.ErrRecordRetries) {
		return away(err), false
	}
	return err, false
}

// unreachable reports whether the client could not connect.
func unreachable(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial" || credentials.IsUntrusted(err)
}

// away returns the outcome of messages that were not sent because no broker can be reached.
func away(err error) error {
	code := relay.CodeUnavailable
	if answer, ok := errors.AsType[*kerr.Error](err); ok {
		for _, e := range []*kerr.Error{
			kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism,
			kerr.IllegalSaslState, kerr.ClusterAuthorizationFailed,
		} {
			if e.Code == answer.Code {
				code = relay.CodeForbidden
			}
		}
	}
	if credentials.IsUntrusted(err) {
		code = relay.CodeForbidden
	}
	return &relay.UnavailableError{Code: code, Err: err}
}

// ended returns the outcome of messages that had no answer when ctx ended.
func ended(ctx context.Context) error {
	return fmt.Errorf("no broker has said whether it is stored: %w", context.Cause(ctx))
}
