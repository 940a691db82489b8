// Package source finds the source of this module, and builds programs of it, some of which are modules of their own:
// servers whose dependencies no user of the library gets.
package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const module = "github.com/posthaste-dev/posthaste"

// Dir returns the folder of this module's source. It asks the go command, which answers where the working directory is
// in this module or in one that requires it.
func Dir(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("find the source of %s: %w", module, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Build builds the program in a folder of the source, such as internal/natsdev, and stores it at a path. The go command
// does nothing if that is up to date.
func Build(ctx context.Context, folder, path string) error {
	dir, err := Dir(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, ".")
	cmd.Dir = filepath.Join(dir, filepath.FromSlash(folder))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", folder, err, out)
	}
	return nil
}
