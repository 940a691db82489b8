package pgdev

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// InitialVariable has temporary servers begin with a copy of what initdb made for another one, which takes a tenth of
// the processor that initdb takes. Its value is that of [Server.Initial]. The copies have one system identifier.
const InitialVariable = "POSTHASTE_PG_INITIAL"

func (f *folder) initial() string { return filepath.Join(f.path, "initial") }

// copyInitial makes fresh a copy of what initdb made for another server, if there is such a thing for these programs
// and the data are not for keeps. If not, initdb is run: so also where the environment, such as that of a clock that is
// wrong on purpose, is not what it was.
func (c *cluster) copyInitial(ctx context.Context, fresh string) bool {
	made := filepath.SplitList(os.Getenv(InitialVariable))
	if len(made) != 2 || made[0] != c.bin || !c.temporary || len(c.env) > 0 {
		return false
	}
	if err := c.copy(ctx, made[1], fresh); err != nil {
		_ = os.RemoveAll(fresh) // part of it
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
