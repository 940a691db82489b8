package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
)

// bar shows the progress of a row: a progress bar on a terminal, and elsewhere a line whenever a stage begins.
type bar struct {
	w       io.Writer
	row     string
	stage   string
	bars    progress.Writer // nil elsewhere
	tracker *progress.Tracker
}

func newBar(w io.Writer, row string) *bar {
	b := &bar{w: w, row: row}
	if isTerminal(w) {
		b.bars = progress.NewWriter()
		b.bars.SetOutputWriter(w)
		b.bars.SetUpdateFrequency(100 * time.Millisecond)
		b.bars.SetMessageLength(24)
		b.bars.SetStyle(progress.StyleBlocks)
		go b.bars.Render()
	}
	return b
}

// at shows how far a stage has come. It is called by one goroutine. A total of 0 means a stage of unknown length.
func (b *bar) at(stage string, done, total int) {
	if stage != b.stage {
		b.stage = stage
		if b.bars == nil {
			fmt.Fprintf(b.w, "     %s: %s\n", b.row, stage)
			return
		}
		if b.tracker != nil {
			b.tracker.MarkAsDone()
		}
		b.tracker = &progress.Tracker{Message: b.row + ": " + stage, Total: int64(total)}
		b.bars.AppendTracker(b.tracker)
	}
	if b.tracker != nil {
		b.tracker.SetValue(int64(min(done, max(total-1, 0)))) // at its total it would be over
	}
}

func (b *bar) end() {
	if b.bars == nil {
		return
	}
	if b.tracker != nil {
		b.tracker.MarkAsDone()
	}
	b.bars.Stop()
	for b.bars.IsRenderInProgress() {
		time.Sleep(10 * time.Millisecond)
	}
}

// isTerminal reports whether a person is likely to watch w.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	about, err := file.Stat()
	return err == nil && about.Mode()&os.ModeCharDevice != 0
}
