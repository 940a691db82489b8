package docs_test

import (
	"fmt"
	"html"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// boxes are where the picture of a job's states has each of them: their middles.
var boxes = map[string][2]int{
	"dismissed": {835, 70}, "dead": {640, 70}, "failed": {430, 70},
	"created": {80, 130}, "pending": {235, 250}, "running": {500, 250}, "succeeded": {835, 250},
	"stale": {835, 350}, "blocked": {235, 430}, "retrying": {500, 430},
	"cancelled": {400, 530}, "expired": {510, 530}, "skipped": {620, 530},
}

// arrows are how moves are drawn: a path, and where the middle of the last line of their text is. A move to a status
// that many others lead to is a line in its box instead.
var arrows = map[string]struct {
	path string
	x, y int
}{
	"(new) created":     {"M80,242 L80,167", 80, 208},
	"(new) pending":     {"M88,250 L153,250", 120, 243},
	"(new) running":     {"M80,258 C80,360 330,375 434,288", 100, 362},
	"created pending":   {"M135,163 L180,213", 187, 186},
	"pending running":   {"M310,240 L418,240", 367, 233},
	"running pending":   {"M425,262 L317,262", 371, 293},
	"pending blocked":   {"M220,283 L220,393", 182, 391},
	"blocked pending":   {"M250,397 L250,290", 298, 391},
	"running retrying":  {"M485,283 L485,393", 431, 372},
	"retrying running":  {"M515,397 L515,290", 537, 346},
	"retrying blocked":  {"M425,430 L317,430", 371, 423},
	"running failed":    {"M480,217 L442,109", 462, 170},
	"running dead":      {"M530,217 L622,109", 588, 170},
	"retrying dead":     {"M575,430 C740,420 765,260 685,109", 668, 428},
	"failed pending":    {"M370,103 L268,212", 318, 162},
	"dead pending":      {"M630,37 C600,-2 460,8 390,16 C300,26 250,110 236,211", 250, 84},
	"failed dismissed":  {"M470,37 C540,6 740,6 800,47", 770, 18},
	"dead dismissed":    {"M715,70 L753,70", 738, 106},
	"running succeeded": {"M575,250 L753,250", 654, 243},
	"running stale":     {"M575,262 C640,275 690,345 753,350", 835, 400},
}

// The picture of a job's states is drawn from the table of moves in the page, which outbox/status_test.go compares with
// the program. With -update this writes it.
func TestStatesPictureIsDrawnFromTheTable(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("reference/states.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| from | becomes | when |\n")
	moves := regexp.MustCompile(`(?m)^\| (\(new\)|[a-z]+) \| ([a-z]+) \| (.*) \|$`).FindAllStringSubmatch(table, -1)
	sources := map[string]int{}
	for _, m := range moves {
		sources[m[2]]++
	}
	closed := strings.Fields("succeeded cancelled expired skipped stale dismissed")
	var lines, texts, shapes strings.Builder
	inBox := map[string][]string{}
	for _, m := range moves {
		if slices.Contains(closed, m[2]) && sources[m[2]] > 2 {
			inBox[m[1]] = append(inBox[m[1]], m[2])
			continue
		}
		arrow, drawn := arrows[m[1]+" "+m[2]]
		if !drawn {
			t.Errorf("docs/states_test.go does not draw the move from %s to %s", m[1], m[2])
		}
		fmt.Fprintf(&lines, "<path d=\"%s\"/>\n", arrow.path)
		texts.WriteString(text("", m[3], arrow.x, arrow.y))
	}
	for _, status := range sortedStatuses() {
		at := boxes[status]
		kind, width, height := "open", 150, 66
		if slices.Contains(closed, status) {
			kind, height = "closed", 36
		}
		if sources[status] > 2 && kind == "closed" {
			width = 100
		}
		fmt.Fprintf(&shapes, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", kind, at[0]-width/2, at[1]-height/2, width, height)
		name := at[1] + 5
		if ends := inBox[status]; len(ends) > 0 {
			name = at[1] - 10
			shapes.WriteString(text("ends", "→ "+strings.Join(ends, ", "), at[0], at[1]+22))
		}
		shapes.WriteString(text("name", status, at[0], name))
	}
	picture := `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 560" width="920" height="560">
<style>
text { font: 13px system-ui, "DejaVu Sans", sans-serif; fill: #333; text-anchor: middle; paint-order: stroke; stroke: #fff; stroke-width: 4px }
.name { font-size: 17px; font-weight: 600; stroke: none } .ends { font-size: 12px; stroke: none }
path { fill: none; stroke: #555; stroke-width: 1.4; marker-end: url(#tip) }
.open { fill: #e8f0fb; stroke: #3b6ea8 } .closed { fill: #eee; stroke: #777 }
</style>
<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z" style="fill:#555;stroke:none;marker-end:none"/></marker>
<rect width="920" height="560" rx="8" fill="#fff"/>
<circle cx="80" cy="250" r="7" fill="#333"/>
` + lines.String() + shapes.String() + texts.String() + `<text x="240" y="535">closed, and in the history:</text>
</svg>
`
	const file = "reference/states.svg"
	if *update {
		if err := os.WriteFile(file, []byte(picture), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != picture {
		t.Errorf("docs/%s is not drawn from the table: make docs-reference writes it (%v)", file, err)
	}
}

func sortedStatuses() []string {
	all := make([]string, 0, len(boxes))
	for status := range boxes {
		all = append(all, status)
	}
	slices.Sort(all)
	return all
}

// text returns the SVG of a text whose last line has its middle there: a long one has two lines, broken near its
// middle.
func text(class, content string, x, y int) string {
	lines := []string{content}
	if len(content) > 18 {
		at, middle := 0, len(content)/2
		for i := range content {
			if content[i] == ' ' && max(i-middle, middle-i) < max(at-middle, middle-at) {
				at = i
			}
		}
		lines = []string{content[:at], content[at+1:]}
	}
	var all strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&all, "<text class=\"%s\" x=\"%d\" y=\"%d\">%s</text>\n", class, x, y-15*(len(lines)-1-i), html.EscapeString(line))
	}
	return all.String()
}
