package kinds_test

import (
	"context"
	"fmt"

	"github.com/posthaste-dev/posthaste/kinds"
	"github.com/posthaste-dev/posthaste/outbox"
)

type greet struct {
	Name string `json:"name" minLength:"1" doc:"Who is greeted"`
}

func (greet) Kind() string { return "greet" }

// How does a producer refuse a payload that no handler could use?
func ExampleAddType() {
	var schemas kinds.Schemas
	if err := kinds.AddType[greet](&schemas); err != nil {
		panic(err)
	}
	var tx outbox.DB // the transaction of your business change
	_, err := outbox.Enqueue(context.Background(), tx, greet{}, outbox.Options{Check: &schemas})
	fmt.Println(err)
	// Output: enqueue "greet": Args/name minLength: got 0, want 1
}
