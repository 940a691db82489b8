package ledger

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
)

// Feed reads the ledgers of a folder while they are being written, and keeps nothing of them: what a soak writes in
// hours is read once.
type Feed struct {
	folder string
	read   map[string]int64 // bytes, by file
}

// NewFeed returns a Feed that starts at the first entries of all ledgers, including those that do not exist yet.
func NewFeed(folder string) *Feed { return &Feed{folder, map[string]int64{}} }

// Fresh returns every entry that was completed since the last call, file by file. It ends at the first error.
func (f *Feed) Fresh() iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		paths, err := filepath.Glob(filepath.Join(f.folder, "*"+Suffix))
		if err != nil {
			yield(Entry{}, err)
			return
		}
		for _, path := range paths {
			if !f.readOn(path, yield) {
				return
			}
		}
	}
}

func (f *Feed) readOn(path string, yield func(Entry, error) bool) (more bool) {
	file, err := os.Open(path)
	if err == nil {
		defer file.Close()
		_, err = file.Seek(f.read[path], io.SeekStart)
	}
	if err != nil {
		return yield(Entry{}, err) && false
	}
	for in := bufio.NewReaderSize(file, 1<<20); ; {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // the rest of a line that is being written comes the next time
			return true
		}
		var e Entry
		if err == nil {
			err = json.Unmarshal(line, &e)
		}
		if err != nil {
			return yield(Entry{}, fmt.Errorf("%s, from byte %d: a torn line: %q", path, f.read[path], line)) && false
		}
		f.read[path] += int64(len(line))
		if !yield(e, nil) {
			return false
		}
	}
}
