package helm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// scaledObject has the fields of keda's type that tests of the chart look at. Package v1alpha1, which declares the
// type, imports 367 packages that nothing else here needs, and that take a minute to compile; what a cluster refuses,
// it refuses by the schema, and so does this.
type scaledObject struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		ScaleTargetRef  struct{ Name string } `json:"scaleTargetRef"`
		MinReplicaCount *int32                `json:"minReplicaCount"`
		MaxReplicaCount *int32                `json:"maxReplicaCount"`
		Triggers        []struct {
			Type     string            `json:"type"`
			Metadata map[string]string `json:"metadata"`
		} `json:"triggers"`
	} `json:"spec"`
}

// UnmarshalJSON decodes what the schema of keda accepts.
func (o *scaledObject) UnmarshalJSON(text []byte) error {
	schema, err := kedaSchema()
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	if err := schema.Validate(value); err != nil {
		return err
	}
	var around struct { // what the schema leaves to Kubernetes
		meta.TypeMeta   `json:",inline"`
		meta.ObjectMeta `json:"metadata"`
		Spec            any `json:"spec"`
	}
	if err := yaml.UnmarshalStrict(text, &around); err != nil {
		return err
	}
	type fields scaledObject
	return json.Unmarshal(text, (*fields)(o))
}

// kedaSchema returns the schema of testdata/keda, which is that of keda v2.21.0, under the Apache licence beside it. An
// API server drops fields that it does not know; here they are errors.
var kedaSchema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	text, err := os.ReadFile("testdata/keda/keda.sh_scaledobjects.yaml")
	if err != nil {
		return nil, err
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Name   string
				Schema struct {
					OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return nil, err
	}
	if len(crd.Spec.Versions) != 1 || crd.Spec.Versions[0].Name != "v1alpha1" {
		return nil, fmt.Errorf("it has other versions than v1alpha1: %d", len(crd.Spec.Versions))
	}
	schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	closeObjects(schema)
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("scaledobject.json", schema); err != nil {
		return nil, err
	}
	return compiler.Compile("scaledobject.json")
})

// closeObjects makes each object of a schema refuse properties that it does not declare.
func closeObjects(schema map[string]any) {
	properties, declared := schema["properties"].(map[string]any)
	_, open := schema["additionalProperties"]
	if preserve, _ := schema["x-kubernetes-preserve-unknown-fields"].(bool); declared && !open && !preserve {
		schema["additionalProperties"] = false
	}
	for _, property := range properties {
		closeObjects(property.(map[string]any))
	}
	for _, of := range []string{"items", "additionalProperties"} {
		if inner, ok := schema[of].(map[string]any); ok {
			closeObjects(inner)
		}
	}
}

// What keda refuses, and what an API server drops, is refused.
func TestKEDAsSchemaRefusesMistakes(t *testing.T) {
	documents := rendered(t, sets["keda, to zero"].values)
	good := strings.TrimSpace(documents["posthaste/templates/autoscaling.yaml"])
	if _, _, err := decode(good); err != nil {
		t.Fatal(err)
	}
	for of, change := range map[string][2]string{
		"a field of the spec":     {"maxReplicaCount:", "maxReplicas:"},
		"a field of a trigger":    {"    - type: prometheus", "    - type: prometheus\n      interval: 5"},
		"a trigger's type":        {"    - type: prometheus", "    - name: prometheus"},
		"a number for a string":   {`threshold: "`, `threshold: 7 # "`},
		"a string for a number":   {"minReplicaCount: 0", "minReplicaCount: none"},
		"a field of the target":   {"scaleTargetRef: {name:", "scaleTargetRef: {deployment:"},
		"a field of the metadata": {"  labels:", "  annotation: {}\n  labels:"},
		"a field of the object":   {"spec:", "specs: {}\nspec:"},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if bad == good {
			t.Errorf("%s: %q is not in\n%s", of, change[0], good)
		} else if _, _, err := decode(bad); err == nil {
			t.Errorf("%s: this is taken:\n%s", of, bad)
		}
	}
}
