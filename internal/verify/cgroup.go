package verify

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// cgroups is where Linux mounts the memory controller of cgroup v1.
const cgroups = "/sys/fs/cgroup/memory"

// memoryGroup is a group of processes with a limit on their memory. If they exceed it together, the kernel kills one of
// them.
type memoryGroup struct{ path string }

func newMemoryGroup(name string, limit int) (*memoryGroup, error) {
	g := &memoryGroup{filepath.Join(cgroups, fmt.Sprintf("posthaste-verify-%d-%s", os.Getpid(), name))}
	if err := os.Mkdir(g.path, 0o755); err != nil {
		return nil, notPossible("cannot make a group of the memory controller of cgroup v1: " + err.Error())
	}
	if err := g.write("memory.limit_in_bytes", limit); err != nil {
		return nil, errors.Join(err, g.remove())
	}
	return g, nil
}

func (g *memoryGroup) write(file string, value int) error {
	return os.WriteFile(filepath.Join(g.path, file), []byte(strconv.Itoa(value)), 0o644)
}

// add moves a process into the group.
func (g *memoryGroup) add(p *child.Process) error { return g.write("cgroup.procs", p.PID()) }

// killed returns how many processes of the group the kernel has killed for lack of memory.
func (g *memoryGroup) killed() (n int, err error) {
	content, err := os.ReadFile(filepath.Join(g.path, "memory.oom_control"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		if value, found := strings.CutPrefix(line, "oom_kill "); found {
			return strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return 0, fmt.Errorf("%s does not tell how many were killed", g.path)
}

// remove removes the group. It fails while a process of the group is alive.
func (g *memoryGroup) remove() error { return os.Remove(g.path) }
