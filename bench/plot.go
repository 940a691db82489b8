package main

import (
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

var (
	oursColor  = color.RGBA{R: 0x1f, G: 0x6f, B: 0xb4, A: 0xff}
	floorColor = color.RGBA{R: 0xe2, G: 0xe2, B: 0xe2, A: 0xff}
	peerColor  = color.RGBA{R: 0x9a, G: 0xa5, B: 0xb1, A: 0xff}
	inkColor   = color.RGBA{R: 0x40, G: 0x40, B: 0x40, A: 0xff}
)

// plotSVG draws a bar for each system, the first at the top, with the spread over the rounds as a whisker and the
// median in figures.
func plotSVG(path, title, axis string, samples []sample) error {
	plot.DefaultFont.Variant = "Sans"
	p := plot.New()
	p.BackgroundColor = color.White // also on a dark page
	p.Title.Text, p.Title.Padding = title, vg.Points(6)
	p.X.Label.Text = axis
	p.X.Min = 0
	p.Y.LineStyle.Width, p.Y.Tick.Length = 0, 0

	samples = slices.Clone(samples)
	slices.Reverse(samples) // positions count from the bottom
	var systems []string
	spread := spread{}
	labels := plotter.XYLabels{}
	for i, s := range samples {
		systems = append(systems, "  "+s.system) // otherwise the longest touches the edge
		bar, err := plotter.NewBarChart(plotter.Values{s.median}, vg.Points(18))
		if err != nil {
			return err
		}
		bar.Horizontal, bar.XMin, bar.Color = true, float64(i), colorOf(s.system)
		bar.LineStyle.Width = 0
		p.Add(bar)
		spread.XYs = append(spread.XYs, plotter.XY{X: s.median, Y: float64(i)})
		spread.XErrors = append(spread.XErrors, struct{ Low, High float64 }{s.median - s.min, s.max - s.median})
		labels.XYs = append(labels.XYs, plotter.XY{X: s.max, Y: float64(i)})
		labels.Labels = append(labels.Labels, "  "+format(s.median))
	}
	whiskers, err := plotter.NewXErrorBars(spread)
	if err != nil {
		return err
	}
	whiskers.LineStyle.Color, whiskers.CapWidth = inkColor, vg.Points(6)
	figures, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	for i := range figures.TextStyle {
		figures.TextStyle[i] = draw.TextStyle{
			Color: inkColor, Font: p.X.Tick.Label.Font, Handler: plot.DefaultTextHandler, YAlign: draw.YCenter,
		}
	}
	p.Add(whiskers, figures)
	p.NominalY(systems...)
	p.Y.Min, p.Y.Max = -0.6, float64(len(samples))-0.4
	p.X.Max *= 1.15 // room for the figures
	return p.Save(7*vg.Inch, vg.Points(62+28*float64(len(samples))), path)
}

// spread holds the data of the whiskers.
type spread struct {
	plotter.XYs
	plotter.XErrors
}

func colorOf(system string) color.Color {
	switch system {
	case ours:
		return oursColor
	case floor:
		return floorColor
	default:
		return peerColor
	}
}

// format formats a number with three significant digits, and separates thousands.
func format(v float64) string {
	switch {
	case v >= 999.5:
		n := int64(v + 0.5)
		if n >= 10_000 {
			n = (n + 50) / 100 * 100
		}
		if n >= 1_000_000 {
			return fmt.Sprintf("%d %03d %03d", n/1_000_000, n/1000%1000, n%1000)
		}
		return fmt.Sprintf("%d %03d", n/1000, n%1000)
	case v >= 99.5:
		return fmt.Sprintf("%.0f", v)
	case v >= 9.95:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.0995 || v == 0:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}
