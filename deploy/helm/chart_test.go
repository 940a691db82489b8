// Package helm tests the chart: rendered by helm's own engine for a dozen sets of values, and decoded strictly into the
// types of Kubernetes, which refuses unknown fields.
package helm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

const secret = "database: {existingSecret: pg}\n"

// sets are the values for which the chart is rendered, and the expected objects.
var sets = map[string]struct {
	values string
	makes  string
}{
	"the least": {secret, "Deployment/control Deployment/dispatch PodDisruptionBudget/control PodDisruptionBudget/dispatch"},
	"one deployment does all": {
		secret + "control: {enabled: false}\ndispatch: {replicas: 1, queues: 'default=64,mail=8', webhooks: ['mail.send=https://mail/send', 'a=http://b']}",
		"Deployment/dispatch PodDisruptionBudget/dispatch",
	},
	"api": {
		secret + "api: {enabled: true, drainSeconds: 7}\ngracePeriodSeconds: 60",
		"Deployment/api Deployment/control Deployment/dispatch PodDisruptionBudget/api PodDisruptionBudget/control PodDisruptionBudget/dispatch Service/api",
	},
	"api alone, without delay": {
		secret + "dispatch: {enabled: false}\ncontrol: {enabled: false}\napi: {enabled: true, drainSeconds: 0, service: {type: LoadBalancer, port: 443, annotations: {a: b}}}",
		"Deployment/api PodDisruptionBudget/api Service/api",
	},
	"console": {
		secret + "dispatch: {enabled: false}\napi: {enabled: true, console: true, consoleURL: 'https://jobs.example.com', consoleKeySecret: sessions}",
		"Deployment/api Deployment/control PodDisruptionBudget/api PodDisruptionBudget/control Service/api",
	},
	"console, signed in to at a provider": {
		secret + `dispatch: {enabled: false}
api:
  enabled: true
  console: true
  consoleURL: 'https://jobs.example.com/console/'
  consoleKeySecret: sessions
  consoleOIDC:
    client: posthaste-console
    existingSecret: provider
    secretKey: client-secret
    issuer: 'https://login.example.com/realms/acme'
    scopes: email
    nameClaim: email
    capabilityClaim: roles
    capabilities: {operator: [jobs.read, admin.read, admin.mutate], support: [jobs.read]}
    allTenants: operator`,
		"Deployment/api Deployment/control PodDisruptionBudget/api PodDisruptionBudget/control Service/api",
	},
	"relay": {
		secret + "dispatch: {enabled: false}\nrelay: {enabled: true, existingSecret: brokers}",
		"Deployment/control Deployment/relay PodDisruptionBudget/control PodDisruptionBudget/relay",
	},
	"webhooks and queues, as docs/operate/deploy.md adds them": {
		secret + "dispatch: {webhooks: ['receipt.send=https://shop.example.com/jobs'], queues: 'default=64,mail=8'}",
		"Deployment/control Deployment/dispatch PodDisruptionBudget/control PodDisruptionBudget/dispatch",
	},
	"console and relay, as docs/operate/deploy.md adds them": {
		secret + "image: {repository: REGISTRY/posthaste, tag: VERSION}\napi: {enabled: true, console: true, consoleKeySecret: posthaste-console}\nrelay: {enabled: true, existingSecret: posthaste-relay}",
		"Deployment/api Deployment/control Deployment/dispatch Deployment/relay PodDisruptionBudget/api PodDisruptionBudget/control PodDisruptionBudget/dispatch PodDisruptionBudget/relay Service/api",
	},
	"behind a pooler": {
		"database: {existingSecret: pg, urlKey: pooled, listenUrlKey: direct, migrateUrlKey: owner, apiUrlKey: api}\nrelay: {enabled: true, existingSecret: r, checksum: 0a}\napi: {enabled: true}",
		"Deployment/api Deployment/control Deployment/dispatch Deployment/relay PodDisruptionBudget/api PodDisruptionBudget/control PodDisruptionBudget/dispatch PodDisruptionBudget/relay Service/api",
	},
	"with files": {
		secret + `control: {enabled: false}
api: {enabled: true}
relay: {existingSecret: brokers}
extraVolumes: [{name: ca, secret: {secretName: postgres-ca}}, {name: schemas, configMap: {name: schemas}}]
extraVolumeMounts: [{name: ca, mountPath: /etc/postgres, readOnly: true}, {name: schemas, mountPath: /etc/schemas}]
env: [{name: OUTBOX_API_SCHEMAS, value: /etc/schemas}, {name: OUTBOX_PPROF, value: 'on'}]`,
		"Deployment/api Deployment/dispatch PodDisruptionBudget/api PodDisruptionBudget/dispatch Service/api",
	},
	"migrated by hand": {secret + "migrate: {enabled: false}\ncontrol: {enabled: false}", "Deployment/dispatch PodDisruptionBudget/dispatch"},
	"hpa": {
		secret + "control: {enabled: false}\nautoscaling: {kind: hpa, minReplicas: 3, maxReplicas: 30, busySlots: 20}",
		"Deployment/dispatch HorizontalPodAutoscaler/dispatch PodDisruptionBudget/dispatch",
	},
	"keda, to zero": {
		secret + "autoscaling: {kind: keda, minReplicas: 0, prometheus: 'http://prometheus:9090'}",
		"Deployment/control Deployment/dispatch PodDisruptionBudget/control PodDisruptionBudget/dispatch ScaledObject/dispatch",
	},
	"network and monitor": {
		secret + `control: {enabled: false}
api: {enabled: true}
podMonitor: {enabled: true, labels: {release: prometheus}}
prometheusRule: {enabled: true, labels: {release: prometheus}}
boards: {enabled: true}
networkPolicy:
  enabled: true
  metricsFrom: [{namespaceSelector: {matchLabels: {name: monitoring}}}]
  apiFrom: [{podSelector: {matchLabels: {app: shop}}}, {ipBlock: {cidr: 10.0.0.0/8}}]`,
		"ConfigMap/boards Deployment/api Deployment/dispatch NetworkPolicy/ PodDisruptionBudget/api PodDisruptionBudget/dispatch PodMonitor/ PrometheusRule/ Service/api",
	},
	"placed": {
		secret + `control: {enabled: false}
image: {repository: registry.example.com/posthaste, digest: 'sha256:` + strings.Repeat("0a", 32) + `', pullSecrets: [one, two], pullPolicy: Always}
podAnnotations: {a: "1"}
podLabels: {team: shop}
nodeSelector: {disk: ssd}
tolerations: [{key: jobs, operator: Exists}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: [b]}]}]}}}
priorityClassName: high
env: [{name: OUTBOX_KEEP, value: 7d}, {name: OUTBOX_WORKER, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]`,
		"Deployment/dispatch PodDisruptionBudget/dispatch",
	},
}

