package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

// The default of a setting is that of the field of app.Config which it sets, whether a duration, a string or a list:
// the field's comment states it. A program that calls app.Run then does what posthaste serve does.
func TestDefaultsOfSettingsAreThoseOfTheirFields(t *testing.T) {
	t.Parallel()
	// others are defaults of the program alone.
	others := map[string]string{"admin-addr": "a program that embeds Posthaste serves /metrics itself"}
	file, err := parser.ParseFile(token.NewFileSet(), "../../app/config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]string{}
	ast.Inspect(file, func(node ast.Node) bool {
		if field, is := node.(*ast.Field); is {
			for _, name := range field.Names {
				comments[name.Name] = strings.Join(strings.Fields(field.Doc.Text()+" "+field.Comment.Text()), " ")
			}
		}
		return true
	})
	n := 0
	for _, s := range slices.Concat(allSettings, apiSettings) {
		var given settings
		if s.fallback == "" || s.parse(&given, s.fallback) != nil {
			continue
		}
		for name, value := range fieldsThatAreSet(given.app) {
			n++
			stated := formsOf(value)
			has := slices.ContainsFunc(stated, func(form string) bool { return strings.Contains(comments[name], form) })
			if !has && others[s.flag] == "" {
				t.Errorf("the default of --%s is %s, and app.Config.%s states %q, want one of %q", s.flag, s.fallback, name, comments[name], stated)
			}
		}
	}
	if n < 8 {
		t.Errorf("%d fields: too few", n)
	}
}

// fieldsThatAreSet returns the fields of a Config that are not zero.
func fieldsThatAreSet(config app.Config) map[string]any {
	all := map[string]any{}
	of := reflect.ValueOf(config)
	for i := range of.NumField() {
		field := of.Field(i)
		if none := field.IsZero() || field.Kind() == reflect.Map && field.Len() == 0; !none && of.Type().Field(i).IsExported() {
			all[of.Type().Field(i).Name] = field.Interface()
		}
	}
	return all
}

// formsOf returns how a comment states a default: "0 means 30 s", "(default 7 days)".
func formsOf(value any) (forms []string) {
	switch value := value.(type) {
	case time.Duration:
		for unit, name := range map[time.Duration]string{time.Second: "s", time.Minute: "min", time.Hour: "h", 24 * time.Hour: "days"} {
			if value%unit == 0 {
				forms = append(forms, fmt.Sprintf("0 means %d %s", value/unit, name), fmt.Sprintf("(default %d %s)", value/unit, name))
			}
		}
	case map[string]dispatcher.QueueConfig:
		names := slices.Sorted(maps.Keys(value))
		forms = []string{fmt.Sprintf("nil means the queue %q", strings.Join(names, ","))}
	case map[outbox.Status]time.Duration:
		const day = 24 * time.Hour
		dead := []time.Duration{value[outbox.Failed] / day, value[outbox.Dead] / day}
		if dead[0] == dead[1] && len(value) == 3 {
			forms = []string{fmt.Sprintf("nil means %d days for dead letters, and, without Keep, %d days for those that succeeded",
				dead[0], value[outbox.Succeeded]/day)}
		}
	default:
		forms = []string{fmt.Sprintf(`"" means %v`, value)}
	}
	return forms
}
