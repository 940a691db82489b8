package main

import (
	"errors"
	"os"

	"github.com/posthaste-dev/posthaste/kinds"
)

// readSchemas reads the schemas of a folder; "" means none.
func readSchemas(folder string) (*kinds.Schemas, error) {
	if folder == "" {
		return nil, nil
	}
	info, err := os.Stat(folder)
	if err == nil && !info.IsDir() {
		err = errors.New("it is no folder")
	}
	if err != nil {
		return nil, err
	}
	schemas := new(kinds.Schemas)
	return schemas, schemas.AddFolder(os.DirFS(folder))
}
