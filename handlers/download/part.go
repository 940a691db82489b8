package download

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"

	"github.com/posthaste-dev/posthaste/outbox"
)

// A part is the file that one attempt writes to. It is only ever appended to, so an earlier checkpoint remains true.
type part struct {
	file *os.File
	name string
	size int64
	hash hash.Hash
}

// partMark begins the name of every part file and of no other file that the handler makes.
const partMark = ".posthaste-"

func partPrefix(id outbox.ID) string { return partMark + id.String() + "-" }

// partEpoch returns the epoch of the attempt that a part file belongs to.
func partEpoch(id outbox.ID, name string) (epoch int64, ok bool) {
	rest, ok := strings.CutPrefix(name, partPrefix(id))
	if !ok {
		return 0, false
	}
	var n int
	_, err := fmt.Sscanf(rest, "%d-%d.part", &epoch, &n)
	return epoch, err == nil && name == partName(id, epoch, n) // Sscanf accepts +1 and trailing text
}

func partName(id outbox.ID, epoch int64, n int) string {
	return fmt.Sprintf("%s%d-%d.part", partPrefix(id), epoch, n)
}

// newPart creates a file under a name that has never been used before.
func newPart(dir *os.Root, id outbox.ID, epoch int64, n int) (*part, error) {
	name := partName(id, epoch, n)
	file, err := dir.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("make a part file: %w", err)
	}
	return &part{file: file, name: name, hash: sha256.New()}, nil
}

func (p *part) Write(b []byte) (int, error) {
	n, err := p.file.Write(b)
	p.size += int64(n)
	p.hash.Write(b[:n])
	if err != nil {
		return n, fmt.Errorf("write the part file: %w", err)
	}
	return n, nil
}

func (p *part) sync() error {
	if err := p.file.Sync(); err != nil {
		return fmt.Errorf("sync the part file: %w", err)
	}
	return nil
}

// copyFrom copies the bytes that the previous attempt had stored for sure, possibly from a file that it is still
// writing to. It returns false if the file is missing or shorter: it is on another machine, or was cleaned away.
func (p *part) copyFrom(ctx context.Context, dir *os.Root, name string, size int64) (bool, error) {
	before, err := dir.Open(name)
	if err != nil {
		return false, nil //nolint:nilerr // whatever is wrong with it, we begin anew
	}
	defer before.Close()
	for buf := make([]byte, 1<<20); p.size < size; {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		n, err := io.ReadFull(before, buf[:min(int64(len(buf)), size-p.size)])
		if err != nil {
			return false, nil
		}
		if _, err := p.Write(buf[:n]); err != nil {
			return false, err
		}
	}
	return true, nil
}

// removeParts removes the part files that earlier attempts of the job left. A worker that still writes to one of them
// then writes to nowhere, and can no longer move the file. Files that cannot be removed only take up space.
func removeParts(dir *os.Root, id outbox.ID, before int64) {
	f, err := dir.Open(".")
	if err != nil {
		return
	}
	defer f.Close()
	for { // in batches: a folder may have a million files
		names, err := f.Readdirnames(1024)
		for _, name := range names {
			if epoch, ok := partEpoch(id, name); ok && epoch < before {
				_ = dir.Remove(name)
			}
		}
		if err != nil {
			return
		}
	}
}