// Each Deployment has what the values in docs/operate/deploy.md add to every pod.
func TestTheChartTakesTheValuesOfTheManual(t *testing.T) {
	page, err := os.ReadFile("../../docs/operate/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, values, shown := strings.Cut(string(page), "<!-- run by deploy/helm/chart_test.go -->\n```yaml\n")
	values, _, _ = strings.Cut(values, "```")
	var want struct {
		ExtraVolumes      []core.Volume
		ExtraVolumeMounts []core.VolumeMount
		Env               []core.EnvVar
	}
	if err := yaml.UnmarshalStrict([]byte(values), &want); err != nil || !shown {
		t.Fatalf("docs/operate/deploy.md shows %q: %v", values, err)
	}
	has := func(all, wanted any) bool {
		got, _ := json.Marshal(all)
		part, _ := json.Marshal(wanted)
		return bytes.Contains(got, bytes.Trim(part, "[]"))
	}
	for name, object := range decoded(t, rendered(t, secret+values)) {
		d, ok := object.(*apps.Deployment)
		if !ok {
			continue
		}
		pod := d.Spec.Template.Spec
		if c := pod.Containers[0]; !has(pod.Volumes, want.ExtraVolumes) || !has(c.VolumeMounts, want.ExtraVolumeMounts) || !has(c.Env, want.Env) {
			t.Errorf("%s has the volumes %v, mounts %v and variables %v, want also %+v", name, pod.Volumes, c.VolumeMounts, c.Env, want)
		}
	}
}

func TestTheChartMakesWhatKubernetesKnows(t *testing.T) {
	for name, set := range sets {
		t.Run(name, func(t *testing.T) {
			objects := decoded(t, rendered(t, set.values))
			if got := strings.Join(slices.Sorted(maps.Keys(objects)), " "); got != set.makes {
				t.Errorf("it makes\n%s, want\n%s", got, set.makes)
			}
			for name, object := range objects {
				if d, ok := object.(*apps.Deployment); ok {
					checkDeployment(t, name, d, objects)
				}
			}
		})
	}
}

// checkDeployment checks the properties that each Deployment has for all values.
func checkDeployment(t *testing.T, name string, d *apps.Deployment, objects map[string]any) {
	t.Helper()
	pod := d.Spec.Template.Spec
	if s := pod.SecurityContext; !*s.RunAsNonRoot || *s.RunAsUser == 0 || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: its pods run as %+v", name, s)
	}
	if *pod.AutomountServiceAccountToken {
		t.Errorf("%s: its pods have a token of the cluster's API", name)
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		s := c.SecurityContext
		if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !*s.RunAsNonRoot || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
			t.Errorf("%s: container %s runs with %+v", name, c.Name, s)
		}
		for _, e := range c.Env {
			if secret := strings.HasSuffix(e.Name, "DATABASE_URL") || strings.HasSuffix(e.Name, "LISTEN_URL") || strings.HasSuffix(e.Name, "_KEY") || strings.HasSuffix(e.Name, "_SECRET"); secret && (e.Value != "" || e.ValueFrom.SecretKeyRef == nil) {
				t.Errorf("%s: %s is not of a Secret", name, e.Name)
			}
		}
		if c.Resources.Limits.Memory().IsZero() {
			t.Errorf("%s: container %s has no limit of memory", name, c.Name)
		}
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, m := range c.VolumeMounts {
			if !slices.ContainsFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == m.Name }) {
				t.Errorf("%s: container %s mounts %s, which is no volume of its pods", name, c.Name, m.Name)
			}
		}
	}
	c := pod.Containers[0]
	if p := c.LivenessProbe.HTTPGet.Path; p != "/livez" {
		t.Errorf("%s: it is restarted by %s", name, p)
	}
	if s, r := c.StartupProbe.HTTPGet.Path, c.ReadinessProbe.HTTPGet.Path; s != "/livez" || r != "/readyz" {
		t.Errorf("%s: probes %s and %s", name, s, r)
	}
	checkStop(t, name, pod)
	component := d.Spec.Selector.MatchLabels["app.kubernetes.io/component"]
	pdb, ok := objects["PodDisruptionBudget/"+component].(*policy.PodDisruptionBudget)
	if !ok || pdb.Spec.MaxUnavailable.IntValue() != 1 || *pdb.Spec.UnhealthyPodEvictionPolicy != policy.AlwaysAllow || !maps.Equal(pdb.Spec.Selector.MatchLabels, d.Spec.Selector.MatchLabels) {
		t.Errorf("%s: its disruption budget is %+v", name, pdb)
	}
	for label, value := range d.Spec.Selector.MatchLabels {
		if d.Spec.Template.Labels[label] != value {
			t.Errorf("%s: it selects %s=%s, and its pods are not that", name, label, value)
		}
	}
	_, hpa := objects["HorizontalPodAutoscaler/"+component]
	_, keda := objects["ScaledObject/"+component]
	if scaled := hpa || keda; scaled == (d.Spec.Replicas != nil) {
		t.Errorf("%s: replicas %v, and scaled %t: one of the two decides", name, d.Spec.Replicas, scaled)
	}
}

