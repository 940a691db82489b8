package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// writeReport writes benchmarks.md and its plots into folder.
func (r *results) writeReport(folder string) error {
	notes, err := os.ReadFile("notes.md")
	if err != nil {
		return err
	}
	var page strings.Builder
	preface, rest, ok := strings.Cut(string(notes), "\n## ")
	if !ok {
		return errors.New("notes.md has no heading")
	}
	r.writeHead(&page, strings.TrimSpace(preface))
	r.printSummary(&page)
	r.writeBars(&page)
	r.writeLosses(&page)
	for _, q := range questions {
		if err := r.writeQuestion(&page, q, folder); err != nil {
			return err
		}
	}
	r.writeSettings(&page)
	fmt.Fprintf(&page, "\n## %s", rest)
	return os.WriteFile(filepath.Join(folder, "benchmarks.md"), []byte(page.String()), 0o644)
}

func (r *results) writeHead(w io.Writer, preface string) {
	fmt.Fprintf(w, "# Benchmarks\n\n%s\n\n",
		wrap(fmt.Sprintf("The figures are of %s, measured on %s. `make bench` wrote this page, except for the notes, which are "+
			"bench/notes.md; [benchmarks/results.jsonl](benchmarks/results.jsonl) holds every measured value. All systems were measured in one run on one server, in %d rounds that each began with another system; "+
			"the tables show the median and, in brackets, the minimum and the maximum. *Bare SQL* is not a system: it runs our statements in our batch sizes on two connections, without our Go code, "+
			"and shows what the server allows.", r.Versions[ours], r.Date, r.rounds())))
	fmt.Fprintf(w, `%s

| | |
| --- | --- |
| machine | %s, %d cores shared by server, producers and workers, %s memory, %s |
| server | PostgreSQL %s: %s |
| posthaste | %s, %s |
`, preface, r.Processor, r.Cores, r.Memory, r.Kernel, r.PostgreSQL, strings.Join(r.Settings, ", "), r.Versions[ours], r.Go)
	for _, peer := range []string{river, graphile} {
		if version, ok := r.Versions[peer]; ok {
			fmt.Fprintf(w, "| %s | %s |\n", peer, version)
		} else {
			fmt.Fprintf(w, "| %s | not measured: npm could not install it here |\n", peer)
		}
	}
	fmt.Fprintf(w, "\nTo repeat: `make bench`, on a machine that does nothing else; `cd bench && go run . --help` lists the options.\n\n")
}

