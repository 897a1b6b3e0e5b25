package main

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	_ "gonum.org/v1/plot/vg/vgimg" // registers png
	_ "gonum.org/v1/plot/vg/vgsvg" // registers svg
)

// A chart is a page of tiles, one for each metric of a job.
const (
	tilesAcross = 3
	tileWidth   = 8 * vg.Centimeter
	tileHeight  = 5 * vg.Centimeter
	barWidth    = 14 // points
)

// chartFormat is the format that a file's name asks for; empty for another one.
func chartFormat(name string) string {
	switch format := strings.TrimPrefix(strings.ToLower(filepath.Ext(name)), "."); format {
	case "svg", "png":
		return format
	}
	return ""
}

// WriteChart draws the medians of all metrics, with a bar's range from the worst
// to the best round, as SVG or PNG by the name's ending.
func (r Report) WriteChart(name string) (err error) {
	tiles, err := r.tiles()
	if err != nil || len(tiles) == 0 {
		return err
	}
	rows := (len(tiles) + tilesAcross - 1) / tilesAcross
	canvas, err := draw.NewFormattedCanvas(tileWidth*tilesAcross, tileHeight*vg.Length(rows), chartFormat(name))
	if err != nil {
		return fmt.Errorf("draw a chart: %w", err)
	}
	page := draw.New(canvas)
	page.SetColor(color.White)
	page.Fill(page.Rectangle.Path())
	layout := draw.Tiles{Cols: tilesAcross, Rows: rows, PadX: vg.Millimeter * 4, PadY: vg.Millimeter * 4, PadTop: vg.Millimeter * 2, PadBottom: vg.Millimeter * 2, PadLeft: vg.Millimeter * 2, PadRight: vg.Millimeter * 2}
	for i, tile := range tiles {
		tile.Draw(layout.At(page, i%tilesAcross, i/tilesAcross))
	}
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write the chart: %w", err)
	}
	_, err = canvas.WriteTo(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write the chart %s: %w", name, err)
	}
	return nil
}

// tiles makes one plot for each metric of each job that has values.
func (r Report) tiles() ([]*plot.Plot, error) {
	var tiles []*plot.Plot
	for i := 0; i < len(r.Results); {
		end := i + 1
		for end < len(r.Results) && r.Results[end].Job == r.Results[i].Job && r.Results[end].Metric == r.Results[i].Metric {
			end++
		}
		tile, err := tileOf(r.Results[i:end])
		if err != nil {
			return nil, err
		}
		if tile != nil {
			tiles = append(tiles, tile)
		}
		i = end
	}
	return tiles, nil
}

// tileOf draws one metric's results, a bar each; nil when none has a value.
func tileOf(results []Result) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = results[0].Job + ": " + results[0].Metric
	p.Title.TextStyle.Font.Size = vg.Points(9)
	p.Y.Label.Text = results[0].Unit
	p.Y.Min = 0
	p.Y.Label.TextStyle.Font.Size, p.Y.Tick.Label.Font.Size, p.X.Tick.Label.Font.Size = vg.Points(8), vg.Points(7), vg.Points(7)
	ranges := &barRanges{}
	var names []string
	for _, x := range results {
		if len(x.Values) == 0 {
			continue
		}
		bar, err := plotter.NewBarChart(plotter.Values{x.Median}, barWidth)
		if err != nil {
			return nil, fmt.Errorf("draw %s on %s: %w", x.Job, x.Target, err)
		}
		at := float64(len(names))
		bar.XMin, bar.Color, bar.LineStyle.Width = at, plotutil.Color(len(names)), 0
		p.Add(bar)
		ranges.XYs = append(ranges.XYs, plotter.XY{X: at, Y: x.Median})
		ranges.low, ranges.high = append(ranges.low, x.Median-x.Min), append(ranges.high, x.Max-x.Median)
		name := x.Target
		if x.NotDurable != "" {
			name += "*"
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, nil
	}
	whiskers, err := plotter.NewYErrorBars(ranges)
	if err != nil {
		return nil, fmt.Errorf("draw the ranges of %s: %w", results[0].Job, err)
	}
	p.Add(whiskers)
	p.NominalX(names...)
	if len(names) > 4 {
		p.X.Tick.Label.Rotation, p.X.Tick.Label.XAlign = math.Pi/6, draw.XRight
	}
	p.Y.Min = min(0, p.Y.Min)
	if p.Y.Max == p.Y.Min {
		p.Y.Max = p.Y.Min + 1 // an axis of no length can't be drawn
	}
	return p, nil
}

// barRanges are how far the rounds lie below and above the medians.
type barRanges struct {
	plotter.XYs
	low, high []float64
}

// YError implements plotter.YErrorer.
func (r *barRanges) YError(i int) (float64, float64) { return r.low[i], r.high[i] }