// checkStop checks that the kubelet waits longer than the delay and the grace period together.
func checkStop(t *testing.T, name string, pod core.PodSpec) {
	t.Helper()
	var delay int64
	if l := pod.Containers[0].Lifecycle; l != nil {
		delay = l.PreStop.Sleep.Seconds
	}
	grace, err := time.ParseDuration(env(pod.Containers[0])["OUTBOX_GRACE_PERIOD"])
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if got, want := *pod.TerminationGracePeriodSeconds, delay+int64(grace.Seconds())+15; got != want {
		t.Errorf("%s: it is killed after %d s, want %d", name, got, want)
	}
}

func TestWhatTheValuesSay(t *testing.T) {
	deployment := func(set, component string) *apps.Deployment {
		return decoded(t, rendered(t, sets[set].values))["Deployment/"+component].(*apps.Deployment)
	}
	for _, of := range []struct{ set, component, name, want string }{
		{"the least", "dispatch", "OUTBOX_ROLE", "dispatch"},
		{"the least", "control", "OUTBOX_ROLE", "reap"},
		{"one deployment does all", "dispatch", "OUTBOX_ROLE", "dispatch,reap"},
		{"one deployment does all", "dispatch", "OUTBOX_QUEUES", "default=64,mail=8"},
		{"one deployment does all", "dispatch", "OUTBOX_WEBHOOKS", "mail.send=https://mail/send,a=http://b"},
		{"api", "api", "OUTBOX_ROLE", "api"},
		{"api", "api", "OUTBOX_GRACE_PERIOD", "60s"},
		{"api", "api", "OUTBOX_API_ADDR", "0.0.0.0:8080"},
		{"console", "api", "OUTBOX_ROLE", "api,console"},
		{"console", "api", "OUTBOX_CONSOLE_KEY", "sessions/key"},
		{"console", "api", "OUTBOX_CONSOLE_OIDC_CLIENT", ""},
		{"console", "api", "OUTBOX_CONSOLE_OIDC_SECRET", ""},
		{"console, signed in to at a provider", "api", "OUTBOX_CONSOLE_OIDC_CLIENT", "posthaste-console"},
		{"console, signed in to at a provider", "api", "OUTBOX_CONSOLE_OIDC_SECRET", "provider/client-secret"},
		{"console, signed in to at a provider", "api", "OUTBOX_OIDC_ISSUER", "https://login.example.com/realms/acme"},
		{"console, signed in to at a provider", "api", "OUTBOX_CONSOLE_OIDC_SCOPES", "email"},
		{"console, signed in to at a provider", "api", "OUTBOX_OIDC_NAME_CLAIM", "email"},
		{"console, signed in to at a provider", "api", "OUTBOX_OIDC_TENANT_CLAIM", ""},
		{"console, signed in to at a provider", "api", "OUTBOX_OIDC_CAPABILITY_CLAIM", "roles"},
		{"console, signed in to at a provider", "api", "OUTBOX_OIDC_CAPABILITIES", "operator=jobs.read+admin.read+admin.mutate,support=jobs.read"},
		{"console, signed in to at a provider", "api", "OUTBOX_OIDC_ALL_TENANTS", "operator"},
		{"console, signed in to at a provider", "control", "OUTBOX_CONSOLE_OIDC_SECRET", ""},
		{"relay", "relay", "OUTBOX_RELAY_CONFIG", "/etc/posthaste/relay.yaml"},
		{"behind a pooler", "dispatch", "OUTBOX_DATABASE_URL", "pg/pooled"},
		{"behind a pooler", "dispatch", "OUTBOX_LISTEN_URL", "pg/direct"},
		{"behind a pooler", "api", "OUTBOX_API_DATABASE_URL", "pg/api"},
		{"the least", "dispatch", "OUTBOX_PPROF", "off"},
		{"with files", "api", "OUTBOX_PPROF", "on"}, // the last one of a name counts
		{"placed", "dispatch", "OUTBOX_KEEP", "7d"},
		{"the least", "dispatch", "OUTBOX_WORKER", "shop-posthaste-dispatch"}, // of every pod
		{"the least", "control", "OUTBOX_WORKER", ""},
		{"placed", "dispatch", "OUTBOX_WORKER", ""}, // the name of the pod, from env
	} {
		if got := env(deployment(of.set, of.component).Spec.Template.Spec.Containers[0])[of.name]; got != of.want {
			t.Errorf("%s: %s of %s is %q, want %q", of.set, of.name, of.component, got, of.want)
		}
	}
	for name, want := range map[string]string{"the least": "", "placed": "", "behind a pooler": "0a"} {
		annotations := deployment(name, "dispatch").Spec.Template.Annotations
		if got := annotations["checksum/relay"]; got != want || name == "placed" && annotations["a"] != "1" {
			t.Errorf("%s: the pods of dispatch have the annotations %v, want checksum/relay %q", name, annotations, want)
		}
	}
	if got := deployment("behind a pooler", "control").Spec.Template.Annotations; len(got) != 0 {
		t.Errorf("the pods of control, which have no relay.yaml, have the annotations %v", got)
	}
	migrate := deployment("behind a pooler", "dispatch").Spec.Template.Spec.InitContainers[0]
	if got := strings.Join(migrate.Args, " ") + " on " + env(migrate)["OUTBOX_DATABASE_URL"]; got != "migrate up --wait=10m on pg/owner" {
		t.Errorf("the init container does %s", got)
	}
	if got := env(deployment("with files", "api").Spec.Template.Spec.InitContainers[0])["OUTBOX_API_SCHEMAS"]; got != "/etc/schemas" {
		t.Errorf("the init container has OUTBOX_API_SCHEMAS %q, want that of every pod", got)
	}
	if n := len(deployment("migrated by hand", "dispatch").Spec.Template.Spec.InitContainers); n != 0 {
		t.Errorf("%d init containers, though the schema is migrated by hand", n)
	}
	if got, want := deployment("placed", "dispatch").Spec.Template.Spec.Containers[0].Image, "registry.example.com/posthaste@sha256:"+strings.Repeat("0a", 32); got != want {
		t.Errorf("the image is %s, want %s", got, want)
	}
}

