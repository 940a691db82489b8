package main

import (
	"bytes"
	"encoding/json"
	"strings"
)

// schemaVersion is that of Grafana 9.0. Later versions convert a board when they open it; nothing that we use has
// changed up to 42, the last version of this model: github.com/grafana/grafana-foundation-sdk/go v0.0.22, which is for
// that, decodes the files strictly. Our tests do not include it, to avoid a further module.
const schemaVersion = 36

// board is a Grafana dashboard in the classic JSON model, with the fields that we use.
type board struct {
	UID           string `json:"uid"`
	Title         string `json:"title"`
	Description   string `json:"description"`
	SchemaVersion int    `json:"schemaVersion"`
	Version       int    `json:"version"`

	Tags         []string    `json:"tags"`
	Timezone     string      `json:"timezone"`
	Editable     bool        `json:"editable"`
	GraphTooltip int         `json:"graphTooltip"` // 1: the crosshair is in all panels
	Time         timeRange   `json:"time"`
	Refresh      string      `json:"refresh"`
	Links        []link      `json:"links"`
	Templating   variables   `json:"templating"`
	Annotations  annotations `json:"annotations"`
	Panels       []panel     `json:"panels"`
}

type timeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// link links a board to the boards with its tags, or a panel to a URL.
type link struct {
	Title       string   `json:"title"`
	Type        string   `json:"type"` // link or dashboards
	Icon        string   `json:"icon"`
	Tooltip     string   `json:"tooltip"`
	URL         string   `json:"url"`
	Tags        []string `json:"tags"`
	AsDropdown  bool     `json:"asDropdown"`
	TargetBlank bool     `json:"targetBlank"`
	IncludeVars bool     `json:"includeVars"`
	KeepTime    bool     `json:"keepTime"`
}

type variables struct {
	List []variable `json:"list"`
}

// variable is a choice of the viewer: a data source, or values of a label.
type variable struct {
	Type       string      `json:"type"` // datasource or query
	Name       string      `json:"name"`
	Label      string      `json:"label"`
	Query      any         `json:"query"`
	Definition string      `json:"definition,omitempty"`
	Datasource *datasource `json:"datasource,omitempty"`
	Refresh    int         `json:"refresh"` // 1: when the board is opened, 2: when its time changes
	Sort       int         `json:"sort"`
	Multi      bool        `json:"multi"`
	IncludeAll bool        `json:"includeAll"`
	AllValue   string      `json:"allValue,omitempty"`
	Current    any         `json:"current,omitempty"`
}

type labelQuery struct {
	Query string `json:"query"`
	RefID string `json:"refId"`
}

type choice struct {
	Selected bool   `json:"selected"`
	Text     string `json:"text"`
	Value    string `json:"value"`
}

