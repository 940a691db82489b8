// Draws the charts of a page from its table, so that both say the same. Marks of deploys and acts come from the list
// below the charts. Everything is text: no HTML is made here.
// @ts-check

/** @type {any} */
const UPlot = Reflect.get(globalThis, "uPlot");
const zone = document.cookie.match(/(?:^|; )ph_zone=([^;]+)/)?.[1] || document.documentElement.dataset.zone || "UTC";
const clock = formatter({ hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = formatter({ day: "numeric", month: "short" });

/** formatter writes times in the viewer's zone. @param {Intl.DateTimeFormatOptions} o */
function formatter(o) {
	try {
		return new Intl.DateTimeFormat("en-GB", { timeZone: zone, ...o });
	} catch { // a zone that this browser does not know
		return new Intl.DateTimeFormat("en-GB", { timeZone: "UTC", ...o });
	}
}

/** @type {Element[]} */
let rows = [];
/** @type {number[]} */
let at = [];
let step = 60;
/** @type {{ at: number, li: HTMLElement, sign: HTMLElement }[]} */
let marks = [];

/** take reads the table and the list of marks. */
function take() {
	const table = /** @type {HTMLElement | null} */ (document.querySelector("table[data-points]"));
	rows = [...(table?.querySelectorAll("tbody tr") ?? [])];
	step = Number(table?.dataset.step ?? 60);
	at = rows.map((r) => Date.parse(/** @type {HTMLTimeElement} */ (r.querySelector("time")).dateTime) / 1000);
	marks = [...document.querySelectorAll(".marks [data-at]")].map((e) => {
		const li = /** @type {HTMLElement} */ (e);
		return { at: Number(li.dataset.at), li, sign: /** @type {HTMLElement} */ (li.querySelector(".mark")) };
	});
}

/** cells are those of a column. @param {string} name */
const cells = (name) => rows.map((r) => /** @type {HTMLElement} */ (r.querySelector(`[data-of="${name}"]`)));

/** drawMarks draws a line for each mark, behind the series. @param {any} u */
function drawMarks(u) {
	const { ctx, bbox } = u;
	ctx.save();
	ctx.lineWidth = devicePixelRatio;
	for (const m of marks) {
		if (m.at < u.scales.x.min || m.at > u.scales.x.max) continue;
		const x = Math.round(u.valToPos(m.at, "x", true)), r = 3.5 * devicePixelRatio;
		const deploy = m.li.classList.contains("is-deploy");
		ctx.strokeStyle = ctx.fillStyle = getComputedStyle(m.sign).color;
		ctx.setLineDash(deploy ? [] : [3 * devicePixelRatio, 3 * devicePixelRatio]);
		ctx.beginPath();
		ctx.moveTo(x, bbox.top);
		ctx.lineTo(x, bbox.top + bbox.height);
		ctx.stroke();
		ctx.beginPath();
		if (deploy) {
			ctx.moveTo(x - r, bbox.top);
			ctx.lineTo(x + r, bbox.top);
			ctx.lineTo(x, bbox.top + 1.6 * r);
		} else ctx.arc(x, bbox.top + r, r, 0, 2 * Math.PI);
		ctx.fill();
	}
	ctx.restore();
}

/** short is a number of an axis. @param {number} n */
const short = (n) => new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: n < 10 ? 2 : 1 }).format(n);

/** long is a time of an axis, in seconds. @param {number} s */
function long(s) {
	if (s === 0) return "0";
	if (s < 1) return `${short(s * 1000)} ms`;
	if (s < 120) return `${short(s)} s`;
	return s < 7200 ? `${short(s / 60)} min` : `${short(s / 3600)} h`;
}

/** times are the labels of the axis below: the day where it changes, else the clock. @param {any} _ @param {number[]} splits @param {number} __ @param {number} ___ @param {number} apart */
function times(_, splits, __, ___, apart) {
	let before = "";
	return splits.map((s) => {
		const today = day.format(s * 1000), changed = today !== before && before !== "";
		before = today;
		return apart >= 86400 || changed ? today : clock.format(s * 1000);
	});
}

