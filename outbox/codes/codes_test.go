package codes_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/outbox/codes"
)

func TestTheDocumentationListsEveryErrorCode(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/guides/retries.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## Error codes\n")
	if !found {
		t.Fatal("docs/guides/retries.md has no section Error codes")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(section, -1) {
		documented = append(documented, row[1])
	}
	if codes := codes.All(); !slices.Equal(documented, codes) {
		t.Errorf("docs/guides/retries.md lists %v, the code %v", documented, codes)
	}
}
