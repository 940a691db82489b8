package verify

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// WriteProof writes what the records show, the newest of each row and tier, as a
// page for docs/, beside which the lines of all runs are. It leaves nothing out: rows
// without a record say so.
func WriteProof(w io.Writer, records []*Record, runs []RunLine) error {
	var b strings.Builder
	b.WriteString("# Proof\n\n" +
		"Written by `posthaste-proof verify --write-proof` from the records of runs; do not edit it. Each row starts real processes on a\n" +
		"durable Postgres of its own, injects the fault, heals, drains, and holds ledgers outside of the database against it.\n" +
		"Any row can be run again: `posthaste-proof verify A2`, with `--seed` for the same schedule of faults.\n\n" +
		"In a row: with how many seeds it has passed since it failed last, on each major version of PostgreSQL. The runs that\n" +
		"this was written from, and those of the times before, are the lines of [proof.csv](proof.csv); the records shown are\n" +
		"those of [proof.jsonl](proof.jsonl).\n\n" +
		"| row | tier | result | fault | runs on | date | in a row |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	newest := map[string]*Record{}
	shown := Newest(records)
	for _, r := range shown {
		newest[r.Row+string(r.Tier)] = r
	}
	for _, row := range Scorecard() {
		for _, tier := range row.Tiers {
			r := newest[row.Name+string(tier)]
			if r == nil {
				fmt.Fprintf(&b, "| %s | %s | not run | %s | | | |\n", row.Name, tier, cell(row.Fault))
				continue
			}
			fmt.Fprintf(&b, "| [%s](#%s-tier-%s) | %s | %s | %s | PostgreSQL %s, %d cores | %s | %s |\n", r.Row, strings.ToLower(r.Row), strings.ToLower(string(r.Tier)), r.Tier,
				result(r), cell(r.Fault), r.Server.Version, r.Machine.Cores, r.Started.Format("2006-01-02"), inARow(runs, r))
		}
	}
	listTested(&b)
	for _, r := range shown {
		r.prove(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
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

// prove is the section of one run.
func (r *Record) prove(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s- Result: %s, %s in %.0f s, seed %d, commit `%.12s`\n",
		r.texts(), result(r), r.Started.Format("2006-01-02 15:04 UTC"), r.Took, r.Seed, r.Commit)
	fmt.Fprintf(b, "- On: PostgreSQL %s (fsync %s, synchronous_commit %s, full_page_writes %s), %s/%s, %d cores, %s, race detector %v\n",
		r.Server.Version, r.Server.Fsync, r.Server.SynchronousCommit, r.Server.FullPageWrites,
		r.Machine.OS, r.Machine.Arch, r.Machine.Cores, r.Machine.Go, r.Machine.Race)
	if r.Skipped != "" {
		fmt.Fprintf(b, "- Skipped: %s\n", r.Skipped)
		return
	}
	if r.Error != "" {
		fmt.Fprintf(b, "- Could not be finished: %s\n", r.Error)
	}
	fmt.Fprintf(b, "- Faults: %s\n- Counts: %s\n", listOf(r.FaultCounts), listOf(r.Counts))
	if len(r.Figures) > 0 {
		var figures []string
		for _, f := range r.Figures {
			figures = append(figures, fmt.Sprintf("%s %s", f.Name, number(f.Value)))
		}
		fmt.Fprintf(b, "- Figures: %s\n", strings.Join(figures, ", "))
	}
	fmt.Fprintf(b, "\n```\n%s\n```\n\n| expected | got | want | |\n| --- | ---: | ---: | --- |\n", r.Command)
	for _, e := range r.Expectations {
		fmt.Fprintf(b, "| %s | %s | %s %s | %s |\n", cell(e.What), number(e.Got), cmp.Or(map[string]string{"<=": "≤", ">=": "≥"}[e.Op], e.Op), number(e.Want),
			map[bool]string{true: "holds", false: "**violated**"}[e.OK])
	}
}

// texts is what the row says of itself.
func (r *Record) texts() string {
	return fmt.Sprintf("## %s, tier %s\n\n%s.\n\n- Workload: %s\n- Pass: %s\n", r.Row, r.Tier, r.Fault, r.Workload, r.Pass)
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
