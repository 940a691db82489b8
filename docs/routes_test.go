package docs_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const routesPage = `# HTTP API: routes

For people who write clients of the API: every route with its capability, parameters, body and answer, generated from
[api/openapi.json](../../api/openapi.json). [The API](api.md) explains them with examples. All paths are below the
address of the API. Every request has a bearer token. Any route may answer with a [problem](api.md#problems) instead,
whose codes are listed under [errors](errors.md#problems-of-the-api). Names in *italics* are objects, listed at the end.
`

// described is what the description of the API has of it. Members that it does not have are mistakes of this type.
type described struct {
	Tags  []struct{ Name, Description string }
	Paths map[string]map[string]struct {
		Summary, Description string
		Tags                 []string
		Parameters           []struct {
			Name, In, Description string
			Required              bool
			Schema                schema
		}
		RequestBody *struct {
			Content map[string]struct{ Schema schema }
		}
		Responses map[string]struct {
			Description string
			Content     map[string]struct{ Schema schema }
		}
	}
	Components struct{ Schemas map[string]schema }
}

type schema struct {
	Ref                                      string `json:"$ref"`
	Description, Format                      string
	Type                                     any // a name, or several
	Enum                                     []string
	Items                                    *schema
	Properties                               map[string]schema
	Required                                 []string
	AdditionalProperties                     any
	Minimum, Maximum                         *float64
	MinLength, MaxLength, MinItems, MaxItems *int
}

// docs/reference/api-routes.md is generated from the description of the API. With -update this writes it.
func TestRoutesPageIsTheDescriptionOfTheAPI(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(top, "api", "openapi.json"))
	if err != nil {
		t.Fatal(err)
	}
	var api described
	if err := json.Unmarshal(text, &api); err != nil {
		t.Fatal(err)
	}
	want, routes := pageOf(api)
	if routes < 60 {
		t.Fatalf("%d routes: this looks at the wrong place", routes)
	}
	const page = "reference/api-routes.md"
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil || string(got) != want {
		t.Errorf("docs/%s is not what api/openapi.json describes, make docs-reference writes it (%v)", page, err)
	}
	for line := range strings.Lines(want) {
		if !strings.Contains(string(got), line) {
			t.Errorf("docs/%s lacks: %s", page, line)
		}
	}
}

// pageOf returns the page, and the number of its routes.
func pageOf(api described) (page string, routes int) {
	var b strings.Builder
	b.WriteString(routesPage)
	for _, tag := range api.Tags {
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n", strings.ReplaceAll(tag.Name, "-", " "), tag.Description)
		for _, path := range sortedKeys(api.Paths) {
			for _, method := range sortedKeys(api.Paths[path]) {
				if api.Paths[path][method].Tags[0] == tag.Name {
					routes++
					writeRoute(&b, api, method, path)
				}
			}
		}
	}
	b.WriteString("\n## Objects\n")
	for _, name := range sortedKeys(api.Components.Schemas) {
		fmt.Fprintf(&b, "\n### %s\n\n", name)
		of := api.Components.Schemas[name]
		if len(of.Properties) == 0 {
			fmt.Fprintf(&b, "%s.\n", typeOf(of))
			continue
		}
		b.WriteString("| member | type | | meaning |\n| --- | --- | --- | --- |\n")
		for _, member := range sortedKeys(of.Properties) {
			m := of.Properties[member]
			writeRow(&b, member, m, map[bool]string{true: "required"}[slices.Contains(of.Required, member)], m.Description)
		}
	}
	return b.String(), routes
}

func writeRoute(b *strings.Builder, api described, method, path string) {
	route := api.Paths[path][method]
	fmt.Fprintf(b, "\n### `%s %s`\n\n%s.\n%s\n", strings.ToUpper(method), path, route.Summary, route.Description)
	if len(route.Parameters) > 0 {
		b.WriteString("\n| parameter | type | in | meaning |\n| --- | --- | --- | --- |\n")
	}
	for _, p := range route.Parameters {
		writeRow(b, p.Name, p.Schema, p.In, p.Description)
	}
	b.WriteString("\n")
	if route.RequestBody != nil {
		for _, form := range sortedKeys(route.RequestBody.Content) {
			fmt.Fprintf(b, "- Body: %s, as `%s`\n", typeOf(route.RequestBody.Content[form].Schema), form)
		}
	}
	for _, status := range sortedKeys(route.Responses) {
		answer := route.Responses[status]
		if status == "default" {
			continue // a problem
		}
		fmt.Fprintf(b, "- %s", status)
		for _, form := range sortedKeys(answer.Content) {
			fmt.Fprintf(b, ": %s, as `%s`", typeOf(answer.Content[form].Schema), form)
		}
		if !slices.Contains([]string{"OK", "Accepted"}, answer.Description) {
			fmt.Fprintf(b, ". %s", answer.Description)
		}
		b.WriteString("\n")
	}
}

func writeRow(b *strings.Builder, name string, of schema, note, meaning string) {
	cell := strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;")
	fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", name, cell.Replace(typeOf(of)), note, cell.Replace(meaning))
}

// typeOf names a type with its limits: "text, 1 to 128 bytes".
func typeOf(of schema) string {
	if of.Ref != "" {
		name := of.Ref[strings.LastIndex(of.Ref, "/")+1:]
		return "*[" + name + "](#" + strings.ToLower(name) + ")*"
	}
	name := fmt.Sprint(of.Type)
	if several, is := of.Type.([]any); is {
		name = fmt.Sprint(several[0]) // the other is null
	}
	switch {
	case len(of.Enum) > 0:
		return "`" + strings.Join(of.Enum, "`, `") + "`"
	case of.Type == nil:
		return "any JSON"
	case name == "array" && of.Items != nil:
		return "list of " + typeOf(*of.Items) + limits(" members", of.MinItems, of.MaxItems)
	case of.Format == "date-time":
		return "time"
	case of.Format == "uuid":
		return "id"
	case of.Format == "binary":
		return "lines of JSON"
	case name == "string":
		return "text" + limits(" characters", of.MinLength, of.MaxLength)
	case name == "object":
		return "object"
	case name == "boolean":
		return "true or false"
	}
	return name + between(of.Minimum, of.Maximum)
}

func limits(unit string, least, most *int) string {
	switch {
	case most == nil:
		return ""
	case least == nil || *least == 0:
		return fmt.Sprintf(", up to %d%s", *most, unit)
	}
	return fmt.Sprintf(", %d to %d%s", *least, *most, unit)
}

func between(least, most *float64) string {
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
	switch {
	case least != nil && most != nil:
		return fmt.Sprintf(", %s to %s", number(*least), number(*most))
	case least != nil:
		return ", at least " + number(*least)
	case most != nil:
		return ", at most " + number(*most)
	}
	return ""
}
