package engine

// Internal gives a public type a T that only our packages can reach, by [InternalOf]. The public type embeds it under
// an alias that is not exported. Go promotes Internal's method into the public type, and no code outside this package
// can call or declare a method of that name.
type Internal[T any] struct{ t T }

func (i *Internal[T]) engine() *T { return &i.t }

// InternalOf returns what our packages keep in a value of a type that embeds an [Internal].
func InternalOf[T any](x interface{ engine() *T }) *T { return x.engine() }

// Watched is kept in options. It reports that a caller waits for the job, so its end is announced.
type Watched bool
