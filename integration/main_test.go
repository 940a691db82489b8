package integration

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// The programs under test, built once: posthaste and posthaste-proof as they are
// built to be used, and posthaste-proof with the race detector, for the workers.
var programs struct{ posthaste, proof, worker string }

// parallel is how many stories run at once. Most of the time they wait; heavy limits those that compute.
const parallel = "6"

func TestMain(m *testing.M) {
	flag.Parse()
	set := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { set[f.Name] = true })
	if !set["test.parallel"] {
		_ = flag.Set("test.parallel", parallel)
	}
	os.Exit(run(m))
}

// built is the folder of the programs: go build leaves up-to-date programs alone.
const built = "../bin/integration"

func run(m *testing.M) int {
	dir, err := filepath.Abs(built)
	if err == nil {
		err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		return 1
	}
	return pgtest.Wrap(m).Run()
}

// build compiles the programs; without a C compiler there is no race detector.
func build(dir string) error {
	programs.posthaste, programs.proof = filepath.Join(dir, "posthaste"), filepath.Join(dir, "posthaste-proof")
	programs.worker = filepath.Join(dir, "worker")
	if err := goBuild("CGO_ENABLED=0", programs.posthaste, "../cmd/posthaste"); err != nil {
		return err
	}
	if err := goBuild("CGO_ENABLED=0", programs.proof, "../cmd/posthaste-proof"); err != nil {
		return err
	}
	if _, err := exec.LookPath("cc"); err != nil {
		programs.worker = programs.proof
		return nil
	}
	return goBuild("CGO_ENABLED=1", programs.worker, "../cmd/posthaste-proof", "-race")
}

func goBuild(env, out, folder string, flags ...string) error {
	args := append([]string{"build", "-ldflags=-w", "-o", out}, flags...)
	cmd := exec.Command("go", append(args, folder)...)
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", cmd, err)
	}
	return nil
}
