package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v3"
)

// helpWidth is the maximum width of a help text: it is also read in pipes and logs, so the terminal's width does not
// matter.
const helpWidth = 100

func init() { cli.HelpPrinter = printHelp }

// printHelp prints a help text, with the continuation of long lines aligned under the explanation.
func printHelp(w io.Writer, template string, data any) {
	var text bytes.Buffer
	cli.DefaultPrintHelp(&text, template, data)
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(w, strings.Join(fold(strings.TrimRight(line, "\n")), "\n"))
	}
}

// explained matches a flag or a command with its explanation in the next column.
var explained = regexp.MustCompile(`^   *\S.*?\s{2,}`)

// fold breaks a line between words.
func fold(line string) (lines []string) {
	if utf8.RuneCountInString(line) <= helpWidth {
		return []string{line}
	}
	head := explained.FindString(line)
	indent := utf8.RuneCountInString(head)
	if head == "" {
		indent = len(line) - len(strings.TrimLeft(line, " "))
		head = line[:indent]
	}
	rest := line[len(head):]
	if indent > helpWidth/2 { // the explanation gets its own lines
		lines, head, indent = append(lines, strings.TrimRight(head, " ")), strings.Repeat(" ", 10), 10
	}
	line, width := head, indent
	for i, word := range strings.Fields(rest) {
		if i > 0 && width+1+utf8.RuneCountInString(word) > helpWidth {
			lines, line, width = append(lines, line), strings.Repeat(" ", indent), indent
		} else if i > 0 {
			line, width = line+" ", width+1
		}
		line, width = line+word, width+utf8.RuneCountInString(word)
	}
	return append(lines, line)
}
