package relay

import (
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/outbox"
)

func TestTemplatesAreFilled(t *testing.T) {
	e := &Event{ID: outbox.RootTenant, Tenant: outbox.RootTenant, Topic: "order.paid", Key: "a.b c>*", Headers: map[string]string{"region": "eu", "up": "..", "way": "a/../b\\c\n", "odd": "..;x"}}
	for text, want := range map[string]string{
		"orders":                            "orders",
		"{topic}":                           "order.paid",
		"shop.{tenant}.{topic}.{key|token}": "shop." + outbox.RootTenant.String() + ".order.paid.a_b_c__",
		"{topic|kafka}-{header.region}":     "order.paid-eu",
		"{key|kafka}":                       "a.b_c__",
		"{id}":                              outbox.RootTenant.String(),
		"{key|hash(1)}":                     "0",
		"in/{key|path}/{header.up|path}":    "in/a.b%20c%3E%2A/_..",
		"in/{header.way|path}":              "in/a_.._b_c_",
		"in/{header.odd|path}":              "in/_..%3Bx",
	} {
		made, err := parseTemplate(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := made.fill(e); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{"{header.none}": `no header "none"`, "{header.empty}": "is empty for this event"} {
		made, err := parseTemplate(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := made.fill(&Event{Headers: map[string]string{"empty": ""}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %q, %v, want an error with %q", text, got, err, want)
		}
	}
}

func TestATemplateThatCannotBeFilledIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"shop.{topic":   "the { at byte 5 is not closed",
		"shop.topic}":   "a } at byte 10 closes nothing",
		"a}{topic}":     "a } at byte 1 closes nothing",
		"{sort}":        "{sort} is no placeholder",
		"{header.}":     "{header.} is no placeholder",
		"{}":            "{} is no placeholder",
		"{key|upper}":   "|upper is no filter",
		"{key|hash(0)}": "want a number of at least 1",
		"{key|hash(x)}": "want a number of at least 1",
		"{key|hash(3}":  "is no filter",
	} {
		if _, err := parseTemplate(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", text, err, want)
		}
	}
}

func TestDestinationsThatAreKnownBeforeThereIsAnEvent(t *testing.T) {
	for template, want := range map[string]string{
		"":                         "order.paid invoice.*",
		"all":                      "all all",
		"shop.{topic}.{key|token}": "shop.order.paid.* shop.invoice.*.*",
		"{topic|token}-{tenant}":   "order_paid-* *-*",
		"{":                        "",
	} {
		r := Route{Topics: []string{"order.paid", "invoice.*"}, Destination: template}
		if got := strings.Join(r.Destinations(), " "); got != want {
			t.Errorf("%q: got %q, want %q", template, got, want)
		}
	}
	if got := strings.Join(Route{Preset: PresetDebezium, Topics: []string{"a/b", "*"}}.Destinations(), " "); got != "outbox.event.a_b outbox.event.*" {
		t.Errorf("a preset's: got %q", got)
	}
}

// A pattern's destinations are known as far as its topics are declared, each by the first route that has it.
func TestDestinationsOfDeclaredTopics(t *testing.T) {
	routes := []Route{
		{Topics: []string{"order.*"}, Destination: "shop.{topic}"},
		{Topics: []string{"*"}, Destination: "all.{topic|token}"},
		{Topics: []string{"job.*"}, Destination: "jobs.{key}"},
	}
	got := strings.Join(DestinationsOf(routes, []string{"order.paid", "order.paid", "user.left", "job.done"}), " ")
	if want := "all.* all.job_done all.user_left jobs.* shop.order.* shop.order.paid"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Topics that are spread over a few destinations are meant to share them.
func TestTopicsThatShareADestination(t *testing.T) {
	topics := []string{"order.paid", "order_paid"}
	for destination, want := range map[string]int{"shop.{topic|token}": 1, "shop.{topic}": 0, "shop": 0, "shop.{topic|hash(1)}": 0, "{topic|token}.{topic|hash(1)}": 1} {
		mistakes := CheckTopics(topics, map[string][]Route{"s": {{Topics: []string{"*"}, Destination: destination}}})
		if len(mistakes) != want {
			t.Errorf("%s: got %v, want %d mistakes", destination, mistakes, want)
		}
	}
}

func TestPlaceholdersThatNoFilterSpells(t *testing.T) {
	for destination, want := range map[string]string{
		"orders/{key|path}": "", "{header.url}": "", "{header.url}/{key}": "{key}", "a/{header.x}?b={key}": "{header.x} {key}", "a/{topic}/{tenant}/{id}": "", "": "",
		"{key|hash(7)}": "",
	} {
		if got := strings.Join(Route{Destination: destination}.Unfiltered(), " "); got != want {
			t.Errorf("of %q: %q, want %q", destination, got, want)
		}
	}
}

// A route that can publish nothing is a mistake, and not a dead letter for each event.
func TestRoutesThatCanPublishNothing(t *testing.T) {
	for want, routes := range map[string][]Route{
		`pattern "order.*": the destination or the preset is for events of streamed jobs`: {{Topics: []string{"order.*"}, Destination: "x.{kind}"}},
		`pattern "order.paid": the destination or the preset`:                             {{Topics: []string{"job.*", "order.paid"}, Preset: PresetTrellis}},
	} {
		if _, err := compileAll(routes); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", routes, err, want)
		}
	}
	for _, routes := range [][]Route{
		{{Topics: []string{"job.created"}, Destination: "x.{kind}"}, {Preset: PresetTrellis}},
		{{Topics: []string{"*"}, Destination: "{event}"}},
		{{Topics: []string{"order.*"}}, {Topics: []string{"order.paid", "y"}}, {Topics: []string{"*"}}},
	} {
		if _, err := compileAll(routes); err != nil {
			t.Errorf("%v: %v", routes, err)
		}
		if found := CheckRoutes(routes); len(found) > 0 {
			t.Errorf("%v: %v, want nothing", routes, found)
		}
	}
	behind := []Route{{Topics: []string{"order.*", "x"}}, {Topics: []string{"order.paid", "order.eu.*", "x"}}}
	if _, err := compileAll(behind); err != nil {
		t.Errorf("a route behind another one: %v, want a finding", err)
	}
	if found := CheckRoutes(behind); len(found) != 1 || !strings.HasPrefix(found[0].What, "route 2 of the sink never applies") {
		t.Errorf("a route behind another one: %v", found)
	}
}
