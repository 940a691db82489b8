// The keys, and the window that lists them. They never act while a person types, and a setting switches those off that
// stand alone; the button for the window is there all the same.
// @ts-check
import { copy } from "./app.js";
import { pause } from "./live.js";
import { selectAll, selectRow } from "./select.js";

const off = document.documentElement.dataset.keys === "off";
const patience = 1500; // milliseconds for the second key of a sequence

/** Pages by the second key of g. @type {Record<string, [path: string, name: string]>} */
const pages = {
	p: ["problems", "Problems"], n: ["now", "Now"], j: ["jobs", "Jobs"], l: ["live", "Live"], d: ["letters", "Dead letters"], q: ["queues", "Queues"], i: ["kinds", "Kinds"],
	k: ["keys", "Keys"], s: ["schedules", "Schedules"], w: ["workers", "Workers"], x: ["sinks", "Sinks"], o: ["operations", "Operations"], a: ["audit", "Audit"],
	y: ["system", "System"],
};

/** link is a link of the page to a page of ours. @param {string} path @returns {HTMLAnchorElement | null} */
const link = (path) => document.querySelector(`nav[aria-label=Pages] a[href="${path}"]`);

/** follow clicks on something, if it is there. @param {string} selector */
function follow(selector) {
	const e = /** @type {HTMLElement | null} */ (document.querySelector(selector));
	e?.click();
	return !!e;
}

/** entries are the rows of the page that lead somewhere, by their first links. */
const entries = () => [...document.querySelectorAll("main tbody tr, main .problem")].map((row) => /** @type {HTMLAnchorElement | null} */ (row.querySelector("a[href]")))
	.filter((a) => a !== null).filter((a) => a.checkVisibility());

/** step moves the focus to another row. @param {number} by */
function step(by) {
	const all = entries(), here = all.findIndex((a) => a.closest("tr,.problem")?.contains(document.activeElement));
	const to = all[here < 0 ? (by > 0 ? 0 : all.length - 1) : here + by];
	to?.focus();
	to?.closest("tr,.problem")?.scrollIntoView({ block: "nearest" });
	return !!to;
}

/** act asks for an act on the job of the page, or of the row that has the focus. It only leads to the question.
 * @param {string} path */
function act(path) {
	if (follow(`main a[href^="${path}?"]`)) return true;
	const id = /** @type {HTMLElement | null | undefined} */ (document.activeElement?.closest("tr[data-job]"))?.dataset.job;
	if (id) location.href = `${path}?id=${id}`;
	return !!id;
}

/** next presses the button behind the one that is on, of a setting. @param {string} name */
function next(name) {
	const all = /** @type {HTMLButtonElement[]} */ ([...document.querySelectorAll(`.menu button[name=${name}]`)]);
	const at = all.findIndex((b) => b.getAttribute("aria-pressed") === "true");
	all[(at + 1) % all.length]?.click();
	return all.length > 1;
}

/** say tells of something for a moment. @param {string} text */
function say(text) {
	const p = document.createElement("p");
	p.className = "note is-info said";
	p.setAttribute("role", "status");
	document.body.append(p);
	p.textContent = text;
	setTimeout(() => p.remove(), 2500);
}

/** copyLink copies the address of this page, without what reveals: who opens it decides that. */
function copyLink() {
	const address = new URL(location.href);
	address.searchParams.delete("reveal");
	navigator.clipboard?.writeText(address.href)
		.then(() => say("The link is copied."), () => say(address.href)) ?? say(address.href);
	return true;
}

/** copyCommand copies the first command of the page. */
function copyCommand() {
	const e = /** @type {HTMLElement | null} */ (document.querySelector("main .command [data-copy]"));
	if (e) void copy(e).then((done) => say(done ? "The command is copied." : "The command is selected: press Ctrl+C."));
	return !!e;
}

