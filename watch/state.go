package watch

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/operator"
)

// State is one of each, shared by the API and the console of a process.
type State struct {
	Counts       *Counts
	Changes      *Changes
	Acts         *Acts
	Overviews    *Overviews
	Marks        *Marks
	Problems     *Problems
	Examinations *Examinations
	LetterGroups *LetterGroups
	Lines        *Lines
}

// Config sets how the state is watched. Its zero value is a sane production setup.
type Config struct {
	CountAtOnce bool            // see [NewCounts]
	Stopping    <-chan struct{} // see [NewCounts]; nil never stops it
	Changes     ChangesConfig
}

// New returns the state of the database that pool connects to.
func New(pool *pgxpool.Pool, c Config) *State {
	o, examinations := operator.New(pool), NewExaminations(pool)
	overviews := NewOverviews(o)
	return &State{
		Counts: NewCounts(o, c.CountAtOnce, c.Stopping), Changes: NewChanges(pool, c.Changes),
		Acts: NewActs(pool, c.Changes, overviews.Outdate), Overviews: overviews, Marks: NewMarks(o),
		Problems: NewProblems(o, examinations, c.Changes.Complain), Examinations: examinations,
		LetterGroups: NewLetterGroups(o), Lines: NewLines(o),
	}
}
