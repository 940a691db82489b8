package main

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

// everyCommand yields the commands that do something, by their names.
func everyCommand(t *testing.T) map[string]*cli.Command {
	t.Helper()
	p := &program{getenv: func(string) string { return "" }}
	root := p.root()
	all := map[string]*cli.Command{}
	var add func(c *cli.Command, path string)
	add = func(c *cli.Command, path string) {
		for _, sub := range c.Commands {
			name := strings.TrimSpace(path + " " + sub.Name)
			if sub.Action != nil {
				all[name] = sub
			}
			add(sub, name)
		}
	}
	add(root, "")
	if len(all) < 50 {
		t.Fatalf("commands = %d: this test looks at the wrong place", len(all))
	}
	return all
}

// withoutOutput are the commands that print no listing, and why. All others take -o.
var withoutOutput = map[string]string{
	"serve": "it serves", "dev": "it serves", "docs": "it serves, or prints Markdown", "top": "it draws frames: stats is for scripts",
	"migrate sql": "it prints SQL", "openapi": "it prints JSON", "healthcheck": "its answer is the exit status", "bench worker": "a workload kills it",
	"operations start cancel": "it prints an id", "operations start release": "it prints an id", "operations start retry": "it prints an id", "operations start edit": "it prints an id",
	"enqueue": "it prints an id", "publish": "it prints an id", "tokens create": "it prints a token", "schedules run": "it prints an id",
}

// acts say what they did, in words or by ids.
var acts = regexp.MustCompile(`(^| )(up|down|cancel|release|retry|dismiss|replay|pause|resume|limit|skip|seek|remove|stop|unblock|create|change|delete|revoke)$`)

func TestWhatIsListedOrShownIsForScriptsToo(t *testing.T) {
	t.Parallel()
	for name, c := range everyCommand(t) {
		has := slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return slices.Equal(f.Names(), []string{"output", "o"}) })
		switch _, known := withoutOutput[name]; {
		case !has && !known && !acts.MatchString(name):
			t.Errorf("%s has no -o", name)
		case has && known:
			t.Errorf("%s has -o, and is in the list of those that have none", name)
		}
	}
}

// meanings are the flags that mean different things in different commands: the beginnings of their words. Every other
// flag has the same words, aliases and default wherever it is.
var meanings = map[string][]string{
	"output":   {"`table|json|csv`", "`text|json`"},
	"queue":    {"only of this", "only what was done to", "`QUEUE` (default: default)"},
	"kind":     {"only of this", "`KIND` of its jobs"},
	"key":      {"only with this", "`KEY` whose jobs", "`KEY` of the event"},
	"tenant":   {"only of the tenant", "`ID` of the tenant"},
	"status":   {"only of this `STATUS`, repeated", "only `failed|dead`", "only changes to this"},
	"job":      {"only what was done to the job", "only the job"},
	"limit":    {"at most `N` "},
	"before":   {"only older ones than the "},
	"rate":     {"at most `N` ", "at most `N/INTERVAL`"},
	"all":      {"all dead letters", "all open jobs"},
	"dry-run":  {"only "},
	"detach":   {"by filter, or --all: let the processes", "do not wait for the end"},
	"payload":  {"replace the payload", "`PAYLOAD` of its jobs"},
	"timeout":  {"`DURATION` of one attempt", "how long to wait for the response"},
	"deadline": {"expires unless", "a job expires"},
	"hold":     {"do not run it before", "do not run its jobs before"},
	"streamed": {"store each change of its jobs", "store each change of it as", "burndown: "},
	"on-death": {"if it fails permanently", "if one fails permanently"},
	"header":   {"`NAME=VALUE`, may be repeated"},
	"interval": {"`DURATION` between two polls", "`DURATION` between frames"},
	"every":    {"ticks at the multiples", "latency, tenants: "},
}

func TestFlagsThatMeanTheSameAreTheSame(t *testing.T) {
	t.Parallel()
	type seenFlag struct{ command, words, names, value string }
	first := map[string]seenFlag{}
	used := map[string]bool{}
	commands := everyCommand(t)
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		for _, f := range commands[name].Flags {
			documented := f.(cli.DocGenerationFlag)
			if isSetting(f) || strings.HasPrefix(name, "bench") && f.Names()[0] != "output" && f.Names()[0] != "streamed" && f.Names()[0] != "every" {
				continue // which are of workloads
			}
			flag, words := f.Names()[0], documented.GetUsage()
			is := seenFlag{name, words, strings.Join(f.Names(), " "), documented.GetValue()}
			id := flag
			if several, ok := meanings[flag]; ok {
				i := slices.IndexFunc(several, func(begin string) bool { return strings.HasPrefix(words, begin) })
				if i < 0 {
					t.Errorf("%s --%s: %q is none of the meanings of this flag", name, flag, words)
					continue
				}
				id, is.words = flag+": "+several[i], ""
			}
			used[id] = true
			switch since, until := strings.HasSuffix(flag, "since"), strings.HasSuffix(flag, "until"); {
			case since && !strings.HasSuffix(words, " at or after this `TIME`"+timeFormats):
				t.Errorf("%s --%s: %q is no beginning of a span of time", name, flag, words)
			case until && !strings.HasSuffix(words, " before this `TIME`"):
				t.Errorf("%s --%s: %q is no end of a span of time", name, flag, words)
			case since, until:
				is.words = "" // of what it is the time
			}
			if was, ok := first[id]; !ok {
				first[id] = is
			} else if was.words != is.words || was.names != is.names || was.value != is.value {
				t.Errorf("--%s differs: %+v and %+v", flag, was, is)
			}
		}
	}
	for flag, several := range meanings {
		for _, begin := range several {
			if !used[flag+": "+begin] {
				t.Errorf("no --%s means %q any more", flag, begin)
			}
		}
	}
}
