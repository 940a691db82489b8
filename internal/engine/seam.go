package engine

// Seam gives a public type a T that only our packages can reach, by [Of]. The public type embeds it under an alias that
// is not exported. Go promotes Seam's method into the public type, and no code outside this package can call or declare
// a method of that name.
type Seam[T any] struct{ t T }

func (s *Seam[T]) engine() *T { return &s.t }

// Of returns what our packages keep in a value of a type that embeds a [Seam].
func Of[T any](x interface{ engine() *T }) *T { return x.engine() }

// Watched is kept in options. It reports that a caller waits for the job, so its end is announced.
type Watched bool