/** What each key does, and what the window says of it. @type {[key: string, what: string, does: () => boolean][]} */
const keys = [
	["/", "find a job, or jobs by a filter", () => {
		const field = /** @type {HTMLInputElement | null} */ (document.querySelector("main [type=search]") ?? document.querySelector("[data-key='/']"));
		field?.focus();
		field?.select();
		return !!field;
	}],
	["j", "next row", () => step(1)],
	["k", "row before", () => step(-1)],
	["o", "open the row, as Enter does", () => {
		const a = document.activeElement?.closest("tr,.problem")?.querySelector("a[href]");
		if (a instanceof HTMLElement) a.click();
		return a instanceof HTMLElement;
	}],
	["x", "select the row, or no longer", () => selectRow(false)],
	["X", "select all from the one before to the row", () => selectRow(true)],
	["*", "select all that are shown, or none", () => selectAll()],
	["]", "older", () => follow("main a[rel=next]")],
	["[", "newest", () => follow("main .pager a.button:not([rel=next])")],
	["r", "run the job again: asks first", () => act("job-retry")],
	["c", "cancel the job: asks first", () => act("job-cancel")],
	["D", "dismiss the job: asks first", () => act("job-dismiss")],
	[".", "pause updates, or go on", () => { pause(); return true; }],
	["t", "next theme", () => next("theme")],
	["z", "next time zone", () => next("zone")],
	["y", "copy the link to this page", copyLink],
	["Y", "copy the command", copyCommand],
	["?", "this list", () => { help(); return true; }],
];

/** help shows which keys there are. */
function help() {
	const dialog = document.createElement("dialog"), title = document.createElement("h2");
	dialog.className = "keys";
	dialog.setAttribute("aria-labelledby", "keys-title");
	title.id = "keys-title";
	title.textContent = "Keys";
	const lists = document.createElement("div");
	lists.className = "columns";
	/** @param {[string[], string][]} rows */
	const list = (rows) => {
		const dl = document.createElement("dl");
		for (const [strokes, what] of rows) {
			const row = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
			strokes.forEach((s) => { const kbd = document.createElement("kbd"); kbd.textContent = s; dt.append(kbd, " "); });
			dd.textContent = what;
			row.append(dt, dd);
			dl.append(row);
		}
		lists.append(dl);
	};
	list(keys.map(([key, what]) => [[key], what]));
	list(Object.entries(pages).filter(([, [path]]) => link(path)).map(([key, [, name]]) => [["g", key], name]));
	const settings = document.createElement("p"), to = document.createElement("a"), close = document.createElement("button");
	settings.className = "soft";
	to.href = "me";
	to.textContent = "Settings";
	settings.append(off ? "They are switched off in your " : "They do nothing while you type. To switch them off, go to your ", to, ".");
	close.className = "button";
	close.type = "button";
	close.textContent = "Close";
	close.autofocus = true;
	close.addEventListener("click", () => dialog.close());
	dialog.addEventListener("click", (e) => { if (e.target === dialog) dialog.close(); });
	dialog.addEventListener("close", () => dialog.remove());
	dialog.append(title, lists, settings, close);
	document.body.append(dialog);
	dialog.showModal(); // which gives the focus back when it closes
}

let sequence = 0; // until when a page's key may follow g
document.addEventListener("keydown", (e) => {
	const from = /** @type {HTMLElement} */ (e.target);
	if (off || e.ctrlKey || e.metaKey || e.altKey || e.isComposing || e.defaultPrevented || document.querySelector("dialog[open]")) return;
	if (from.closest("input,textarea,select,[contenteditable]")) return;
	const page = performance.now() < sequence ? pages[e.key] : undefined;
	sequence = 0;
	if (page) {
		const to = link(page[0]);
		if (to) { e.preventDefault(); to.click(); }
	} else if (e.key === "g") sequence = performance.now() + patience;
	else if (keys.find(([key]) => key === e.key)?.[2]()) e.preventDefault();
});

const button = document.createElement("button");
button.type = "button";
button.className = "plain";
button.textContent = off ? "Keys" : "Keys ?";
button.addEventListener("click", help);
const foot = document.createElement("span");
foot.append(button);
if (document.querySelector("nav[aria-label=Pages]")) document.querySelector("footer")?.prepend(foot);
