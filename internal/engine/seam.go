package engine

// Seam is embedded by a public type, under an alias that is not exported, and holds a T that only
// our packages can reach: by [Of]. Go promotes its method into the public type, and nobody outside
// of this package can call or declare a method of that name.
type Seam[T any] struct{ t T }

func (s *Seam[T]) engine() *T { return &s.t }

// Of returns what our packages keep in a value of a type that embeds a [Seam].
func Of[T any](x interface{ engine() *T }) *T { return x.engine() }

// Watched is kept in options: somebody waits for the job, so its end is announced.
type Watched bool
