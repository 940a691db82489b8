package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// screen is where the demonstration is seen: lines that stay, and beneath them,
// if it is a terminal, one block that is redrawn in place.
type screen struct {
	out      *os.File
	terminal bool
	colors   bool
	broken   func(error) // is called when nobody reads any more

	mu    sync.Mutex
	block []string
}

func newScreen(out *os.File, broken func(error)) *screen {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "" &&
		os.Getenv("TERM") != "dumb"
	return &screen{out: out, terminal: terminal, colors: terminal && os.Getenv("NO_COLOR") == "", broken: broken}
}

// say writes a line that stays.
func (s *screen) say(format string, args ...any) {
	s.draw(strings.Split(fmt.Sprintf(format, args...), "\n"), nil, false)
}

// show replaces the block; without a terminal it does nothing.
func (s *screen) show(block ...string) {
	if s.terminal {
		s.draw(nil, block, true)
	}
}

// Write prints whole lines, as an io.Writer.
func (s *screen) Write(p []byte) (int, error) {
	s.say("%s", strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// draw writes lasting lines over the block, and the block beneath them.
func (s *screen) draw(lasting, block []string, replace bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b bytes.Buffer
	if len(s.block) > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", len(s.block)) // up
	}
	if replace {
		s.block = block
	}
	if s.terminal {
		b.WriteString("\x1b[J") // clear to the end
	}
	for _, line := range lasting {
		b.WriteString(line + "\n")
	}
	if len(s.block) > 0 {
		// Its long lines are cut, not wrapped, or going up would miscount.
		b.WriteString("\x1b[?7l" + strings.Join(s.block, "\n") + "\n\x1b[?7h")
	}
	if _, err := s.out.Write(b.Bytes()); err != nil {
		s.broken(fmt.Errorf("write to the screen: %w", err))
	}
}

const (
	bold  = "1"
	green = "32"
	red   = "31"
	faint = "2"
)

// paint colours a text on a terminal.
func (s *screen) paint(color, text string) string {
	if !s.colors {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// number writes 12345 as 12 345.
func number(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + " " + digits[i:]
	}
	return digits
}

// seconds writes a duration as 12.3 s.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// millis writes a duration as 1.2 ms, and none as a dash.
func millis(d time.Duration) string {
	ms := d.Seconds() * 1000
	switch {
	case d == 0:
		return "–"
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f ms", ms)
}

// bar draws a share of the given width.
func bar(done, all, width int) string {
	full := 0
	if all > 0 {
		full = min(width, done*width/all)
	}
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}