// KEDA starts pods for jobs of the queues that the pods work, and for no others.
func TestKEDACountsTheQueuesOfItsPods(t *testing.T) {
	for queues, of := range map[string]string{
		"":                            `{namespace="jobs",queue=~"default"}`,
		"mail":                        `{namespace="jobs",queue=~"mail"}`,
		"default=64, mail.bulk=8,a_b": `{namespace="jobs",queue=~"default|mail\\.bulk|a_b"}`,
	} {
		const due = "(max by (queue) (outbox_queue_jobs_dueOF) - max by (queue) (outbox_queue_jobs_unhandledOF))"
		want := strings.ReplaceAll("sum(clamp_min("+due+", 0) unless on (queue) outbox_queue_limitOF or clamp("+due+", 0, 1))"+
			` or 0 * max(outbox_reaper_sample_timestamp_seconds{namespace="jobs"} > 0)`, "OF", of)
		if got := kedaQuery(t, queues); got != want {
			t.Errorf("of the queues %q: %s, want %s", queues, got, want)
		}
	}
}

func kedaQuery(t *testing.T, queues string) string {
	t.Helper()
	objects := decoded(t, rendered(t, sets["keda, to zero"].values+"\ndispatch: {queues: '"+queues+"'}"))
	metadata := objects["ScaledObject/dispatch"].(*scaledObject).Spec.Triggers[0].Metadata
	if got := metadata["ignoreNullValues"]; got != "false" {
		t.Errorf("ignoreNullValues is %q, and an empty answer counts as 0", got)
	}
	return metadata["query"]
}

