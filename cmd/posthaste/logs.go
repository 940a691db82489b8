package main

import (
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lmittmann/tint"

	"github.com/posthaste-dev/posthaste/tracing"
)

// logger returns a logger that writes JSON for machines and, on a terminal, coloured lines for people.
func (p *program) logger(s settings) *slog.Logger {
	terminal := isTerminal(p.stderr)
	if s.logFormat == "json" || s.logFormat == "auto" && !terminal {
		return slog.New(tracing.LogHandler(slog.NewJSONHandler(p.stderr, &slog.HandlerOptions{Level: s.logLevel})))
	}
	return slog.New(tracing.LogHandler(tint.NewTextHandler(p.stderr, &tint.Options{
		Level:      s.logLevel,
		TimeFormat: time.TimeOnly + ".000",
		NoColor:    !terminal || p.getenv("NO_COLOR") != "",
	})))
}

// isTerminal reports whether w is a terminal, or another character device to which colours do no harm, like /dev/null.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	about, err := file.Stat()
	return err == nil && about.Mode()&os.ModeCharDevice != 0
}
