// Package pgdocker starts Postgres in a container with testcontainers, for the integration tests. It is a module of its
// own: otherwise its dependencies would be in the go.sum of everyone who imports package outbox.
package pgdocker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/modules/postgres"
)

const (
	engineTimeout = 3 * time.Second // for an engine to answer at all
	defaultMajor  = "18"
)

// Start runs a container with the given settings and returns the URL of its
// database "postgres" once it answers there, and a function that ends it. The
// image is POSTHASTE_PG_IMAGE, else postgres:<major>-alpine. Without an engine
// it fails within a few seconds. A container left behind by a crash is removed
// by testcontainers' Ryuk, unless TESTCONTAINERS_RYUK_DISABLED says not to run it.
func Start(ctx context.Context, major string, settings map[string]string) (url string, stop func(), err error) {
	log.SetDefault(quiet{}) // or it reports every engine it meets
	if err := engine(ctx); err != nil {
		return "", nil, fmt.Errorf("no engine answers: %w", err)
	}
	image := cmp.Or(os.Getenv("POSTHASTE_PG_IMAGE"), "postgres:"+cmp.Or(major, defaultMajor)+"-alpine")
	command := []string{"postgres"}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		command = append(command, "-c", name+"="+settings[name])
	}
	name := "posthaste-" + rand.Text()
	command = append(command, "-c", "cluster_name="+name)
	container, err := postgres.Run(ctx, image,
		postgres.WithDatabase("postgres"),
		postgres.WithUsername("postgres"),
		postgres.WithPassword("postgres"),
		testcontainers.WithCmd(command...),
		testcontainers.WithLogger(quiet{}))
	stop = func() {
		if container != nil {
			// Without a shutdown, since the data are deleted. After an error, Ryuk removes the container.
			_ = testcontainers.TerminateContainer(container, testcontainers.StopTimeout(0))
		}
	}
	if err == nil {
		url, err = awaitReady(ctx, container, name)
	}
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("run %s: %w", image, err)
	}
	return url, stop, nil
}

// engine returns nil if a container engine answers. testcontainers looks for one in many places, some of which ignore
// contexts or panic.
func engine(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				answer <- fmt.Errorf("%v", p)
			}
		}()
		provider, err := testcontainers.NewDockerProvider(testcontainers.WithLogger(quiet{}))
		if err == nil {
			err = errors.Join(provider.Health(ctx), provider.Close())
		}
		answer <- err
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// quiet discards the output of testcontainers.
type quiet struct{}

var _ log.Logger = quiet{}

// Printf discards its arguments.
func (quiet) Printf(string, ...any) {}
