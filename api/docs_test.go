package api_test

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

func readDocs(t *testing.T) string {
	t.Helper()
	doc, err := os.ReadFile("../docs/reference/api.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(doc)
}

// example is a ```sh block, and what it prints according to the ```json block right
// after it, if there is one. There, … stands for anything.
var example = regexp.MustCompile("(?m)^```sh\n((?s:.*?))^```$(?:\n```json\n(.*)\n```$)?")

// One shell runs all examples, in the order of the page.
func TestTheExamplesOfTheDocumentationDoWhatTheySay(t *testing.T) {
	t.Parallel()
	const boundary = "===="
	var script strings.Builder
	var want []string
	for _, m := range example.FindAllStringSubmatch(readDocs(t), -1) {
		script.WriteString(m[1] + "\necho '" + boundary + "'\n")
		want = append(want, m[2])
	}
	if len(want) < 8 {
		t.Fatalf("examples = %d: this test looks at the wrong place", len(want))
	}
	server := httptest.NewServer(newRig(t).handler)
	defer server.Close()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script.String())
	cmd.Env = append(os.Environ(), "API="+server.URL, "TOKEN=client-a", "OPERATOR=operator-a", "ROOT=root", "NO_PROXY=*")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	for i, got := range strings.Split(string(out), boundary+"\n")[:len(want)] {
		pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(want[i]), "…", ".+") + "$"
		if !regexp.MustCompile(pattern).MatchString(strings.TrimSpace(got)) {
			t.Errorf("example %d prints\n%s\nthe documentation says\n%s", i+1, got, want[i])
		}
	}
}

// An operation of the documentation is one that a preview accepts.
func TestTheOperationsOfTheDocumentationAreAccepted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bodies := regexp.MustCompile(`(?m)^\{"act":.*\}$`).FindAllString(readDocs(t), -1)
	if len(bodies) < 2 {
		t.Fatalf("operations = %q: this test looks at the wrong place", bodies)
	}
	for _, body := range bodies {
		r.as("operator-a").post("/operations/preview", body).want(200, nil)
	}
}

// The reason that the documentation shows is what the API answers when ada has paused the queue, but for the time.
func TestTheReasonOfTheDocumentationIsGiven(t *testing.T) {
	t.Parallel()
	shown := regexp.MustCompile(`(?m)^\{.*"reasons":\[(.*)\]\}$`).FindStringSubmatch(readDocs(t))
	if shown == nil {
		t.Fatal("the documentation shows no reasons: this looks at the wrong place")
	}
	r := newRig(t)
	id := r.as("client-a").enqueue(`{"kind":"mail","queue":"mail"}`)
	r.as("root").post("/queues/mail/pause?reason=the+relay+is+down", "").want(200, nil)
	var why struct{ Reasons []json.RawMessage }
	r.as("root").get("/jobs/"+id+"/why").want(200, &why)
	timeless := func(reason string) string {
		return regexp.MustCompile(`20\d\d-\d\d-\d\dT[\d:.]+Z`).ReplaceAllString(reason, "TIME")
	}
	want := strings.NewReplacer(" by ada ", " by root ", `"by":"ada"`, `"by":"root"`).Replace(timeless(shown[1]))
	if got := timeless(string(why.Reasons[0])); got != want {
		t.Errorf("the API gives the reason\n%s\nthe documentation shows\n%s", got, want)
	}
}

func TestTheDocumentationExplainsEveryCodeAndRoute(t *testing.T) {
	t.Parallel()
	doc := readDocs(t)
	text, err := api.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct{ Enum []string }
			}
		}
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	problems := spec.Components.Schemas["Problem"].Properties["code"].Enum
	if len(problems) < 15 {
		t.Fatalf("codes = %v", problems)
	}
	for _, code := range problems {
		if !strings.Contains(doc, "\n### "+code+"\n") {
			t.Errorf("docs/reference/api.md does not explain %s", code)
		}
	}
	// Each word of the table is explained, and by codes that there are.
	said := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (.*) \\| .* \\|$").FindAllStringSubmatch(doc, -1)
	var words []string
	for _, row := range said {
		words = append(words, row[1])
		for _, m := range regexp.MustCompile("the (problem|job's) `([a-z_]+)`").FindAllStringSubmatch(row[2], -1) {
			if m[1] == "problem" && !slices.Contains(problems, m[2]) || m[1] == "job's" && !slices.Contains(codes.All(), m[2]) {
				t.Errorf("docs/reference/api.md says of %s that it is the %s %s, which there is none of", row[1], m[1], m[2])
			}
		}
	}
	if want := strings.Fields("job_not_found handler_not_found invalid_input job_timeout job_canceled handler_error internal_error"); !slices.Equal(words, want) {
		t.Errorf("docs/reference/api.md explains %v, want %v", words, want)
	}
	if n := strings.Count(doc, "\n### "); n != len(problems) {
		t.Errorf("docs/reference/api.md explains %d codes, want %d", n, len(problems))
	}
	for _, d := range everyRoute(t) {
		row := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(string(d.needs)) + "` \\|.*`" + regexp.QuoteMeta(d.method+" "+d.path) + "`.*$")
		if !row.MatchString(doc) {
			t.Errorf("docs/reference/api.md does not say that %s %s takes %s", d.method, d.path, d.needs)
		}
	}
}
