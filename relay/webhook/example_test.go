package webhook_test

import (
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/relay/webhook"
)

// How do I post the jobs of a kind to a service that is not written in Go?
func ExampleHandler() {
	var mux dispatcher.Mux
	hook, err := webhook.Handler("https://mail.example.com/send", webhook.Config{
		Signing: webhook.Signing{File: "/run/secrets/webhook"}, // whsec_…, one a line
	})
	if err != nil {
		panic(err)
	}
	mux.HandleRaw("mail.send", hook)
}