// A pod with all slots busy is above the target, also by the tenth that the autoscaler tolerates.
func TestTheAutoscalerCanStartAPod(t *testing.T) {
	for values, want := range map[string]string{
		"":                               "38400m", // 60 % of the 64 slots of the queue default
		"dispatch: {queues: 'mail=8'}\n": "4800m",
		"dispatch: {queues: 'default=64, mail=8,slow'}\n": "81600m",
		"dispatch: {queues: 'one=1'}\n":                   "600m",
	} {
		objects := decoded(t, rendered(t, secret+values+"autoscaling: {kind: hpa}"))
		got := objects["HorizontalPodAutoscaler/dispatch"].(*autoscaling.HorizontalPodAutoscaler).Spec.Metrics[0].Pods.Target.AverageValue
		if got == nil || *got != resource.MustParse(want) {
			t.Errorf("%s: the target is %v, want %s", values, got, want)
		}
	}
}

// promtool evaluates the query: jobs count that more pods could run, and those of a limited queue, or of one that is at
// its limit and more, as one.
func TestKEDACountsJobsThatMorePodsCouldRun(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil && os.Getenv("POSTHASTE_PROMETHEUS") == "required" {
		t.Fatal("promtool is not installed, and POSTHASTE_PROMETHEUS=required: apt-get install prometheus")
	} else if err != nil {
		t.Skip("promtool is not installed: apt-get install prometheus")
	}
	series := func(name, queue, value string) string {
		return fmt.Sprintf("      - {series: '%s{namespace=\"jobs\",queue=\"%s\"%s}', values: '%s'}\n", name, queue, map[bool]string{true: `,limit="rate"`}[strings.HasSuffix(name, "limit")], value)
	}
	var tests strings.Builder
	tests.WriteString("tests:\n")
	const sampled = "      - {series: 'outbox_reaper_sample_timestamp_seconds%s', values: '%s'}\n"
	const nothing = -1 // an error of KEDA, because ignoreNullValues is false
	for _, of := range []struct {
		series string
		want   int
	}{
		{fmt.Sprintf(sampled, `{namespace="jobs"}`, "1700000000"), 0}, // no queue has a job or a dispatcher
		{fmt.Sprintf(sampled, `{namespace="jobs"}`, "0"), nothing},    // the database cannot be reached
		{fmt.Sprintf(sampled, "", "1700000000") + // scraped without the label namespace
			"      - {series: 'outbox_queue_jobs_due{queue=\"default\"}', values: '700'}\n" +
			"      - {series: 'outbox_queue_jobs_unhandled{queue=\"default\"}', values: '0'}\n", nothing},
		{series("outbox_queue_jobs_due", "default", "700") + series("outbox_queue_jobs_unhandled", "default", "0"), 700},
		{series("outbox_queue_jobs_due", "default", "700") + series("outbox_queue_jobs_unhandled", "default", "500"), 200},
		// These are of two samples.
		{series("outbox_queue_jobs_due", "default", "3") + series("outbox_queue_jobs_unhandled", "default", "5"), 0},
		{series("outbox_queue_jobs_due", "default", "700") + series("outbox_queue_jobs_unhandled", "default", "0") + series("outbox_queue_limit", "default", "5"), 1},
		{series("outbox_queue_jobs_due", "default", "0") + series("outbox_queue_jobs_unhandled", "default", "0") + series("outbox_queue_limit", "default", "5"), 0},
		{series("outbox_queue_jobs_due", "default", "700") + series("outbox_queue_jobs_unhandled", "default", "0") + series("outbox_queue_limit", "default", "5") +
			series("outbox_queue_jobs_due", "mail", "30") + series("outbox_queue_jobs_unhandled", "mail", "0"), 31},
		{series("outbox_queue_jobs_due", "other", "700") + series("outbox_queue_jobs_unhandled", "other", "0") +
			series("outbox_queue_jobs_due", "mail", "0") + series("outbox_queue_jobs_unhandled", "mail", "0"), 0},
	} {
		samples := fmt.Sprintf("[{value: %d}]", of.want)
		if of.want == nothing {
			samples = "[]"
		}
		fmt.Fprintf(&tests, "  - interval: 1m\n    input_series:\n%s    promql_expr_test:\n      - expr: '%s'\n        eval_time: 0m\n        exp_samples: %s\n",
			of.series, kedaQuery(t, "default,mail"), samples)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "keda_test.yml"), []byte(tests.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", filepath.Join(folder, "keda_test.yml")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Each container has the files that the values name, such as the CA of the database's certificate. The pods of dispatch
// and api get relay.yaml, for its sections presence and rpc, with and without a relay.
func TestFilesAreMounted(t *testing.T) {
	mounts := func(c core.Container) string {
		var all []string
		for _, m := range c.VolumeMounts {
			all = append(all, m.Name+" at "+m.MountPath)
		}
		return strings.Join(all, ", ")
	}
	for _, of := range []struct{ set, component, serve, migrate, config string }{
		{"the least", "dispatch", "", "", ""},
		{"relay", "relay", "relay at /etc/posthaste", "", "/etc/posthaste/relay.yaml"},
		{"relay", "control", "", "", ""},
		{"behind a pooler", "dispatch", "relay at /etc/posthaste", "", "/etc/posthaste/relay.yaml"},
		{"with files", "dispatch", "relay at /etc/posthaste, ca at /etc/postgres, schemas at /etc/schemas", "ca at /etc/postgres, schemas at /etc/schemas", "/etc/posthaste/relay.yaml"},
		{"with files", "api", "relay at /etc/posthaste, ca at /etc/postgres, schemas at /etc/schemas", "ca at /etc/postgres, schemas at /etc/schemas", "/etc/posthaste/relay.yaml"},
	} {
		pod := decoded(t, rendered(t, sets[of.set].values))["Deployment/"+of.component].(*apps.Deployment).Spec.Template.Spec
		serve, migrate := pod.Containers[0], pod.InitContainers[0]
		if s, m := mounts(serve), mounts(migrate); s != of.serve || m != of.migrate {
			t.Errorf("%s: %s mounts %q and migrate %q, want %q and %q", of.set, of.component, s, m, of.serve, of.migrate)
		}
		if got := env(serve)["OUTBOX_RELAY_CONFIG"]; got != of.config {
			t.Errorf("%s: OUTBOX_RELAY_CONFIG of %s is %q, want %q", of.set, of.component, got, of.config)
		}
	}
}

// The chart has complete copies of the alerts and the boards, which make dashboards takes from deploy/prometheus and
// deploy/grafana. They are copies because some transports of a source tree do not preserve links.
func TestTheChartHasRulesAndBoards(t *testing.T) {
	objects := decoded(t, rendered(t, sets["network and monitor"].values))
	groups := objects["PrometheusRule/"].(*monitoring.PrometheusRule).Spec.Groups
	if len(groups) != 1 || len(groups[0].Rules) < 20 {
		t.Errorf("its rules are %+v", groups)
	}
	config := objects["ConfigMap/boards"].(*core.ConfigMap)
	if config.Labels["grafana_dashboard"] != "1" || len(config.Data) != 3 {
		t.Errorf("the boards have the labels %v, and are %d", config.Labels, len(config.Data))
	}
	alerts, err := os.ReadFile("../prometheus/posthaste.rules.yml")
	copied, err2 := os.ReadFile("posthaste/files/posthaste.rules.yml")
	if err != nil || err2 != nil || !bytes.Equal(alerts, copied) {
		t.Errorf("the chart's alerts are not those of deploy/prometheus, run make dashboards: %v, %v", err, err2)
	}
	for name, text := range config.Data {
		want, err := os.ReadFile("../grafana/" + name)
		if err != nil || strings.TrimSpace(text) != strings.TrimSpace(string(want)) { // decoded trims the last one
			t.Errorf("%s is not the file of deploy/grafana, run make dashboards: %v", name, err)
		}
	}
}

// Values that cannot work are refused with an explanation before anything is installed.
func TestValuesThatAreRefused(t *testing.T) {
	for values, want := range map[string]string{
		"": "database.existingSecret",
		secret + "dispatch: {enabled: false}\ncontrol: {enabled: false}":                                         "enable one of",
		"database: {existingSecret: pg, urlKey: pooled, listenUrlKey: direct}":                                   "database.migrateUrlKey",
		secret + "relay: {enabled: true}":                                                                        "relay.existingSecret",
		secret + "api: {enabled: true, console: true}":                                                           "api.consoleKeySecret",
		secret + "api: {console: true, consoleKeySecret: a}":                                                     "needs api.enabled",
		secret + "api: {enabled: true, consoleOIDC: {client: a}}":                                                "needs api.console",
		secret + "api: {enabled: true, console: true, consoleKeySecret: a, consoleOIDC: {client: a, issuer: b}}": "set the issuer",
		secret + "api: {enabled: true, console: true, consoleKeySecret: a, consoleOIDC: {existingSecret: a}}":    "set the client",
		secret + "api: {enabled: true, consoleOIDC: {secret: hunter2}}":                                          "secret",
		secret + "dispatch: {enabled: false}\nautoscaling: {kind: hpa}":                                          "not enabled",
		secret + "autoscaling: {kind: hpa, minReplicas: 0}":                                                      "only keda",
		secret + "autoscaling: {kind: hpa, busySlots: 59}":                                                       "a pod has 64 slots",
		secret + "dispatch: {queues: 'mail=8'}\nautoscaling: {kind: hpa, busySlots: 40}":                         "a pod has 8 slots",
		secret + "autoscaling: {kind: keda, minReplicas: 0, prometheus: 'http://p'}\ncontrol: {enabled: false}":  "needs control.enabled",
		secret + "autoscaling: {kind: keda}":                                                                     "autoscaling.prometheus",
		secret + "autoscaling: {kind: keda, prometheus: 'http://p', minReplicas: 4, maxReplicas: 3}":             "more than maxReplicas",
		secret + "replicas: 3": "replicas",
		"database: {existingSecret: pg, url: 'postgres://shop:hunter2@db/shop'}": "url",
		secret + "dispatch: {webhooks: ['https://mail/send?a=b']}":               "webhooks",
	} {
		out, err := render(values)
		if err == nil {
			t.Errorf("%s\nis taken, and makes\n%s", values, out)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nis refused with %q, want %q", values, err, want)
		}
	}
}

// render returns the documents that the chart renders for values.
func render(values string) (map[string]string, error) {
	chart, err := loader.Load("posthaste")
	if err != nil {
		return nil, err
	}
	parsed, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		return nil, err
	}
	release := chartutil.ReleaseOptions{Name: "shop", Namespace: "jobs", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, parsed, release, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, all)
}

func rendered(t *testing.T, values string) map[string]string {
	t.Helper()
	out, err := render(values)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// decoded returns the objects of the documents by Kind/component.
func decoded(t *testing.T, documents map[string]string) map[string]any {
	t.Helper()
	objects := map[string]any{}
	for file, text := range documents {
		for document := range strings.SplitSeq(text, "\n---\n") {
			document = strings.TrimPrefix(strings.TrimSpace(document), "---\n")
			if document == "" || strings.HasSuffix(file, "_helpers.tpl") {
				continue
			}
			name, object, err := decode(document)
			if err != nil {
				t.Errorf("%s: %v\n%s", file, err, numbered(document))
				continue
			}
			objects[name] = object
		}
	}
	return objects
}

// decode decodes a document as the kind that it declares. Secret is not among the kinds: the chart must create none.
func decode(document string) (name string, object any, err error) {
	var head struct {
		APIVersion, Kind string
		Metadata         struct {
			Name   string
			Labels map[string]string
		}
	}
	if err := yaml.Unmarshal([]byte(document), &head); err != nil {
		return "", nil, err
	}
	kinds := map[string]any{
		"apps/v1 Deployment":                      &apps.Deployment{},
		"v1 Service":                              &core.Service{},
		"policy/v1 PodDisruptionBudget":           &policy.PodDisruptionBudget{},
		"autoscaling/v2 HorizontalPodAutoscaler":  &autoscaling.HorizontalPodAutoscaler{},
		"networking.k8s.io/v1 NetworkPolicy":      &networking.NetworkPolicy{},
		"monitoring.coreos.com/v1 PodMonitor":     &monitoring.PodMonitor{},
		"monitoring.coreos.com/v1 PrometheusRule": &monitoring.PrometheusRule{},
		"v1 ConfigMap":                            &core.ConfigMap{},
		"keda.sh/v1alpha1 ScaledObject":           &scaledObject{},
	}
	object, ok := kinds[head.APIVersion+" "+head.Kind]
	if !ok {
		return "", nil, fmt.Errorf("%s %s is not expected", head.APIVersion, head.Kind)
	}
	if v := head.Metadata.Labels["app.kubernetes.io/instance"]; v != "shop" {
		return "", nil, fmt.Errorf("%s %s is of the release %q", head.Kind, head.Metadata.Name, v)
	}
	component := strings.TrimPrefix(strings.TrimPrefix(head.Metadata.Name, "shop-posthaste"), "-")
	return head.Kind + "/" + component, object, yaml.UnmarshalStrict([]byte(document), object)
}

// env returns the settings of a container; one of a Secret is SECRET/KEY.
func env(c core.Container) map[string]string {
	all := map[string]string{}
	for _, e := range c.Env {
		all[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			all[e.Name] = e.ValueFrom.SecretKeyRef.Name + "/" + e.ValueFrom.SecretKeyRef.Key
		}
	}
	return all
}

func numbered(text string) string {
	var b strings.Builder
	n := 0
	for line := range strings.Lines(text) {
		n++
		b.WriteString(strconv.Itoa(n) + " " + line)
	}
	return b.String()
}