type annotations struct {
	List []struct{} `json:"list"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// prometheus is the data source that the viewer chooses.
var prometheus = &datasource{Type: "prometheus", UID: "${datasource}"}

// panel is a chart, a figure, or the title of a row.
type panel struct {
	ID          int          `json:"id"`
	Type        string       `json:"type"` // timeseries, stat or row
	Title       string       `json:"title"`
	Description string       `json:"description,omitempty"`
	GridPos     gridPos      `json:"gridPos"`
	Collapsed   *bool        `json:"collapsed,omitempty"` // of a row
	Panels      *[]panel     `json:"panels,omitempty"`    // of a collapsed row
	Datasource  *datasource  `json:"datasource,omitempty"`
	Targets     []target     `json:"targets,omitempty"`
	Links       []link       `json:"links,omitempty"`
	FieldConfig *fieldConfig `json:"fieldConfig,omitempty"`
	Options     any          `json:"options,omitempty"`

	alert string // the alert whose threshold the panel shows
}

type gridPos struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

type target struct {
	RefID        string      `json:"refId"`
	Datasource   *datasource `json:"datasource"`
	EditorMode   string      `json:"editorMode"`
	Expr         string      `json:"expr"`
	LegendFormat string      `json:"legendFormat"`
	Range        bool        `json:"range"`
}

type fieldConfig struct {
	Defaults  fields     `json:"defaults"`
	Overrides []struct{} `json:"overrides"`
}

type fields struct {
	Unit       string     `json:"unit"`
	Min        *float64   `json:"min,omitempty"`
	Decimals   *int       `json:"decimals,omitempty"`
	Color      color      `json:"color"`
	Thresholds thresholds `json:"thresholds"`
	Custom     *curves    `json:"custom,omitempty"`
}

type color struct {
	Mode string `json:"mode"`
}

type thresholds struct {
	Mode  string `json:"mode"`
	Steps []step `json:"steps"`
}

// step is a color from a value on; the first step has no value.
type step struct {
	Color string   `json:"color"`
	Value *float64 `json:"value"`
}

type curves struct {
	DrawStyle       string         `json:"drawStyle"`
	LineWidth       int            `json:"lineWidth"`
	FillOpacity     int            `json:"fillOpacity"`
	ShowPoints      string         `json:"showPoints"`
	ThresholdsStyle thresholdStyle `json:"thresholdsStyle"`
}

type thresholdStyle struct {
	Mode string `json:"mode"` // off or line
}

type statOptions struct {
	ColorMode     string        `json:"colorMode"`
	GraphMode     string        `json:"graphMode"`
	JustifyMode   string        `json:"justifyMode"`
	Orientation   string        `json:"orientation"`
	TextMode      string        `json:"textMode"`
	ReduceOptions reduceOptions `json:"reduceOptions"`

	WideLayout             bool   `json:"wideLayout"`
	ShowPercentChange      bool   `json:"showPercentChange"`
	PercentChangeColorMode string `json:"percentChangeColorMode"`
}

type reduceOptions struct {
	Calcs  []string `json:"calcs"`
	Fields string   `json:"fields"`
	Values bool     `json:"values"`
}

type seriesOptions struct {
	Legend  legendOptions  `json:"legend"`
	Tooltip tooltipOptions `json:"tooltip"`
}

type legendOptions struct {
	ShowLegend  bool     `json:"showLegend"`
	DisplayMode string   `json:"displayMode"`
	Placement   string   `json:"placement"`
	Calcs       []string `json:"calcs"`
}

type tooltipOptions struct {
	Mode string `json:"mode"`
	Sort string `json:"sort"`
}

// newBoard returns a board of the rows. Panels are numbered in their order, so that links to them stay valid.
func newBoard(uid, title, description string, labels []variable, rows ...[]panel) *board {
	b := &board{
		UID: uid, Title: title, Description: description, SchemaVersion: schemaVersion, Version: 1,
		Tags: []string{"posthaste"}, Timezone: "browser", Editable: true, GraphTooltip: 1,
		Time: timeRange{From: "now-3h", To: "now"}, Refresh: "30s",
		Links: []link{{
			Title: "Boards", Type: "dashboards", Icon: "external link", Tags: []string{"posthaste"}, KeepTime: true,
			IncludeVars: true,
		}},
		Annotations: annotations{List: []struct{}{}},
	}
	b.Templating.List = append([]variable{{
		Type: "datasource", Name: "datasource", Label: "Data source", Query: "prometheus", Refresh: 1,
	}}, labels...)
	y := 0
	for _, row := range rows {
		x, height := 0, 0
		for _, p := range row {
			p.ID = len(b.Panels) + 1
			if x+p.GridPos.W > 24 {
				x, y = 0, y+height
			}
			p.GridPos.X, p.GridPos.Y = x, y
			x, height = x+p.GridPos.W, p.GridPos.H
			b.Panels = append(b.Panels, p)
		}
		y += height
	}
	return b
}

// labelVariable lets the viewer choose values of a label; initially all are chosen.
func labelVariable(name, label, metric, of string) variable {
	query := "label_values(" + metric + ", " + of + ")"
	return variable{
		Type: "query", Name: name, Label: label, Query: labelQuery{Query: query, RefID: "labels"}, Definition: query,
		Datasource: prometheus,
		Refresh:    2, Sort: 1, Multi: true, IncludeAll: true, AllValue: ".*",
		Current: choice{Selected: true, Text: "All", Value: "$__all"},
	}
}

// row begins a row with its title.
func row(title string, panels ...panel) []panel {
	return append([]panel{{
		Type: "row", Title: title, GridPos: gridPos{H: 1, W: 24}, Collapsed: new(bool), Panels: &[]panel{},
	}}, panels...)
}

// chart draws expressions over time. Each is LEGEND: EXPRESSION.
func chart(title, unit string, expressions ...string) panel {
	p := newPanel("timeseries", title, unit, gridPos{H: 8, W: 8}, expressions)
	p.FieldConfig.Defaults.Min = new(float64)
	p.FieldConfig.Defaults.Color.Mode = "palette-classic"
	p.FieldConfig.Defaults.Custom = &curves{
		DrawStyle: "line", LineWidth: 1, FillOpacity: 10, ShowPoints: "never",
		ThresholdsStyle: thresholdStyle{Mode: "off"},
	}
	p.Options = seriesOptions{
		Legend:  legendOptions{ShowLegend: true, DisplayMode: "list", Placement: "bottom", Calcs: []string{}},
		Tooltip: tooltipOptions{Mode: "multi", Sort: "desc"},
	}
	return p
}

// figure shows the latest value of an expression.
func figure(title, unit, expression string) panel {
	p := newPanel("stat", title, unit, gridPos{H: 4, W: 4}, []string{": " + expression})
	p.FieldConfig.Defaults.Color.Mode = "thresholds"
	p.Options = statOptions{
		ColorMode: "value", GraphMode: "area", JustifyMode: "auto", Orientation: "auto", TextMode: "value",
		ReduceOptions: reduceOptions{Calcs: []string{"lastNotNull"}}, WideLayout: true,
		PercentChangeColorMode: "standard",
	}
	return p
}

func newPanel(kind, title, unit string, size gridPos, expressions []string) panel {
	p := panel{Type: kind, Title: title, GridPos: size, Datasource: prometheus, FieldConfig: &fieldConfig{
		Defaults:  fields{Unit: unit, Thresholds: thresholds{Mode: "absolute", Steps: []step{{Color: "green"}}}},
		Overrides: []struct{}{},
	}}
	for i, e := range expressions {
		legend, expr, _ := strings.Cut(e, ": ")
		p.Targets = append(p.Targets, target{
			RefID: string(rune('A' + i)), Datasource: prometheus, EditorMode: "code", Expr: expr, LegendFormat: legend,
			Range: true,
		})
	}
	return p
}

// says sets the description of the panel.
func (p panel) says(text string) panel {
	p.Description = text
	return p
}

// limited marks the value above which an alert fires, and links to its runbook.
func (p panel) limited(alert string, above float64) panel {
	return p.marked(alert, step{Color: "green"}, step{Color: "red", Value: &above})
}

// atLeast marks the value below which an alert fires, and links to its runbook, as limited does.
func (p panel) atLeast(alert string, value float64) panel {
	return p.marked(alert, step{Color: "red"}, step{Color: "green", Value: &value})
}

func (p panel) marked(alert string, steps ...step) panel {
	p.alert = alert
	p.FieldConfig.Defaults.Thresholds.Steps = steps
	if p.FieldConfig.Defaults.Custom != nil {
		p.FieldConfig.Defaults.Custom.ThresholdsStyle.Mode = "line"
	}
	p.Links = []link{{
		Title: "Runbook of " + alert, Type: "link", Icon: "external link", Tags: []string{}, TargetBlank: true,
		URL: "https://github.com/posthaste-dev/posthaste/blob/main/docs/operate/runbooks.md#" + strings.ToLower(alert),
	}}
	return p
}

func (b *board) json() ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(b)
	return out.Bytes(), err
}
