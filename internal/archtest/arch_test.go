package archtest

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/posthaste-dev/posthaste"

// allowed is the architecture: what each of our packages may import of ours,
// tests left aside. A new edge is a decision that somebody makes in a diff of
// this map. A name that ends in /... stands for all packages below.
var allowed = map[string]string{
	"internal/sqlgen":          "",
	"internal/backoff":         "",
	"internal/clock":           "",
	"internal/clock/clocktest": "",
	"internal/fingerprint":     "",
	"internal/dsn":             "",
	"internal/durable":         "",
	"internal/gctune":          "",
	"internal/generated":       "",
	"internal/jobcolumns":      "",
	"internal/pgvalue":         "",
	"internal/pgsession":       "",
	"internal/release":         "",
	"internal/freeport":        "",
	"internal/foreign":         "",
	"internal/pooler":          "",
	"migrations":               "internal/foreign internal/pooler internal/release internal/backoff",
	"migrations/migrate":       "migrations",

	"listener":                     "internal/backoff internal/dsn internal/pgsession",
	"outbox":                       "internal/engine internal/sqlgen internal/pgsession internal/pgvalue",
	"outbox/codes":                 "",
	"lifecycle":                    "outbox internal/engine",
	"internal/invalid":             "outbox",
	"internal/invalid/invalidtest": "",
	"inbox":                        "internal/engine outbox internal/sqlgen internal/pgsession internal/invalid",
	"protect":                      "internal/durable internal/engine outbox",
	"await":                        "protect outbox listener internal/engine internal/sqlgen internal/backoff internal/outage internal/pgsession internal/pgvalue",
	"dispatcher":                   "protect outbox/codes internal/engine outbox internal/sqlgen internal/backoff internal/fingerprint internal/invalid internal/outage internal/outcome internal/pgsession internal/pgvalue internal/release dispatcher/internal/buffer dispatcher/internal/circuit dispatcher/internal/slot dispatcher/internal/health dispatcher/internal/lease dispatcher/internal/limit dispatcher/internal/presence dispatcher/internal/promote dispatcher/internal/report dispatcher/internal/scheduler dispatcher/internal/search dispatcher/internal/wake",

	"dispatcher/internal/buffer":    "",
	"dispatcher/internal/circuit":   "dispatcher/internal/health internal/outage internal/outcome outbox outbox/codes",
	"dispatcher/internal/health":    "internal/backoff internal/outage internal/pgsession",
	"dispatcher/internal/lease":     "dispatcher/internal/health dispatcher/internal/slot internal/backoff internal/clock internal/engine outbox internal/sqlgen internal/pgsession internal/pgvalue",
	"dispatcher/internal/limit":     "outbox internal/sqlgen internal/pgsession internal/pgvalue",
	"dispatcher/internal/presence":  "internal/backoff internal/sqlgen",
	"dispatcher/internal/promote":   "dispatcher/internal/health dispatcher/internal/slot internal/backoff internal/engine outbox internal/sqlgen internal/pgsession internal/pgvalue",
	"dispatcher/internal/scheduler": "outbox",
	"dispatcher/internal/search":    "dispatcher/internal/scheduler internal/sqlgen internal/pgsession internal/pgvalue",
	"dispatcher/internal/slot":      "",
	"dispatcher/internal/wake":      "dispatcher/internal/slot",
	"dispatcher/internal/report":    "dispatcher/internal/health dispatcher/internal/slot internal/engine outbox outbox/codes internal/sqlgen internal/backoff internal/invalid internal/outcome internal/pgsession internal/pgvalue",

	"relay":               "lifecycle dispatcher internal/engine outbox internal/sqlgen internal/backoff internal/outage internal/pgsession internal/pgvalue internal/invalid",
	"relay/amqp":          "internal/invalid relay relay/internal/credentials",
	"relay/kafka":         "internal/invalid relay bridge relay/internal/credentials",
	"relay/redis":         "internal/invalid relay relay/internal/credentials",
	"relay/nats":          "internal/invalid relay bridge relay/internal/credentials relay/internal/cloudevents internal/backoff internal/outage",
	"relay/nats/presence": "dispatcher relay relay/nats",
	"relay/nats/rpc":      "access operator outbox relay/nats internal/callers internal/engine internal/outage internal/pgsession",
	"relay/relaytest":     "relay",
	"bridge":              "outbox internal/engine internal/sqlgen internal/backoff internal/fingerprint internal/outage internal/pgsession internal/pgvalue internal/invalid",

	"relay/jobs":      "relay dispatcher outbox internal/outcome",
	"relay/watermill": "relay",

	"relay/internal/credentials": "",
	"relay/internal/cloudevents": "",

	"reaper":        "outbox/codes internal/engine outbox internal/sqlgen internal/backoff internal/clock internal/outage internal/pgsession internal/pgvalue internal/invalid",
	"schedule":      "internal/engine outbox internal/sqlgen internal/backoff internal/outage internal/pgsession internal/pgvalue internal/invalid",
	"memory":        "internal/engine outbox dispatcher internal/invalid internal/outcome",
	"operator":      "protect internal/engine outbox internal/sqlgen internal/pgsession internal/pgvalue internal/backoff internal/invalid",
	"outboxtest":    "outbox outbox/codes dispatcher schedule",
	"doctor":        "outbox operator migrations internal/foreign internal/pgsession internal/pgvalue internal/pooler",
	"access":        "internal/engine outbox internal/sqlgen internal/pgvalue",
	"relay/webhook": "internal/engine outbox dispatcher internal/backoff internal/invalid relay relay/internal/credentials relay/internal/cloudevents",

	"handlers/download":   "outbox dispatcher internal/backoff internal/durable internal/invalid",
	"internal/changefeed": "outbox internal/sqlgen internal/pgvalue",
	"internal/callers":    "access outbox",

	"kinds":   "outbox",
	"watch":   "access doctor outbox operator internal/changefeed",
	"api":     "protect outbox/codes internal/engine access outbox operator schedule watch kinds internal/callers internal/outage internal/pgsession internal/pgvalue",
	"console": "access doctor kinds operator outbox protect schedule watch internal/backoff internal/callers internal/engine internal/fingerprint internal/outage internal/pgsession",
	"client":  "",

	// One process of the others, the same with the API, and the command.
	"app":           "internal/engine internal/invalid outbox listener dispatcher reaper schedule migrations internal/release internal/backoff internal/dsn internal/pgsession",
	"server":        "access api app console dispatcher operator outbox watch internal/invalid internal/backoff internal/outage internal/pgsession",
	"tracing":       "internal/engine",
	"cmd/posthaste": "internal/invalid internal/backoff watch docs/site tracing internal/engine protect internal/dsn access api app console server client kinds outbox dispatcher operator schedule doctor bridge relay relay/nats relay/nats/presence relay/nats/rpc relay/kafka relay/amqp relay/redis relay/webhook listener migrations migrations/migrate internal/bench internal/pgdev internal/pgsession internal/gctune",

	// Postgres for development and tests.
	"internal/pgdev":             "internal/freeport",
	"internal/pgdev/binaries":    "internal/pgdev",
	"internal/pgtest":            "migrations migrations/migrate internal/pgdev",
	"internal/pgtest/withserver": "internal/pgtest internal/pgdev",

	// Brokers for tests.
	"internal/natsproc":   "internal/freeport internal/source internal/verify/child",
	"internal/natstest":   "internal/freeport internal/natsproc",
	"internal/brokertest": "internal/freeport internal/source internal/verify/child",
	"internal/oidctest":   "",

	// Prometheus and promtool for tests, and what they test.
	"internal/promtest":    "internal/freeport internal/source",
	"internal/programtest": "",
	"internal/source":      "",
	"deploy/prometheus":    "",
	"deploy/grafana":       "",

	// Answers of the API against its description, in tests.
	"internal/apitest": "api",

	// Bugs that we plant ourselves.
	"internal/mutants":        "",
	"internal/mutants/rebase": "internal/mutants",
	"internal/mutants/run":    "internal/mutants",
	"internal/archtest":       "",
	"internal/outage":         "internal/backoff",
	"internal/outcome":        "internal/engine internal/pgvalue outbox outbox/codes",
	"internal/engine":         "internal/sqlgen internal/pgsession internal/pgvalue",
	"internal/bench":          "internal/backoff outbox listener dispatcher reaper migrations/migrate internal/pgdev relay",
	// The fault harness, and its command.
	"cmd/posthaste-proof":     "internal/gctune internal/verify internal/verify/probe",
	"internal/verify":         "internal/backoff internal/engine outbox operator reaper migrations/migrate internal/sqlgen internal/pgdev internal/bench internal/freeport internal/natsproc internal/verify/checker internal/verify/child internal/verify/fault internal/verify/ledger internal/verify/probe internal/verify/rebuilt internal/verify/lease internal/verify/model",
	"internal/verify/probe":   "internal/backoff internal/engine app outbox inbox dispatcher schedule listener relay relay/nats relay/webhook internal/verify/ledger",
	"internal/verify/checker": "internal/engine outbox",
	"internal/verify/ledger":  "outbox",
	"internal/verify/rebuilt": "lifecycle outbox",
	"internal/verify/child":   "",
	"internal/verify/fault":   "",
	"internal/verify/lease":   "internal/engine outbox internal/sqlgen internal/pgvalue",
	"internal/verify/model":   "internal/engine outbox operator internal/sqlgen internal/pgvalue",
	"docs":                    "",
	"docs/site":               "",
	"docs/site/build":         "docs/site",
	"docs/model":              "",

	"integration/...": "",
	"examples/...":    "app outbox dispatcher migrations/migrate internal/pgdev internal/source inbox relay relay/nats",
}