/** draw draws a chart, and returns what takes it away. @param {Element} figure */
function draw(figure) {
	const area = /** @type {HTMLElement} */ (figure.querySelector(".plot-area"));
	const legend = /** @type {HTMLElement[]} */ ([...figure.querySelectorAll("[data-series]")]);
	const columns = legend.map((li) => cells(li.dataset.series ?? ""));
	const latest = legend.map((li) => li.querySelector("b")?.textContent ?? "");
	const soft = getComputedStyle(area).color, line = getComputedStyle(area).borderTopColor;
	const lasts = legend.some((li) => li.dataset.series === "median");
	const width = () => Math.max(200, area.clientWidth);
	const u = new UPlot({
		width: width(), height: 150, padding: [10, 6, 0, 0], legend: { show: false }, cursor: { sync: { key: "charts" }, y: false, drag: { x: false, y: false }, points: { size: 7 } },
		tzDate: (/** @type {number} */ t) => UPlot.tzDate(new Date(t * 1000), zone),
		scales: { y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ most) => [0, most > 0 ? most * 1.08 : 1] } },
		axes: [
			{ stroke: soft, grid: { show: false }, ticks: { stroke: line, size: 4 }, values: times, space: 70, size: 26, font: "11px system-ui, sans-serif" },
			{ stroke: soft, grid: { stroke: line, width: 1 }, ticks: { show: false }, space: 30, size: lasts ? 58 : 44, font: "11px system-ui, sans-serif",
				values: (/** @type {any} */ _, /** @type {number[]} */ s) => s.map(lasts ? long : short) },
		],
		series: [{}, ...legend.map((li, i) => ({
			stroke: getComputedStyle(li).color, width: 1.5, dash: i ? [5, 3] : undefined,
			fill: i ? undefined : `color-mix(in srgb, ${getComputedStyle(li).color} 10%, transparent)`, points: { size: 4 },
		}))],
		hooks: {
			drawAxes: [drawMarks],
			setCursor: [(/** @type {any} */ u) => legend.forEach((li, i) => {
				const b = /** @type {HTMLElement} */ (li.querySelector("b"));
				b.textContent = u.cursor.idx == null ? latest[i] : columns[i][u.cursor.idx].textContent;
			}), (/** @type {any} */ u) => point(u.cursor.idx)],
		},
	}, [at, ...columns.map((c) => c.map((td) => td.dataset.v === undefined ? null : Number(td.dataset.v)))], area);
	u.root.dataset.added = ""; // by a script: live.js leaves it where it is
	const watch = new ResizeObserver(() => u.setSize({ width: width(), height: 150 }));
	watch.observe(area);
	return () => { watch.disconnect(); u.destroy(); };
}

/** point says what time the cursor is at, and which marks are near. @param {number | null | undefined} i */
function point(i) {
	const title = document.getElementById("charts");
	if (!title) return;
	title.dataset.range ??= title.textContent ?? "";
	title.textContent = i == null ? title.dataset.range : `${day.format(at[i] * 1000)} ${clock.format(at[i] * 1000)} to ${clock.format((at[i] + step) * 1000)}`;
	for (const m of marks) m.li.classList.toggle("near", i != null && m.at >= at[i] - step && m.at < at[i] + 2 * step);
}

/** @type {(() => void)[]} */
let drawn = [];
function drawAll() {
	for (const remove of drawn) remove();
	take();
	drawn = rows.length ? [...document.querySelectorAll(".plot")].map(draw) : [];
}
const section = document.querySelector(".charts");
if (UPlot && section) {
	drawAll();
	for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) matchMedia(query).addEventListener("change", drawAll);
	// live.js puts into the table what is new.
	let soon = 0;
	const news = (/** @type {MutationRecord} */ m) => m.target === section || m.target instanceof Element && m.target.closest(".data,.marks") && m.attributeName !== "class";
	new MutationObserver((all) => {
		if (soon || !all.some(news)) return;
		soon = requestAnimationFrame(() => { soon = 0; drawAll(); });
	}).observe(section, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-v", "data-at", "datetime"] });
}
