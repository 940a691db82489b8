// Package compose loads deploy/compose.yaml with the library of docker compose, as `docker compose config` does: a key
// that the specification lacks, a service or a volume that is missing, and a variable that must be set are errors.
package compose

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// password would need escapes in a URL, in YAML and in a shell.
const password = `p@ss/w:rd#?% "'`

// load returns the project that the text describes in an environment.
func load(t *testing.T, text string, environment types.Mapping) (*types.Project, error) {
	t.Helper()
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  t.TempDir(),
		ConfigFiles: []types.ConfigFile{{Filename: "compose.yaml", Content: []byte(text)}},
		Environment: environment,
	})
}

func file(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What compose starts: it is given the variables of its environment, in the order in which each service can work.
func TestComposeLoadsTheFile(t *testing.T) {
	t.Parallel()
	project, err := load(t, file(t), types.Mapping{
		"POSTGRES_PASSWORD": password, "POSTHASTE_IMAGE": "posthaste:9.8.7", "OUTBOX_WEBHOOKS": "mail=https://mail/send",
		"OUTBOX_OIDC_ISSUER": "https://login.example.com",
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := project.ServiceNames(), []string{"migrate", "postgres", "posthaste"}; !slices.Equal(got, want) {
		t.Errorf("it starts %q, want %q", got, want)
	}
	for name, needs := range map[string]string{
		"postgres":  "",
		"migrate":   "postgres " + types.ServiceConditionHealthy,
		"posthaste": "migrate " + types.ServiceConditionCompletedSuccessfully,
	} {
		var got []string
		for on, how := range project.Services[name].DependsOn {
			got = append(got, on+" "+how.Condition)
		}
		if strings.Join(got, ", ") != needs {
			t.Errorf("%s waits for %q, want %q", name, got, needs)
		}
	}
	for _, of := range []struct{ service, name, want string }{
		{"postgres", "POSTGRES_PASSWORD", password},
		{"migrate", "PGPASSWORD", password},
		{"posthaste", "PGPASSWORD", password},
		{"posthaste", "OUTBOX_WEBHOOKS", "mail=https://mail/send"},
		{"posthaste", "OUTBOX_OIDC_ISSUER", "https://login.example.com"},
	} {
		if got := value(project, of.service, of.name); got != of.want {
			t.Errorf("%s of %s is %q, want %q", of.name, of.service, got, of.want)
		}
	}
	for _, name := range []string{"migrate", "posthaste"} {
		s := project.Services[name]
		if s.Image != "posthaste:9.8.7" || !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) {
			t.Errorf("%s is %s, read-only %t, without %q", name, s.Image, s.ReadOnly, s.CapDrop)
		}
	}
	ports := project.Services["posthaste"].Ports
	if len(ports) != 1 || ports[0].HostIP != "127.0.0.1" || len(project.Services["postgres"].Ports) != 0 {
		t.Errorf("the host has the ports %+v, want one, of its own only", ports)
	}
}

// A variable that is not set gets its default; of the settings that are only passed on, none is set then.
func TestComposeSetsNothingThatNobodyHasSet(t *testing.T) {
	t.Parallel()
	project, err := load(t, file(t), types.Mapping{"POSTGRES_PASSWORD": "a"})
	if err != nil {
		t.Fatal(err)
	}
	issuer, image := value(project, "posthaste", "OUTBOX_OIDC_ISSUER"), project.Services["posthaste"].Image
	if issuer != unset || !strings.HasPrefix(image, "posthaste:") {
		t.Errorf("OUTBOX_OIDC_ISSUER is %q, and the image %s", issuer, image)
	}
}

const unset = "not set"

// value returns a variable of a service.
func value(project *types.Project, service, name string) string {
	if v := project.Services[service].Environment[name]; v != nil {
		return *v
	}
	return unset
}

func TestComposeRefusesMistakes(t *testing.T) {
	t.Parallel()
	set := types.Mapping{"POSTGRES_PASSWORD": "a"}
	for _, c := range []struct{ old, new, want string }{
		{"read_only:", "readonly:", "readonly"},
		{"stop_grace_period: 35s", "stop_grace_periods: 35s", "stop_grace_periods"},
		{"      retries:", "      retires:", "retires"},
		{"stop_grace_period: 35s", "stop_grace_period: soon", "soon"},
		{"condition: service_healthy", "condition: service_ready", "services.migrate.depends_on"},
		{"      migrate: {condition", "      migrated: {condition", "migrated"},
		{"\nvolumes:\n  postgres:", "\nvolumes:\n  elephant:", "postgres"},
		{"<<: *database", "<<: *base", "base"},
	} {
		good := file(t)
		bad := strings.Replace(good, c.old, c.new, 1)
		if bad == good {
			t.Errorf("%q is not in the file", c.old)
		} else if _, err := load(t, bad, set); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("with %q the file is loaded with %v, want an error about %s", c.new, err, c.want)
		}
	}
	if _, err := load(t, file(t), nil); err == nil || !strings.Contains(err.Error(), "choose one") {
		t.Errorf("without a password the file is loaded with %v", err)
	}
}
