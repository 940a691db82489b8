package download

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"time"

	"github.com/posthaste-dev/posthaste/internal/durable"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	checkpointBytes = 32 << 20        // between checkpoints, each of which waits for the disk
	checkpointTime  = 5 * time.Second // longest time between checkpoints
	lastWords       = 3 * time.Second // for the checkpoint of an attempt that was asked to stop
)

// A transfer is one attempt.
type transfer struct {
	*Downloader
	job    *outbox.Job[Args]
	source *url.URL
	sum    []byte // the required hash; empty means any
	max    int64
	dir    *os.Root
	name   string // name of the target in dir

	part      *part
	parts     int       // how many part files were begun
	validator validator // of the representation that part belongs to
	total     int64     // its length; -1 if unknown
	resumed   bool      // part has bytes of an earlier attempt
	saved     int64     // bytes of part in the last checkpoint
	savedAt   time.Time
}

// position is the checkpoint. Everybody who may see the job sees it, and no protector seals it.
type position struct {
	Of        string    `json:"of"` // the result of of: a job may be replayed with other arguments
	Part      string    `json:"part"`
	Bytes     int64     `json:"bytes"` // bytes of Part that are on disk for sure
	Total     int64     `json:"total"` // -1 if unknown
	Validator validator `json:"validator"`
}

// of returns a hash of the source and the target, rather than the URL, which may be secret.
func (t *transfer) of() string {
	sum := sha256.Sum256([]byte(t.job.Args.URL + "\x00" + t.job.Args.Path))
	return hex.EncodeToString(sum[:])
}

func (t *transfer) close() {
	if t.part != nil {
		_ = t.part.file.Close()
	}
	_ = t.dir.Close()
}

// resume begins a part file with the bytes that an earlier attempt left in its own.
func (t *transfer) resume(ctx context.Context) error {
	before, found, err := outbox.LoadCheckpoint[position](ctx, t.job.Claimed)
	if err != nil {
		return err
	}
	if err := t.begin(); err != nil {
		return err
	}
	usable := found && before.Of == t.of() && before.Bytes > 0 &&
		before.Bytes <= t.max && path.Base(before.Part) == before.Part
	if usable {
		ok, err := t.part.copyFrom(ctx, t.dir, before.Part, before.Bytes)
		switch {
		case err != nil:
			_ = t.dir.Remove(t.part.name)
			return err
		case ok:
			t.total, t.validator, t.resumed = before.Total, before.Validator, true
			// The checkpoint names our file before the other one is removed.
			if err := t.checkpoint(ctx); err != nil {
				return err
			}
		default:
			if err := t.restart(); err != nil {
				return err
			}
		}
	}
	t.tidy()
	return nil
}

// tidy removes earlier part files. A first attempt skips this: it has no predecessor.
func (t *transfer) tidy() {
	if t.job.Epoch > 1 {
		removeParts(t.dir, t.job.ID, t.job.Epoch)
	}
}

// begin makes an empty part file.
func (t *transfer) begin() (err error) {
	t.part, err = newPart(t.dir, t.job.ID, t.job.Epoch, t.parts)
	t.parts++
	t.total, t.validator, t.resumed, t.saved, t.savedAt = -1, validator{}, false, 0, time.Now()
	return err
}

// restart discards the bytes fetched so far, which have become useless.
func (t *transfer) restart() error {
	_ = t.part.file.Close()
	_ = t.dir.Remove(t.part.name)
	return t.begin()
}

// checkpoint records in the database how much is on disk, and returns an error if the job no longer belongs to this
// attempt.
func (t *transfer) checkpoint(ctx context.Context) error {
	if err := t.part.sync(); err != nil {
		return err
	}
	t.saved, t.savedAt = t.part.size, time.Now()
	return outbox.SaveCheckpoint(ctx, t.job.Claimed, position{
		Of: t.of(), Part: t.part.name, Bytes: t.part.size, Total: t.total, Validator: t.validator,
	})
}

// report runs for every piece received.
func (t *transfer) report(ctx context.Context) error {
	if err := t.job.Progress(ctx, t.part.size, max(t.total, 0), ""); err != nil {
		return err
	}
	if t.part.size-t.saved >= checkpointBytes || t.part.size > t.saved && time.Since(t.savedAt) >= checkpointTime {
		return t.checkpoint(ctx)
	}
	return nil
}

// giveUp leaves the bytes so far to the next attempt, or removes them if there will be none.
func (t *transfer) giveUp(ctx context.Context, err error) error {
	switch {
	case isFinal(err):
		_ = t.dir.Remove(t.part.name)
	case t.part.size > t.saved && !errors.Is(err, outbox.ErrLeaseLost):
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
		defer cancel()
		_ = t.checkpoint(ctx) // if it fails, the next attempt fetches a little more
	}
	return err
}

// verify checks the hash; the length was checked when the last piece arrived. If a file assembled from the pieces of
// two attempts is wrong, it is fetched once more from the start.
func (t *transfer) verify() error {
	if got := t.part.hash.Sum(nil); len(t.sum) > 0 && !bytes.Equal(got, t.sum) {
		err := fmt.Errorf("the file's SHA-256 is %x, want %x", got, t.sum)
		if !t.resumed {
			return final("hash_mismatch", err)
		}
		if err := t.restart(); err != nil {
			return err
		}
		return &Error{
			code: "hash_mismatch",
			err:  fmt.Errorf("%w; trying again from the start, it was fetched in pieces", err),
		}
	}
	return nil
}

// publish moves the file into place. The checkpoint saved just before is the fence.
func (t *transfer) publish(ctx context.Context) (Result, error) {
	t.total = t.part.size
	if err := t.checkpoint(ctx); err != nil {
		return Result{}, err
	}
	if err := t.dir.Rename(t.part.name, t.name); err != nil {
		if info, statErr := t.dir.Lstat(t.name); statErr == nil && info.IsDir() {
			_ = t.dir.Remove(t.part.name)
			return Result{}, invalidArgs("Args.Path", "is %q, which is a folder", t.job.Args.Path)
		}
		return Result{}, fmt.Errorf("move the file to its place: %w", err)
	}
	if err := durable.Sync(t.dir, "."); err != nil {
		return Result{}, err
	}
	t.tidy() // a worker that lost the job may have started over meanwhile
	return Result{Path: t.job.Args.Path, Bytes: t.part.size, SHA256: hex.EncodeToString(t.part.hash.Sum(nil))}, nil
}