func TestPackagesImportOnlyWhatTheyMay(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "./...") {
		name := p.name()
		may, known := rule(name)
		if !known {
			t.Errorf("package %s is not in the architecture: add what it may import to the map allowed", name)
			continue
		}
		for _, path := range p.Imports {
			imported, ours := strings.CutPrefix(path, module+"/")
			if ours && !slices.Contains(strings.Fields(may), imported) {
				t.Errorf("package %s imports %s, but may only: %s", name, imported, may)
			}
		}
	}
}

func rule(name string) (may string, known bool) {
	for pattern, may := range allowed {
		below, isPattern := strings.CutSuffix(pattern, "...")
		if pattern == name || isPattern && strings.HasPrefix(name+"/", below) {
			return may, true
		}
	}
	return "", false
}

// What no package needs any more goes, or the map would not be the architecture.
func TestTheMapHasNoStaleRules(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, p := range list(t, "./...") {
		for pattern := range allowed {
			below, isPattern := strings.CutSuffix(pattern, "...")
			if pattern != p.name() && !(isPattern && strings.HasPrefix(p.name()+"/", below)) {
				continue
			}
			used[pattern] = true
			for _, path := range p.Imports {
				used[pattern+" imports "+strings.TrimPrefix(path, module+"/")] = true
			}
		}
	}
	for pattern, may := range allowed {
		if !used[pattern] {
			t.Errorf("there is no package %s", pattern)
		}
		for imported := range strings.FieldsSeq(may) {
			if !used[pattern+" imports "+imported] {
				t.Errorf("%s may import %s, and does not", pattern, imported)
			}
		}
	}
}

