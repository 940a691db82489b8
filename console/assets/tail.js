// The page Live: changes of jobs as they come, the newest first. The list is made of parts of some hundred rows, of
// which the browser lays out those in view, so that ten thousand rows cost as little as two hundred. It stands still
// while a person points at it, has the focus or a selection in it, or has scrolled into it; what comes meanwhile waits
// behind a note.
// @ts-check
import { now } from "./app.js";
import { follow, sign } from "./live.js";

/** @typedef {import("./live-stream.js").Change} Change */
/** @typedef {{change?: Change, said?: string, at: number}} Entry a change, or a sentence in place of changes that are not here */

const keeps = 10_000; // rows; the oldest part goes when there would be more
const fill = 100; // rows of a part
const once = 100; // changes that are listed at once, of more the last ones; the server sends as many of a burst
const over = 10_000; // milliseconds over which the rate is counted

const root = document.documentElement, main = /** @type {HTMLElement} */ (document.getElementById("main"));
const list = /** @type {HTMLElement} */ (main.querySelector(".tail"));
const empty = list.querySelector(".empty");
const template = /** @type {HTMLTemplateElement} */ (document.getElementById("part"));
const filtered = list.dataset.match !== "{}";
const columns = /** @type {HTMLTableRowElement} */ (template.content.querySelector("tr")).cells.length;
const tenants = columns === 8, rootTenant = "00000000-0000-0000-0000-000000000001";
const clock = new Intl.DateTimeFormat("en-GB", { timeZone: root.dataset.zone, hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const mouse = matchMedia("(hover: hover)"); // elsewhere what was touched last counts as pointed at

/** @type {Entry[]} those that are not listed yet, the oldest first */
let waiting = [];
/** @type {[number, number, boolean?][]} when how many changes were heard of, within the time of the rate */
let counts = [];
/** @type {HTMLTableSectionElement | undefined} the rows of the newest part */
let body;
let begun = false, first = 0, heard = now(), listed = 0, drawing = false;

/** @param {string} name @param {string} className @param {string} text */
function element(name, className, text) {
	const e = document.createElement(name);
	if (className) e.className = className;
	e.textContent = text;
	return e;
}

/** linked is a link that looks like the text that it is. @param {string} className @param {string} text @param {string} href */
function linked(className, text, href) {
	const a = /** @type {HTMLAnchorElement} */ (element("a", className, text));
	a.href = href;
	return a;
}

/** narrower is this page with one condition more. @param {string} name @param {string} value */
function narrower(name, value) {
	const query = new URLSearchParams(location.search);
	query.set(name, value);
	return `live?${query}`;
}

const short = (/** @type {string} */ id) => `${id.slice(0, 8)}…${id.slice(-4)}`;
/** @type {Map<string, HTMLElement>} */
const signs = new Map();

/** rowOf is a change as a row of the list. @param {Entry} e */
function rowOf({ change: c, said, at }) {
	const tr = document.createElement("tr");
	if (!c) {
		const td = /** @type {HTMLTableCellElement} */ (element("td", "gap", said ?? ""));
		td.colSpan = columns;
		tr.append(td);
		return tr;
	}
	/** @param {string} th @param {string} className @param {...(Node | string)} content */
	const cell = (th, className, ...content) => {
		const td = element("td", className, "");
		td.dataset.th = th;
		td.append(...content);
		tr.append(td);
		return td;
	};
	tr.dataset.job = c.id;
	const time = /** @type {HTMLTimeElement} */ (element("time", "", clock.format(at)));
	time.dateTime = new Date(at).toISOString();
	if (!signs.has(c.status)) signs.set(c.status, sign(c.status));
	cell("Seen", "", time);
	cell("Status", "", /** @type {HTMLElement} */ (signs.get(c.status)).cloneNode(true));
	cell("ID", "", linked("id", short(c.id), `job?id=${c.id}`));
	cell("Kind", "", linked("quiet name", c.kind, narrower("kind", c.kind))).title = c.kind;
	cell("Queue", "", linked("quiet name", c.queue, narrower("queue", c.queue))).title = c.queue;
	if (c.tenant && c.tenant !== rootTenant) list.dataset.tenants = "";
	if (tenants) cell("Tenant", "tenant", element("span", "id", !c.tenant || c.tenant === rootTenant ? "root" : short(c.tenant))).title = c.tenant ?? "";
	cell("Attempt", "num", String(c.attempt));
	if (c.error) cell("Error", "", element("span", "error", c.error.code)).title = c.error.code;
	else cell("Error", "");
	return tr;
}

/** busy reports whether a person is busy with the list. */
function busy() {
	const selection = getSelection(), head = document.querySelector("header.top")?.getBoundingClientRect().bottom ?? 0;
	return mouse.matches && list.matches(":hover") || list.contains(document.activeElement) ||
		!!selection && !selection.isCollapsed && selection.containsNode(list, true) || list.getBoundingClientRect().top < head - 1;
}

/** draw puts what waits into the list, so much at a time that a browser has time for a person in between. */
export function draw() {
	const some = waiting.splice(0, 2 * once);
	for (let at = 0; at < some.length;) {
		if (!body || body.rows.length >= fill) {
			empty?.remove();
			list.prepend(document.importNode(template.content, true));
			body = /** @type {HTMLTableSectionElement} */ (list.querySelector("tbody"));
		}
		const rows = some.slice(at, at += fill - body.rows.length).map(rowOf);
		body.prepend(...rows.reverse());
		while (list.children.length > keeps / fill) list.lastElementChild?.remove();
	}
	listed += some.filter((e) => e.change).length;
	drawing = waiting.length > 0;
	if (drawing) requestAnimationFrame(draw);
	tell();
}

/** wait has entries listed soon. @param {Entry[]} entries */
function wait(entries) {
	first ||= entries[0]?.at ?? 0;
	waiting.push(...entries);
	if (waiting.length > keeps) waiting = waiting.slice(-keeps);
	if (!drawing && !busy()) draw();
	else tell();
}

/** take is what the stream says. @param {import("./live-stream.js").Message} m */
export function take(m) {
	const at = now(), changes = m.changes ?? [], some = changes.slice(-once);
	/** @type {Entry[]} */
	const entries = some.map((change) => ({ change, at }));
	const heardOf = m.burst ?? changes.length, left = heardOf - some.length; // of a burst, those of all jobs
	if (left > 0) entries.unshift({ said: `Too many changes at once: ${m.more ? "more than " : ""}${number(left)}${m.burst && filtered ? " of all jobs" : ""} are not listed`, at });
	else if (m.resync && begun) entries.unshift({ said: `Changes from ${clock.format(heard)} to ${clock.format(at)} may not be listed`, at });
	const unknown = m.resync && begun && !m.burst; // how many were left out
	if (m.state === "live") begun = true;
	if (heardOf || unknown) counts.push([at, filtered ? changes.length : heardOf, m.more || unknown]);
	if (m.state !== "lost" && m.state !== "refused") heard = at;
	if (entries.length) wait(entries);
}

const number = (/** @type {number} */ n) => String(n).replace(/\B(?=(\d{3})+$)/g, "\u202f");

// What is above the list: how fast changes come, and what waits.
const rate = element("p", "soft rate", ""), note = element("p", "fresh", ""), show = /** @type {HTMLButtonElement} */ (element("button", "button primary", ""));
rate.dataset.added = note.dataset.added = "";
show.type = "button";
note.hidden = true;
note.append(show);
show.addEventListener("click", () => {
	if (list.contains(document.activeElement)) /** @type {HTMLElement} */ (document.activeElement).blur();
	getSelection()?.removeAllRanges();
	scrollTo({ top: 0 });
	draw();
});

function tell() {
	const n = drawing ? 0 : waiting.filter((e) => e.change).length;
	note.hidden = !n;
	if (n) show.textContent = `${n >= keeps ? number(keeps) + "+" : number(n)} new · show`;
}

/** tellRate says how fast changes come, once a second. */
function tellRate() {
	const at = now();
	counts = counts.filter(([then]) => at - then < over);
	if (!first || document.querySelector(".live")?.getAttribute("data-state") !== "on") return;
	const each = counts.reduce((sum, [, n]) => sum + n, 0) / Math.min(over, Math.max(1000, at - first)) * 1000;
	const more = counts.some(([, , more]) => more) ? "more than " : "";
	const text = `${more}${each >= 10 || each === 0 ? number(Math.round(each)) : each.toFixed(1)} a second · ${number(listed)} listed since ${clock.format(first)}` + (listed > keeps ? `, the newest ${number(keeps)} are kept` : "");
	if (rate.textContent !== text) rate.textContent = text;
}

list.before(rate, note);
setInterval(() => { if (waiting.length && !drawing && !busy()) draw(); }, 250);
setInterval(tellRate, 1000);
follow(take);
