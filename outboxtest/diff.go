package outboxtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// diff compares two texts by lines: "-" marks lines that only want has, "+" those that only got has.
func diff(want, got []string) string {
	// common[i][j] is the number of lines that want[i:] and got[j:] have in common, in order.
	common := make([][]int, len(want)+1)
	for i := range common {
		common[i] = make([]int, len(got)+1)
	}
	for i := len(want) - 1; i >= 0; i-- {
		for j := len(got) - 1; j >= 0; j-- {
			if want[i] == got[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var b strings.Builder
	for i, j := 0, 0; i < len(want) || j < len(got); {
		switch {
		case i < len(want) && j < len(got) && want[i] == got[j]:
			fmt.Fprintf(&b, "      %s\n", want[i])
			i, j = i+1, j+1
		case j == len(got) || i < len(want) && common[i+1][j] >= common[i][j+1]:
			fmt.Fprintf(&b, "    - %s\n", want[i])
			i++
		default:
			fmt.Fprintf(&b, "    + %s\n", got[j])
			j++
		}
	}
	return b.String()
}

// spelled returns a payload as lines: JSON with a line for each of its values, in the order of their names.
func spelled(contentType string, payload []byte) []string {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	if contentType == "application/json" && decoder.Decode(&value) == nil {
		if indented, err := json.MarshalIndent(value, "", "  "); err == nil {
			return strings.Split(string(indented), "\n")
		}
	}
	return []string{fmt.Sprintf("%s: %q", contentType, payload)}
}