// A rule that names a package wrongly would forbid nothing and allow nothing.
func TestTheMapIsSpelledRight(t *testing.T) {
	t.Parallel()
	for name, may := range allowed {
		for imported := range strings.FieldsSeq(may) {
			if _, known := allowed[imported]; !known {
				t.Errorf("%s may import %s, which has no rule itself", name, imported)
			}
		}
	}
	if slices.Contains(strings.Fields(allowed["listener"]), "dispatcher") || slices.Contains(strings.Fields(allowed["dispatcher"]), "listener") {
		t.Error("listener and dispatcher must not know each other: app hands the one's signal to the other")
	}
}

func TestEveryPackageHasADoc(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "./...") {
		if p.name() == "internal/sqlgen" {
			continue // generated; its documentation is queries/
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command " + p.ImportPath[strings.LastIndexByte(p.ImportPath, '/')+1:] + " "
		}
		if !strings.HasPrefix(p.Doc, want) {
			t.Errorf("the comment of package %s begins %q, want %q…", p.name(), p.Doc, want)
		}
	}
}

// pgxModules are what a program compiles that imports pgx and its pool.
var pgxModules = []string{
	"github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile", "github.com/jackc/pgx/v5", "github.com/jackc/puddle/v2",
	"golang.org/x/sync", "golang.org/x/text",
}

