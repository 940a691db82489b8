package dispatcher

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/search"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
)

// searches looks, beside the claims of a queue, for due jobs that they do not reach (scheduler.Search).
type searches struct {
	*claimer
	finder  *search.Finder
	running sync.WaitGroup
	ended   chan search.Answer // has room for one
}

// next learns from a search that has ended, and begins one that is due.
func (s *searches) next(ctx context.Context) {
	select {
	case answer := <-s.ended:
		s.learn(ctx, answer)
	default:
	}
	kinds := s.circuits.Claimable()
	if len(kinds) == 0 || s.keyed.Offered()+s.sched.Unclaimed() >= maxBatch { // claims have enough to look at
		return
	}
	ranges := s.sched.Search(time.Now())
	if len(ranges) == 0 {
		return
	}
	s.running.Go(func() {
		answer := s.finder.Find(ctx, s.queue, kinds, ranges)
		s.ended <- answer // there is room: no search begins before the loop has read this
		// If the search has failed, the loop learns of it when it looks next: it may be waiting for the database.
		if answer.End() != scheduler.SearchFailed || len(slices.Concat(answer.Found...)) > 0 {
			s.capacity.Poke()
		}
	})
}

func (s *searches) learn(ctx context.Context, answer search.Answer) {
	s.sched.NoteSearch(answer.Ranges, answer.Found, answer.End(), time.Now(), answer.Took, answer.Read)
	if answer.Err != nil && ctx.Err() == nil {
		s.health.Complain(ctx, "search for due jobs failed", answer.Err, slog.String("queue", s.queue))
	}
	n := 0
	for i, found := range answer.Found {
		n += len(found)
		for _, at := range found {
			if r := answer.Ranges[i]; r.Keyed {
				s.keyed.Offer(r.Tenant, pgvalue.UUID(at.ID))
			}
		}
	}
	if n > 0 {
		s.log.LogAttrs(ctx, slog.LevelInfo, "due jobs found behind dead entries, which a snapshot or vacuum's delay keeps",
			slog.String("queue", s.queue), slog.Int("jobs", n), slog.Duration("took", answer.Took))
	}
}
