package ledger

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"sync"
)

// Suffix is how the names of ledgers end.
const Suffix = ".jsonl"

// All returns every entry of every ledger in a folder, file by file, in the order in which they were written. It ends
// at the first error: a ledger that cannot be read proves nothing.
//
// All leaves out an incomplete last line. A kill -9 may cut a write short at a page boundary, and then the process has
// done nothing since: it is as if it had been killed before the write, which every check must allow for.
func All(folder string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		paths, err := filepath.Glob(filepath.Join(folder, "*"+Suffix))
		if err != nil {
			yield(Entry{}, err)
			return
		}
		for _, path := range paths {
			if !readFile(path, yield) {
				return
			}
		}
	}
}

func readFile(path string, yield func(Entry, error) bool) (more bool) {
	file, err := os.Open(path)
	if err != nil {
		return yield(Entry{}, err) && false
	}
	defer file.Close()
	in := bufio.NewReaderSize(file, 1<<20)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return true
		}
		var e Entry
		if err == nil {
			err = json.Unmarshal(line, &e)
		}
		if err != nil {
			return yield(Entry{}, fmt.Errorf("%s: line %d is torn: %q", path, n, line)) && false
		}
		if !yield(e, nil) {
			return false
		}
	}
}

// Tail reads a ledger while it is being written. It is safe for concurrent use.
type Tail struct {
	path string

	mu      sync.Mutex
	read    int64 // bytes
	entries []Entry
	broken  error
}

// NewTail returns a Tail of the ledger at path, which need not exist yet.
func NewTail(path string) *Tail { return &Tail{path: path} }

// Path returns the path of the ledger.
func (t *Tail) Path() string { return t.path }

// Entries returns every complete entry so far, in the order in which they were written, and the first error in reading
// the file.
func (t *Tail) Entries() ([]Entry, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	file, err := os.Open(t.path)
	if err != nil {
		return t.entries, t.broken // nothing was written yet
	}
	defer file.Close()
	fresh, err := io.ReadAll(io.NewSectionReader(file, t.read, 1<<40))
	if err != nil {
		t.broken = err
	}
	for {
		line, rest, complete := bytes.Cut(fresh, []byte("\n"))
		if !complete {
			return t.entries, t.broken
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			t.broken = fmt.Errorf("line %d of the ledger is torn: %q", len(t.entries)+1, line)
		}
		t.entries = append(t.entries, e)
		t.read, fresh = t.read+int64(len(line))+1, rest
	}
}
