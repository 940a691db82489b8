package verify

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"
)

// WriteProof writes the page docs/proof.md from the newest record of each row and tier, and from the lines of all runs.
// It leaves nothing out: the page says so when a row has no record.
func WriteProof(w io.Writer, records []*Record, runs []RunLine) error {
	p := page{newest: map[string]*Record{}, runs: runs}
	for _, r := range Newest(records) {
		p.newest[r.Row+string(r.Tier)] = r
	}
	listLegend(&p.Builder)
	p.summarize()
	listTested(&p.Builder)
	for _, row := range Scorecard() {
		p.prove(row)
	}
	_, err := io.WriteString(w, p.String())
	return err
}

// page is docs/proof.md while it is written.
type page struct {
	strings.Builder
	newest map[string]*Record // by row and tier
	runs   []RunLine
}

// summarize writes a line for each row.
func (p *page) summarize() {
	p.WriteString("\n## Results\n\n" +
		"\"25 on 15\": the row has passed with 25 different seeds on PostgreSQL 15 since it failed last or its description changed.\n" +
		"All runs are lines of [proof.csv](proof.csv); the newest record of each row is in [proof.jsonl](proof.jsonl).\n\n")
	for _, tier := range both {
		rows, passed, run := 0, 0, 0
		for _, row := range Scorecard() {
			if !row.Runs(tier) {
				continue
			}
			rows++
			if r := p.newest[row.Name+string(tier)]; r != nil {
				run++
				if r.Passed {
					passed++
				}
			}
		}
		fmt.Fprintf(p, "- Tier %s: %d of %d rows passed, %d not run.\n", tier, passed, rows, rows-run)
	}
	p.WriteString("\n| row | what happens | tier P | tier S |\n| --- | --- | --- | --- |\n")
	for _, row := range Scorecard() {
		fmt.Fprintf(p, "| [%s](#%s) | %s | %s | %s |\n", row.Name, anchor(heading(row)), cell(row.Title),
			p.inShort(row, TierP), p.inShort(row, TierS))
	}
}

// inShort returns the table cell for a row's newest run.
func (p *page) inShort(row Row, tier Tier) string {
	r := p.newest[row.Name+string(tier)]
	switch {
	case !row.Runs(tier):
		return "has none"
	case r == nil:
		return "not run"
	}
	text := fmt.Sprintf("[%s](#%s) %s", result(r), anchor(runHeading(r)), r.Started.Format("2006-01-02"))
	if r.texts() != row.texts(tier) {
		return text + ", before the row's description changed"
	}
	if seeds := inARow(p.runs, r); seeds != "" {
		text += ": " + seeds
	}
	return text
}

// prove writes the section of a row.
func (p *page) prove(row Row) {
	fmt.Fprintf(p, "\n## %s\n\n- Fault: %s\n- Workload: %s\n- Pass: %s\n", heading(row), row.Fault, row.Workload,
		row.Pass)
	for _, tier := range row.Tiers {
		if p.newest[row.Name+string(tier)] == nil {
			fmt.Fprintf(p, "- Tier %s: not run\n", tier)
		}
	}
	for _, tier := range row.Tiers {
		if r := p.newest[row.Name+string(tier)]; r != nil {
			r.prove(&p.Builder, r.texts() != row.texts(tier))
		}
	}
}

func heading(row Row) string { return row.Name + ": " + row.Title }

func runHeading(r *Record) string { return fmt.Sprintf("%s, tier %s", r.Row, r.Tier) }

// anchor returns the id that GitHub gives a heading.
func anchor(heading string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == ' ':
			return '-'
		case unicode.IsLetter(c), unicode.IsDigit(c), c == '-', c == '_':
			return unicode.ToLower(c)
		}
		return -1
	}, heading)
}

func result(r *Record) string {
	switch {
	case r.Passed:
		return "passed"
	case r.Skipped != "":
		return "skipped: " + r.Skipped
	}
	return "**failed**"
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// prove writes the section of one run. The record is outdated if the row's description has changed since the run.
func (r *Record) prove(b *strings.Builder, outdated bool) {
	fmt.Fprintf(b, "\n### %s\n\n- Result: %s, %s in %.0f s, commit `%s`: `%s`\n", runHeading(r),
		result(r), r.Started.Format("2006-01-02 15:04 UTC"), r.Took, short(r.Commit), r.Command)
	fmt.Fprintf(b, "- On: PostgreSQL %s (fsync %s, synchronous_commit %s, full_page_writes %s), %s/%s, %d cores, %s, race detector %v\n",
		r.Server.Version, r.Server.Fsync, r.Server.SynchronousCommit, r.Server.FullPageWrites,
		r.Machine.OS, r.Machine.Arch, r.Machine.Cores, r.Machine.Go, r.Machine.Race)
	if outdated {
		b.WriteString("- This run was made before the row's description changed; its record has the earlier one.\n")
	}
	if r.Skipped != "" {
		return
	}
	if r.Error != "" {
		fmt.Fprintf(b, "- Not finished: %s\n", r.Error)
	}
	fmt.Fprintf(b, "- Faults injected: %s\n- Counts: %s\n", listOf(r.FaultCounts), listOf(r.Counts))
	if len(r.Figures) > 0 {
		var figures []string
		for _, f := range r.Figures {
			figures = append(figures, fmt.Sprintf("%s %s", f.Name, number(f.Value)))
		}
		fmt.Fprintf(b, "- Measured: %s\n", strings.Join(figures, ", "))
	}
	r.listChecks(b)
}

// listChecks lists the checks that found no violation, and writes a table of the others.
func (r *Record) listChecks(b *strings.Builder) {
	var none []string
	var others []Expectation
	for _, e := range r.Expectations {
		if e.OK && e.Op == "=" && e.Want == 0 {
			none = append(none, e.What)
		} else {
			others = append(others, e)
		}
	}
	if len(none) > 0 {
		fmt.Fprintf(b, "- Checks that are 0, as they must be: %s\n", foundNothing(none))
	}
	if len(others) == 0 {
		return
	}
	b.WriteString("\n| check | measured | must be | |\n| --- | ---: | ---: | --- |\n")
	for _, e := range others {
		fmt.Fprintf(b, "| %s | %s | %s %s | %s |\n", cell(e.What), number(e.Got),
			cmp.Or(map[string]string{"<=": "≤", ">=": "≥"}[e.Op], e.Op), number(e.Want),
			map[bool]string{true: "holds", false: "**violated**"}[e.OK])
	}
}

// texts returns the row's description. A run under another description may have proved something else.
func (r Row) texts(t Tier) string {
	return fmt.Sprintf("%s, tier %s\nFault: %s\nWorkload: %s\nPass: %s\n", r.Name, t, r.Fault, r.Workload, r.Pass)
}

// texts returns the description under which the record's run was made.
func (r *Record) texts() string {
	return Row{Name: r.Row, Fault: r.Fault, Workload: r.Workload, Pass: r.Pass}.texts(r.Tier)
}

func listOf(counts map[string]int) string {
	if len(counts) == 0 {
		return "none"
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(list, ", ")
}
