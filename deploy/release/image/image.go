package main

import (
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is the user of the process: not root, and no user of a host.
const user = "65532:65532"

// build returns the image of one platform from its layer.
func build(platform v1.Platform, layer v1.Layer, version, revision string) (v1.Image, error) {
	kind, err := layer.MediaType()
	if err != nil {
		return nil, err
	}
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{
		Layer: layer, MediaType: kind,
		History: v1.History{CreatedBy: "make image"},
	})
	if err != nil {
		return nil, fmt.Errorf("append layer: %w", err)
	}
	image, err = mutate.ConfigFile(image, configured(image, platform, version, revision))
	if err != nil {
		return nil, fmt.Errorf("configure image: %w", err)
	}
	return image, nil
}

// configured returns the image's configuration file with the settings of a container.
func configured(image v1.Image, platform v1.Platform, version, revision string) *v1.ConfigFile {
	// empty.Image with a layer that has been read always has one.
	file, _ := image.ConfigFile()
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Variant = platform.OS, platform.Architecture, platform.Variant
	file.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	file.Config = v1.Config{
		User:         user,
		Entrypoint:   []string{"/posthaste"},
		Cmd:          []string{"serve"},
		WorkingDir:   "/",
		StopSignal:   "SIGTERM",
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "9090/tcp": {}},
		Healthcheck: &v1.HealthConfig{
			Test:        []string{"CMD", "/posthaste", "healthcheck"},
			Interval:    10 * time.Second,
			Timeout:     6 * time.Second,
			StartPeriod: 30 * time.Second,
			Retries:     3,
		},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "posthaste",
			"org.opencontainers.image.description": "Transactional outbox and job dispatcher for Postgres",
			"org.opencontainers.image.source":      "https://github.com/posthaste-dev/posthaste",
			"org.opencontainers.image.licenses":    "MIT",
			"org.opencontainers.image.version":     version,
			"org.opencontainers.image.revision":    revision,
		},
	}
	return file
}