func TestImportingOutboxIsLight(t *testing.T) {
	t.Parallel()
	compilesOnly(t, "./outbox", pgxModules, []string{module})
}

// A worker compiles no API, no OpenID Connect and no JSON Schema, which are in package server, and
// no goose, which is in package migrate.
func TestAWorkerIsLight(t *testing.T) {
	t.Parallel()
	metrics := []string{
		"github.com/prometheus/client_golang", "github.com/prometheus/client_model", "github.com/prometheus/common", "github.com/prometheus/procfs",
		"github.com/beorn7/perks", "github.com/cespare/xxhash/v2", "github.com/munnerz/goautoneg", "golang.org/x/sys", "google.golang.org/protobuf",
	}
	compilesOnly(t, "./examples/worker", pgxModules, metrics, []string{module, "github.com/jackc/pgxlisten", "github.com/adhocore/gronx"})
}

// The API and what its routes stand on compile no client of a broker: those are in packages of their own.
func TestTheAPICompilesNoBroker(t *testing.T) {
	t.Parallel()
	seen := false
	for _, p := range list(t, "-deps", "./server", "./api", "./operator", "./relay") {
		seen = seen || p.name() == "operator"
		for _, client := range []string{"nats-io", "franz-go", "amqp091", "redigo"} {
			if strings.Contains(p.ImportPath, client) {
				t.Errorf("the API depends on %s", p.ImportPath)
			}
		}
	}
	if !seen {
		t.Error("this looks at the wrong place")
	}
}

// compilesOnly checks that a package depends on exactly these modules.
func compilesOnly(t *testing.T, folder string, modules ...[]string) {
	t.Helper()
	var got []string
	for _, p := range list(t, "-deps", folder) {
		if !p.Standard && !slices.Contains(got, p.Module.Path) {
			got = append(got, p.Module.Path)
		}
	}
	want := slices.Concat(modules...)
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s compiles other modules than it should (-want +got):\n%s", folder, diff)
	}
}

// The tests of what a user imports burden the user's go.sum too, so testcontainers is in a module of its own.
func TestTestcontainersIsInAModuleOfItsOwn(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]bool{"go.mod": false, "go.sum": false, "internal/pgdocker/go.mod": true} {
		content, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(content), "github.com/testcontainers/"); got != want {
			t.Errorf("%s names testcontainers: %t, want %t", file, got, want)
		}
	}
}

// What our users' binaries contain must not bring the tools of our tests along.
func TestTheProductDoesNotContainItsTests(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "-deps", "./app", "./cmd/posthaste") {
		name := p.name()
		if name == "internal/pgtest" || p.ImportPath == "testing" || strings.HasPrefix(name, "internal/verify") || strings.HasPrefix(name, "internal/mutants") {
			t.Errorf("the product depends on %s", p.ImportPath)
		}
	}
}

// TestTheShippedBinaryNamesNoToolsOfTests reads what go version -m prints of it.
func TestTheShippedBinaryNamesNoToolsOfTests(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "posthaste")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-w", "-o", binary, "../../cmd/posthaste")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if len(info.Deps) < 10 {
		t.Errorf("the binary names %d modules: this looks at the wrong place", len(info.Deps))
	}
	for _, m := range info.Deps {
		for _, tool := range []string{"goleak", "porcupine", "rapid", "testcontainers", "go-cmp", "kin-openapi"} {
			if strings.Contains(m.Path, tool) {
				t.Errorf("the shipped binary contains %s", m.Path)
			}
		}
	}
}

// TestMain looks at every folder itself, because the test cache does not know
// what go list reads: a result would outlive the change that breaks a rule.
func TestMain(m *testing.M) {
	err := filepath.WalkDir("../..", func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return filepath.SkipDir
		}
		return err
	})
	if err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// pkg is what go list says of a package.
type pkg struct {
	ImportPath, Name, Doc              string
	Imports, TestImports, XTestImports []string
	Standard                           bool
	Module                             struct{ Path string }
}

// name returns the import path within our module.
func (p pkg) name() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

func list(t *testing.T, args ...string) (packages []pkg) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Name,Doc,Imports,TestImports,XTestImports,Standard,Module"}, args...)...)
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}
