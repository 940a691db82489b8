package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// note writes a remark next to a command's output; "" writes none.
func (p *program) note(text string) {
	if text != "" {
		fmt.Fprintln(p.stderr, "posthaste: note: "+oneLine(text))
	}
}

// didYouMean returns the end of a sentence about an unknown name, with the nearest known one; "" if none is near.
func didYouMean(name string, known []string) string {
	best, least := "", 1+max(2, len(name)/4)
	for _, k := range known {
		if d := distance(name, k); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return ": did you mean " + best + "?"
}

// distance returns how many bytes must be inserted, deleted or replaced to turn one name into the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// ofKubernetes matches the variables that Kubernetes sets in each container for a Service whose name begins with
// outbox.
var ofKubernetes = regexp.MustCompile(
	`_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// warnOfVariables logs the notes of strangeVariables once, at the start of a process that takes all settings.
func warnOfVariables(s settings) {
	for _, text := range strangeVariables(os.Environ(), s.relayConfig) {
		s.app.Logger.Warn(text)
	}
}

// strangeVariables returns a note for each variable that begins like ours but is not known: a misspelt setting would
// otherwise have no effect without anyone noticing. Variables from which relay-config takes values are known.
func strangeVariables(environ []string, relayConfig *relayConfig) (notes []string) {
	var known []string
	for _, s := range slices.Concat(allSettings, apiSettings) {
		known = append(known, s.envs...)
	}
	if relayConfig != nil {
		known = append(known, relayConfig.variables...)
	}
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		if strings.HasPrefix(name, "OUTBOX_") && !slices.Contains(known, name) && !ofKubernetes.MatchString(name) {
			notes = append(notes, fmt.Sprintf("the environment variable %s is no setting, and does nothing%s", name,
				didYouMean(name, known)))
		}
	}
	slices.Sort(notes)
	return notes
}
