package browsertest

import (
	"strings"
	"testing"
)

const firstVisitWithCharts = 85 << 10 // bytes, as firstVisit

// The charts are drawn, with the minutes that nobody measured as a gap, in the viewer's zone, and say what the table
// says where the pointer is.
func TestCharts(t *testing.T) {
	c := newConsole(t)
	c.usualJobs()
	tab := c.signedIn(c.root)
	tab.visit(c.root + "now")
	tab.mu.Lock()
	bytes := tab.bytes
	tab.mu.Unlock()
	t.Logf("login and the first page with charts: %.1f KB over the network", bytes/1024)
	if bytes == 0 || bytes > firstVisitWithCharts {
		t.Errorf("the first visit with charts takes %.1f KB, want at most %d", bytes/1024, firstVisitWithCharts>>10)
	}
	for _, scheme := range []string{"light", "dark"} {
		tab.look(scheme, 1280, 1000)
		if status := tab.visit(c.root + "now"); status != 200 {
			t.Fatal(status)
		}
		// Of each column of pixels inside of a chart, whether one is of a series' colour; runs without are gaps.
		drawn := ask[string](tab, `[...document.querySelectorAll(".plot")].map((plot) => {
			const canvas = plot.querySelector("canvas"), ctx = canvas.getContext("2d"), over = plot.querySelector(".u-over").getBoundingClientRect();
			const own = canvas.getBoundingClientRect(), dpr = canvas.width / own.width;
			const x = Math.round((over.x - own.x) * dpr), y = Math.round((over.y - own.y) * dpr), w = Math.round(over.width * dpr), h = Math.round(over.height * dpr);
			const probe = new OffscreenCanvas(1, 1).getContext("2d");
			probe.fillStyle = getComputedStyle(plot.querySelector("[data-series]")).color;
			probe.fillRect(0, 0, 1, 1);
			const [r, g, b] = probe.getImageData(0, 0, 1, 1).data, pixels = ctx.getImageData(x, y, w, h).data;
			let gap = 0, most = 0, filled = 0;
			for (let i = 0; i < w; i++) {
				let has = false;
				for (let j = 0; j < h && !has; j++) {
					const at = 4 * (j * w + i);
					has = Math.abs(pixels[at] - r) + Math.abs(pixels[at + 1] - g) + Math.abs(pixels[at + 2] - b) < 24 && pixels[at + 3] > 200;
				}
				if (has) { filled++; gap = 0; } else most = Math.max(most, ++gap);
			}
			return filled > w / 2 && most > w / 9 && most < w / 4 ? "" : plot.textContent + ": of " + w + " columns " + filled + " are drawn, the largest gap is " + most;
		}).join("")`)
		if n := ask[int](tab, `document.querySelectorAll(".plot canvas").length`); drawn != "" || n != 4 {
			t.Errorf("%s: %d charts: %s", scheme, n, drawn)
		}
	}
	if got := ask[int](tab, `document.querySelectorAll(".marks .is-deploy").length`); got != 1 {
		t.Errorf("%d deploys are marked, want that of the last hour", got)
	}

	said := ask[string](tab, `(async () => {
		const over = document.querySelector(".plot .u-over"), title = document.getElementById("charts"), box = over.getBoundingClientRect();
		const move = (type) => over.dispatchEvent(new MouseEvent(type, { clientX: box.x + box.width * .9, clientY: box.y + box.height / 2, bubbles: true }));
		for (let i = 0; i < 100 && title.textContent.startsWith("The last"); i++) {
			move("mouseenter");
			move("mousemove");
			await new Promise((done) => setTimeout(done, 50));
		}
		return title.textContent + "|" + [...document.querySelectorAll(".plot li b")].map((b) => b.textContent).join(" ");
	})()`)
	when, values, _ := strings.Cut(said, "|")
	row := ask[string](tab, strings.ReplaceAll(`(() => {
		const clock = WHEN.match(/\d\d:\d\d/)[0];
		const row = [...document.querySelectorAll("[data-points] tbody tr")].find((r) => r.querySelector("time").textContent.startsWith(clock));
		return [...document.querySelectorAll(".plot li")].map((li) => row.querySelector("[data-of=" + li.dataset.series + "]").textContent).join(" ");
	})()`, "WHEN", "'"+when+"'"))
	if values != row || !strings.Contains(when, " to ") {
		t.Errorf("at %q the charts say %q, the table %q", when, values, row)
	}
	for _, fault := range quiet(tab) {
		t.Error(fault)
	}
}
