package lifecycle_test

import (
	"fmt"

	"github.com/posthaste-dev/posthaste/lifecycle"
	"github.com/posthaste-dev/posthaste/outbox"
)

// This is what a consumer does with each message.
func Example() {
	jobs := map[outbox.ID]lifecycle.State{}
	for _, message := range []string{
		`{"job":"01a2175a-3d24-728e-b9f6-e3596a53baf4","event":"created","n":1,"state":"pending","epoch":0,"attempt":0,
			"queue":"mail","kind":"mail.send","at":"2026-11-26T10:00:00Z","payload":{"to":"ada"}}`,
		`{"job":"01a2175a-3d24-728e-b9f6-e3596a53baf4","event":"started","n":2,"previous":"pending","state":"running",
			"epoch":1,"attempt":1,"queue":"mail","kind":"mail.send","at":"2026-11-26T10:00:01Z","worker":"w1"}`,
		`{"job":"01a2175a-3d24-728e-b9f6-e3596a53baf4","event":"completed","n":3,"previous":"running","state":"succeeded",
			"epoch":1,"attempt":1,"queue":"mail","kind":"mail.send","at":"2026-11-26T10:00:02Z","result":{"sent":true}}`,
	} {
		event, err := lifecycle.Decode([]byte(message))
		if err != nil {
			fmt.Println(err)
			continue
		}
		jobs[event.Job], err = lifecycle.Reduce(jobs[event.Job], event)
		if err != nil { // events are missing, or contradict each other
			fmt.Println(err)
		}
	}
	for _, job := range jobs {
		fmt.Printf("%s is %s after %d events: %s gave %s\n", job.Kind, job.Status, job.N, job.Payload, job.Result)
	}
	// Output: mail.send is succeeded after 3 events: {"to":"ada"} gave {"sent":true}
}