// printSummary writes the table of all questions.
func (r *results) printSummary(w io.Writer) {
	systems := []string{ours, river, graphile, watermillSQL, floor}
	systems = slices.DeleteFunc(systems, func(name string) bool {
		return !slices.ContainsFunc(r.records, func(line record) bool { return line.System == name })
	})
	rows := [][]string{append([]string{"question", "figure"}, systems...)}
	for _, q := range questions {
		samples := r.compared(q.measurement, q.figures[0])
		if len(samples) == 0 {
			continue
		}
		row := []string{q.title, q.figures[0].label}
		for _, system := range systems {
			cell := ""
			if s, ok := of(samples, system); ok {
				cell = format(s.median)
				if own, ok := of(samples, ours); ok && system != ours && s.median > 0 {
					cell += fmt.Sprintf(" (%s×)", format(own.median/s.median))
				}
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	fmt.Fprintln(w, "Medians; in brackets, ours as a multiple of the other system's.")
	fmt.Fprintln(w)
	writeTable(w, rows)
}

// writeTable writes a Markdown table that can also be read as plain text.
func writeTable(w io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for at, row := range rows {
		for i, cell := range row {
			fmt.Fprintf(w, "| %s%s ", cell, strings.Repeat(" ", widths[i]-len([]rune(cell))))
		}
		fmt.Fprintln(w, "|")
		if at == 0 {
			for _, width := range widths {
				fmt.Fprintf(w, "| %s ", strings.Repeat("-", max(width, 3)))
			}
			fmt.Fprintln(w, "|")
		}
	}
}

func (r *results) writeQuestion(w io.Writer, q question, folder string) error {
	plotted := r.compared(q.measurement, q.figures[0])
	if len(plotted) == 0 {
		return nil
	}
	file := strings.NewReplacer(",", "", " -", "-", " ", "-").Replace(strings.ToLower(q.title)) + ".svg"
	if err := plotSVG(filepath.Join(folder, "benchmarks", file), q.title, q.figures[0].label, plotted); err != nil {
		return fmt.Errorf("plot %s: %w", q.title, err)
	}
	fmt.Fprintf(w, "\n## %s\n\n%s\n\n![%s](benchmarks/%s)\n\n", q.title, wrap(q.about), q.title, file)
	head := []string{"system"}
	for _, f := range q.figures {
		head = append(head, f.label)
	}
	rows := [][]string{head}
	for _, s := range plotted {
		row := []string{s.system}
		for _, f := range q.figures {
			cell := ""
			if s, ok := of(r.compared(q.measurement, f), s.system); ok {
				cell = s.String()
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	writeTable(w, rows)
	return nil
}

// String returns the median and the spread.
func (s sample) String() string {
	if s.min == s.max {
		return format(s.median)
	}
	return fmt.Sprintf("%s (%s – %s)", format(s.median), format(s.min), format(s.max))
}

// writeLosses lists every figure in which a peer is better.
func (r *results) writeLosses(w io.Writer) {
	var losses []string
	for _, q := range questions {
		for _, f := range q.figures {
			samples := r.compared(q.measurement, f)
			own, ok := of(samples, ours)
			for _, s := range samples {
				if ok && s.system != ours && s.system != floor && s.median != own.median &&
					(s.median < own.median) == f.less {
					losses = append(losses, fmt.Sprintf("- %s, %s: %s has %s, we have %s", q.title, f.label, s.system,
						s, own))
				}
			}
		}
	}
	fmt.Fprintf(w, "\n## What we lose\n\n")
	if len(losses) == 0 {
		losses = []string{"Nothing in this run."}
	}
	fmt.Fprintln(w, strings.Join(losses, "\n"))
}

// writeSettings lists the settings of each system, and how they were chosen.
func (r *results) writeSettings(w io.Writer) {
	fmt.Fprintf(w, "\n## Settings\n\n%s\n\n",
		wrap("The flags are those of the programs in bench/, which pass each on as the system's own setting. "+
			"Before the first round, several settings were tried; the measurements use the best."))
	rows := [][]string{{"system", "measurement", "flags"}}
	for _, m := range measurements {
		for _, system := range m.systems {
			if flags := r.flags(m.name, system); flags != nil {
				rows = append(rows, []string{system, m.name, "`" + strings.Join(flags, " ") + "`"})
			}
		}
	}
	writeTable(w, rows)
	fmt.Fprintf(w, "\nEverything else ran with default settings. The trials:\n\n")
	rows = [][]string{{"system", "for", "flags", "result"}}
	for _, line := range r.records {
		if line.Trial != "" {
			name := slices.Sorted(maps.Keys(line.Figures))[0]
			rows = append(rows, []string{
				line.System, line.Trial, "`" + strings.Join(line.Flags, " ") + "`", format(line.Figures[name]) + " " +
					name,
			})
		}
	}
	writeTable(w, rows)
}

// wrap breaks a paragraph into lines of at most 120 columns.
func wrap(text string) string {
	var lines []string
	for word := range strings.FieldsSeq(text) {
		last := len(lines) - 1
		if last < 0 || utf8.RuneCountInString(lines[last])+1+utf8.RuneCountInString(word) > 120 {
			lines = append(lines, word)
			continue
		}
		lines[last] += " " + word
	}
	return strings.Join(lines, "\n")
}
