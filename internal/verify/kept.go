package verify

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Newest returns the newest record of each row and tier, in the order of the scorecard. It leaves out the records of
// rows that no longer exist.
func Newest(records []*Record) (newest []*Record) {
	for _, row := range Scorecard() {
		for _, tier := range row.Tiers {
			var last *Record
			for _, r := range records {
				if r.Row == row.Name && r.Tier == tier && (last == nil || r.Started.After(last.Started)) {
					last = r
				}
			}
			if last != nil {
				newest = append(newest, last)
			}
		}
	}
	return newest
}

// WriteKept writes the records, one a line, so that the page can be written again when the folders of the runs are
// gone. It keeps how often each fault was injected, but not when: a soak has thousands.
func WriteKept(w io.Writer, records []*Record) error {
	for _, r := range records {
		kept := *r
		kept.Faults = nil
		line, err := json.Marshal(kept)
		if err != nil {
			return err
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// ReadKept reads what WriteKept wrote.
func ReadKept(in io.Reader) (records []*Record, err error) {
	lines := bufio.NewReader(in)
	for n := 1; ; n++ {
		line, end := lines.ReadBytes('\n')
		if end != nil && !errors.Is(end, io.EOF) {
			return nil, end
		}
		if len(line) > 0 {
			r := &Record{}
			if err := json.Unmarshal(line, r); err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
			records = append(records, r)
		}
		if end != nil {
			return slices.Clip(records), nil
		}
	}
}
