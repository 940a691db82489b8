package pgdev

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// InitialVariable names an environment variable with which temporary servers start from a copy of what initdb made for
// another server. That takes a tenth of the processor time of initdb. Its value is that of [Server.Initial]. All copies
// have the same system identifier.
const InitialVariable = "POSTHASTE_PG_INITIAL"

func (f *folder) initial() string { return filepath.Join(f.path, "initial") }

// copyInitial copies to fresh what initdb made for another server, and reports whether it could. It does so only for
// temporary data, the same programs and an unchanged environment: a clock that is wrong on purpose, for example, needs
// an initdb of its own.
func (c *cluster) copyInitial(ctx context.Context, fresh string) bool {
	made := filepath.SplitList(os.Getenv(InitialVariable))
	if len(made) != 2 || made[0] != c.bin || !c.temporary || len(c.env) > 0 {
		return false
	}
	if err := c.copy(ctx, made[1], fresh); err != nil {
		_ = os.RemoveAll(fresh) // it may be incomplete
		return false
	}
	return true
}

// copy copies a folder as the user who runs the server.
func (c *cluster) copy(ctx context.Context, from, to string) error {
	cmd := exec.CommandContext(ctx, "cp", "-R", "-p", from, to)
	cmd.Dir, cmd.SysProcAttr = c.path, c.account.attributes()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w%s", err, indent(out))
	}
	return nil
}
