// How a page keeps up. Rows of jobs change in place, as the stream of changes says, and never move; new jobs wait
// behind a note. Other pages are read again, and what has changed of them is put in. What a person types in, or has
// selected, stays as it is. Without a stream pages are read again every ten seconds; and paused they ask for nothing.
// @ts-check
import { age, copyable, count, now, setClock } from "./app.js";
import { Stream } from "./live-stream.js";

const root = document.documentElement, main = /** @type {HTMLElement} */ (document.getElementById("main"));
const rows = "rows" in main.dataset, change = Number(main.dataset.change ?? 0) * 1000, every = Number(main.dataset.every ?? 0) * 1000;
const poll = 10_000; // between two readings, without a stream
const burst = 5_000; // between two readings, while more changes than the stream carries
const rest = 2_000; // between two readings of rows
const deaf = 36; // ticks without a word of the worker, which says something every 5 s
const dull = 60_000; // a page that nobody sees for so long leaves the stream
const here = location.href;
const tail = "tail" in main.dataset; // tail.js has what is heard
const live = rows || tail || change > 0 || every > 0;

/** The shapes of statuses; parts.go has them, too. @type {Record<string, string>} */
const shapes = {
	created: "M4 2.5v7M8 2.5v7",
	pending: "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9M6 3.5V6l1.8 1.2",
	blocked: "M2.5 5.5h7v5h-7zM4 5.5V4a2 2 0 0 1 4 0v1.5",
	running: "M3 1.5v9l7-4.5z",
	retrying: "M10 6a4 4 0 1 1-1.2-2.9M10 1v2.6H7.4",
	failed: "M2.5 2.5l7 7M9.5 2.5l-7 7",
	dead: "M3.8 1h4.4L11 3.8v4.4L8.2 11H3.8L1 8.2V3.8z",
	succeeded: "M1.5 6.5l3 3 6-7",
	cancelled: "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9M2.9 9.1l6.2-6.2",
	expired: "M3 1.5h6M3 10.5h6M3.5 1.5c0 2.5 5 6.5 5 9M8.5 1.5c0 2.5-5 6.5-5 9",
	skipped: "M1.5 2.5L5 6 1.5 9.5M6.5 2.5L10 6 6.5 9.5",
	stale: "M1 4.5c1.7-2 3.3 2 5 0s3.3 2 5 0M1 8.5c1.7-2 3.3 2 5 0s3.3 2 5 0",
	dismissed: "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9M3.8 6h4.4",
};
const solid = ["running", "dead"];
const closed = ["succeeded", "cancelled", "expired", "skipped", "stale", "dismissed"];

// Pages are parsed into documents that run nothing, and come from this console alone; the worker is a file of ours.
const policy = /** @type {any} */ (globalThis).trustedTypes?.createPolicy("posthaste", {
	createHTML: (/** @type {string} */ html) => html,
	createScriptURL: (/** @type {string} */ url) => {
		if (url !== workerURL) throw new TypeError("not a file of ours");
		return url;
	},
}) ?? { createHTML: (/** @type {string} */ html) => html, createScriptURL: (/** @type {string} */ url) => url };
const workerURL = new URL("live-worker.js", import.meta.url).href;

/** read reads a page of ours; null if it cannot be had now. @param {string} url */
async function read(url) {
	const answer = await fetch(url, { headers: { Accept: "text/html" }, cache: "no-store", signal: AbortSignal.timeout(20_000) });
	if (answer.status === 401 || new URL(answer.url).pathname.endsWith("/login")) { become("ended"); return null; }
	if (!answer.ok) return null;
	return new DOMParser().parseFromString(policy.createHTML(await answer.text()), "text/html");
}

/** selected reports whether a person has selected some of a part of the page. @param {Node} part */
function selected(part) {
	const selection = getSelection();
	return !!selection && !selection.isCollapsed && selection.containsNode(part, true);
}

/** typing reports whether a person has the focus in a field of a part of the page. @param {Node} part */
function typing(part) {
	const focus = document.activeElement;
	return !!focus?.matches("input,select,textarea") && part.contains(focus);
}

/** takeAway removes what is no longer on the page; if the focus was in it, that goes to its list. @param {Node} n */
function takeAway(n) {
	const list = n.parentElement, focused = n.contains(document.activeElement);
	n.parentNode?.removeChild(n);
	if (!focused) return;
	const to = /** @type {HTMLElement} */ (list?.closest("ol,tbody,main") ?? main);
	to.tabIndex = -1;
	to.focus({ preventScroll: true });
}

// What was left as it is because a person had selected it, which is read again soon, or was typing in it.
let kept = false, typed = false;

/** @param {Node} n */
const key = (n) => n instanceof Element ? n.getAttribute("data-job") ?? n.id : "";
/** Parts that scripts have added. @param {Node} n */
const added = (n) => n instanceof Element && n.matches("[data-added],.copy");

/** morph makes a part of the page what it should be, and leaves alone what is that already. @param {Node} from @param {Node} to */
function morph(from, to) {
	if (from instanceof Text && to instanceof Text) {
		if (from.data === to.data) return;
		if (selected(from)) kept = true;
		else from.data = to.data;
		return;
	}
	if (!(from instanceof Element && to instanceof Element)) return;
	if (from.matches("input,select,textarea,script")) return; // a person's, or it has run
	for (const { name, value } of to.attributes) {
		if (name !== "open" && from.getAttribute(name) !== value) from.setAttribute(name, value);
	}
	for (const { name } of [...from.attributes]) {
		if (!to.hasAttribute(name) && !["open", "data-copies", "aria-selected", "tabindex"].includes(name)) from.removeAttribute(name);
	}
	const old = [...from.childNodes].filter((n) => !added(n)), next = [...to.childNodes];
	const keyed = new Map(old.filter(key).map((n) => [key(n), n]));
	const wanted = new Set(next.map(key).filter(Boolean));
	const free = old.filter((n) => !key(n));
	/** @type {Node | null} */
	let at = from.firstChild;
	for (const n of next) {
		const same = key(n) ? keyed.get(key(n)) : free[0]?.nodeName === n.nodeName ? free.shift() : undefined;
		while (at && (added(at) || key(at) && !wanted.has(key(at)))) at = at.nextSibling;
		if (!same) {
			from.insertBefore(document.importNode(n, true), at);
			continue;
		}
		keyed.delete(key(same));
		if (same === at) at = at.nextSibling;
		else from.insertBefore(same, at);
		morph(same, n);
	}
	for (const n of [...free, ...keyed.values()]) {
		if (!selected(n) && !typing(n)) takeAway(n);
		else if (selected(n)) kept = true;
		else typed = true;
	}
}

/** sign is a status as word, shape and colour, as parts.templ writes it. @param {string} status */
export function sign(status) {
	const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS(svg.namespaceURI, "path");
	svg.setAttribute("class", solid.includes(status) ? "i solid" : "i");
	svg.setAttribute("viewBox", "0 0 12 12");
	svg.setAttribute("aria-hidden", "true");
	path.setAttribute("d", shapes[status] ?? "");
	svg.append(path);
	const span = document.createElement("span");
	span.className = `status is-${status}`;
	span.append(svg, ` ${status}`);
	return span;
}

/** since is a time that goes on counting. @param {"age" | "ago"} way @param {number} t */
function since(way, t) {
	const e = document.createElement("time");
	e.dateTime = new Date(t).toISOString();
	e.dataset[way] = "";
	e.textContent = age(now() - t) + (way === "ago" ? " ago" : "");
	return e;
}

/** @type {Map<string, HTMLElement>} the rows of jobs by id */
const shown = new Map();
/** @type {Map<string, number>} jobs whose rows the stream has changed, and when */
const stale = new Map();

/** patch puts what the stream says of a job into its row; the server is asked for the rest. An older state never
 * overwrites a newer one: a later epoch is a later state, and those of one epoch come in their order.
 * @param {HTMLElement} row @param {import("./live-stream.js").Change} c */
export function patch(row, c) {
	if (c.epoch < Number(row.dataset.epoch)) return;
	if (selected(row)) {
		stale.set(c.id, performance.now());
		return;
	}
	row.dataset.epoch = String(c.epoch);
	/** @param {string} th @param {...(Node | string)} content */
	const put = (th, ...content) => row.querySelector(`:scope > [data-th="${th}"]`)?.replaceChildren(...content);
	put("Status", sign(c.status));
	for (const th of ["Attempt", "Attempts"]) {
		const text = row.querySelector(`:scope > [data-th="${th}"]`)?.firstChild;
		if (text instanceof Text) text.data = String(c.attempt);
	}
	if (c.status === "running") put("Run or due", since("age", now()));
	else if (c.finishedAt) put("Run or due", since("ago", Date.parse(c.finishedAt)));
	else put("Run or due");
	if (c.error) {
		const text = document.createElement("span");
		text.className = "error";
		text.textContent = c.error.code;
		put("Error", text);
	}
	stale.set(c.id, performance.now());
}

/** fresh are jobs that belong to the list and are not on it. @type {Set<string>} */
const fresh = new Set();
const list = /** @type {HTMLElement | null} */ (main.querySelector("[data-match]"));
const match = list?.dataset.match ? JSON.parse(list.dataset.match) : undefined;

/** look looks which rows there are. */
function look() {
	shown.clear();
	for (const row of /** @type {NodeListOf<HTMLElement>} */ (main.querySelectorAll("tr[data-job]"))) shown.set(row.dataset.job ?? "", row);
	const subject = /** @type {HTMLElement | null} */ (main.querySelector("[data-subject]"));
	if (subject) shown.set(subject.dataset.subject ?? "", subject);
}

/** belongs reports whether a job that matches would be on this part of the list: the last row has more behind it.
 * @param {string} id */
function belongs(id) {
	const last = [...shown.keys()].at(-1);
	return !list || !("more" in list.dataset) || !last || id > last;
}

// The note of new jobs.
const note = document.createElement("p");
note.className = "fresh";
note.dataset.added = "";
note.hidden = true;
const more = document.createElement("a");
more.className = "button primary";
more.href = here;
note.append(more);
const spoken = document.createElement("p");
spoken.className = "hide";
spoken.dataset.added = "";
spoken.setAttribute("role", "status");
let spokenAt = -Infinity;

function tellFresh() {
	note.hidden = !fresh.size;
	if (!fresh.size) return;
	const text = `${fresh.size > 999 ? "999+" : fresh.size} new`;
	more.textContent = `${text} · show`;
	if (performance.now() - spokenAt > poll) {
		spokenAt = performance.now();
		spoken.textContent = text;
	}
}

/** reread reads the page again, and puts in what has changed. */
async function reread() {
	const began = performance.now(), page = await read(location.href);
	const next = page?.getElementById("main");
	if (!next) return false;
	if (paused) return true;
	setClock(page?.documentElement.dataset.now);
	const time = badge?.querySelector("time");
	if (time) time.dateTime = page?.documentElement.dataset.now ?? "";
	const nav = "nav[aria-label=Pages]", old = document.querySelector(nav), renewed = page?.querySelector(nav);
	if (old && renewed) morph(old, renewed);
	if (rows) {
		const there = new Set();
		for (const row of /** @type {NodeListOf<HTMLElement>} */ (next.querySelectorAll("tr[data-job]"))) {
			const id = row.dataset.job ?? "";
			there.add(id);
			renew(row, began);
			if (match && !shown.has(id) && belongs(id)) fresh.add(id);
		}
		// What has left the list since is asked for by itself: it stays, as what it is now.
		for (const id of shown.keys()) if (!there.has(id) && !stale.has(id)) stale.set(id, -1);
		if (match) tellFresh();
	} else {
		morph(main, next);
		copyable(main);
		look();
	}
	count(main);
	return true;
}

/** adopt takes from a row of the list of jobs what a row of dead letters has of it. @param {HTMLElement} row @param {HTMLElement} from */
function adopt(row, from) {
	row.dataset.epoch = from.dataset.epoch;
	for (const [name, as] of [["Status", "Status"], ["Attempt", "Attempts"]]) {
		const cell = from.querySelector(`:scope > [data-th="${name}"]`);
		if (cell) row.querySelector(`:scope > [data-th="${as}"]`)?.replaceChildren(...document.importNode(cell, true).childNodes);
	}
}

/** renew makes a row what the server said, unless the stream knows better by now.
 * @param {HTMLElement} to @param {number} asked @param {(row: HTMLElement, to: HTMLElement) => void} put */
export function renew(to, asked, put = morph) {
	const id = to.dataset.job ?? "", row = shown.get(id);
	if (!row || Number(to.dataset.epoch) < Number(row.dataset.epoch) || (stale.get(id) ?? -1) >= asked) return;
	if (selected(row)) { kept = true; return; }
	stale.delete(id);
	put(row, to);
}

/** details asks for the rows that the stream has changed. */
async function details() {
	const began = performance.now(), ids = [...stale.keys()].filter((id) => shown.has(id)).slice(0, 100); // a proxy may take 8 KiB
	if (!ids.length) { stale.clear(); return true; }
	const page = await read(`rows?id=${ids.join()}&of=${encodeURIComponent(list?.dataset.of ?? "")}${list && "tenants" in list.dataset ? "&tenants=1" : ""}${list && "pick" in list.dataset ? "&pick=1" : ""}`);
	if (!page) return false;
	if (paused) return true;
	for (const row of /** @type {NodeListOf<HTMLElement>} */ (page.querySelectorAll("tr[data-job]"))) renew(row, began, list ? morph : adopt);
	for (const id of ids) if (!kept && (stale.get(id) ?? -1) < began) stale.delete(id); // the server has it no longer
	count(main);
	return true;
}

let paused = sessionStorage.getItem("paused") === "1";
let state = ""; // live, lost, refused, ended; "" before it is known
let asOf = now(), failed = false; // of the latest reading
let due = Infinity; // when the page is read again, by performance.now()
let dueRows = Infinity;
let busy = false;

/** soon has the page read again after a while, at the latest. @param {number} ms */
const soon = (ms) => { if (!tail) due = Math.min(due, performance.now() + ms); };

/** tick does what is due. One thing at a time is asked for. */
async function tick() {
	tellState();
	if (port && state !== "refused" && state !== "ended" && !paused && !document.hidden && ++unheard > deaf) alone();
	if (paused || busy || document.hidden || state === "ended" || !live) return;
	const at = performance.now(), whole = at >= due;
	if (!whole && at < dueRows) return;
	busy = true;
	kept = typed = false;
	let good = false;
	try {
		if (whole) {
			due = Infinity;
			good = await reread();
		} else {
			dueRows = Infinity;
			good = await details();
		}
	} catch {
		// The network or the server is away.
	} finally {
		busy = false;
	}
	read_ = performance.now();
	failed = !good;
	if (!good || kept || typed) soon(kept ? rest : poll);
	if (every) soon(every);
	if (state !== "live" && state !== "") soon(Math.max(poll, every));
	if ("running" in (/** @type {HTMLElement | null} */ (main.querySelector("[data-subject]"))?.dataset ?? {})) soon(change);
	if (stale.size) dueRows = performance.now() + rest;
}
let read_ = performance.now();

let listed = (/** @type {import("./live-stream.js").Message} */ m) => {};
/** follow begins to hear the stream, for a page that lists its changes. @param {typeof listed} hears */
export function follow(hears) {
	listed = hears;
	join();
}

let unheard = 0; // ticks since the worker said something; they stand still while the machine sleeps

/** hear is what the stream says. @param {import("./live-stream.js").Message} m */
function hear(m) {
	unheard = 0;
	if (paused || document.hidden && gone) return;
	if (m.state) become(m.state, m.heard);
	if (m.build && !import.meta.url.includes(`/assets/${m.build}/`)) banner("The server has a newer console.", "Reload", here);
	listed(m);
	if (m.acted && !rows) soon(0); // the server says that twice a second at most
	if (m.resync && (rows || change || m.state)) soon(m.state ? 0 : Math.max(0, read_ + burst - performance.now()));
	if (rows || main.querySelector("[data-subject]")) {
		for (const c of m.changes ?? []) {
			const row = shown.get(c.id);
			if (row?.localName === "tr") {
				patch(row, c);
				if (match) fresh.delete(c.id);
			} else if (row) soon(Math.max(0, read_ + change - performance.now()));
		}
		for (const [id, belonging] of m.others ?? []) {
			if (belonging && belongs(id)) match.unsure ? soon(poll) : fresh.add(id);
			else fresh.delete(id);
		}
		tellFresh();
		if (stale.size && dueRows === Infinity) dueRows = Math.max(performance.now() + 500, read_ + rest);
	} else if (m.touched && change) soon(Math.max(0, read_ + change - performance.now()));
	if (due <= performance.now()) void tick();
}

/** @param {string} s @param {number} [heard] */
function become(s, heard = Date.now()) {
	if (state === "live" && s !== "live") asOf = now() - (Date.now() - heard);
	state = s;
	if (s === "refused" || s === "lost") soon(poll);
	if (s === "ended") banner("You are signed out.", "Sign in", "login");
	tellState();
}

// What the header says, and the button that pauses.
const badge = document.querySelector(".live"), words = badge?.querySelector(".state");
const button = document.createElement("button");
button.type = "button";
button.className = "pause";
button.dataset.added = "";

function tellState() {
	if (!badge || !words || !live) return;
	if (state === "live" && !failed && !paused) asOf = now();
	const old = `as of ${age(now() - asOf)} ago`;
	let text = "", look = "";
	if (paused) [text, look] = [`paused, ${old}`, "paused"];
	else if (state === "ended") [text, look] = [`signed out, ${old}`, "lost"];
	else if (state === "lost" || failed) [text, look] = [`no news, ${old}`, "lost"];
	else if (state === "refused" && tail) [text, look] = [`no stream, ${old}`, "lost"];
	else if (state === "refused") [text, look] = [`every ${Math.max(poll, every) / 1000} s`, "polled"];
	else if (state === "live" || every && !state) [text, look] = [every ? `every ${every / 1000} s` : "live", "on"];
	if (words.textContent !== text) words.textContent = text;
	badge.setAttribute("data-state", look);
	const label = paused ? "Go on with updates" : "Pause updates";
	if (button.title !== label) {
		button.title = label;
		button.setAttribute("aria-label", label);
		button.setAttribute("aria-pressed", String(paused));
	}
}

/** pause stops every request of this page, or goes on. */
export function pause() {
	paused = !paused;
	sessionStorage.setItem("paused", paused ? "1" : "");
	if (paused) leave();
	else { join(); soon(0); void tick(); }
	tellState();
}

/** banner says something above the footer, once. @param {string} text @param {string} label @param {string} href */
function banner(text, label, href) {
	if (document.querySelector(`.banner a[href="${href}"]`)) return;
	const p = document.createElement("p"), a = document.createElement("a");
	p.className = "note is-info banner";
	p.setAttribute("role", "status");
	a.href = href;
	a.textContent = label;
	p.append(text, " ", a);
	document.querySelector("footer")?.before(p);
}

// The stream: in the shared worker, or of this tab alone.
/** @type {MessagePort | undefined} */
let port;
/** @type {Stream | undefined} */
let own;
function join() {
	if (paused || !live) return;
	if (!("stream" in root.dataset)) { become("refused"); return; }
	/** @type {import("./live-stream.js").Interest} */
	const interest = { jobs: [...shown.keys()], match, all: tail };
	if (!port && !own) {
		try {
			const worker = new SharedWorker(policy.createScriptURL(workerURL), { type: "module", name: root.dataset.login });
			worker.onerror = alone;
			port = worker.port;
			port.onmessage = ({ data }) => hear(data);
		} catch {
			own = new Stream(new URL("events", location.href).href);
		}
	}
	unheard = 0;
	port ? port.postMessage(interest) : own?.join(hear, interest);
}
/** alone has the tab hold a stream by itself: the worker did not load, or its process is gone, of which nobody says
 * anything. */
function alone() {
	if (state === "live") become("lost");
	if (port) { // it may only have stood still
		port.onmessage = null;
		port.postMessage(null);
		port.close();
	}
	port = undefined;
	own = new Stream(new URL("events", location.href).href);
	join();
}
function leave() {
	port ? port.postMessage(null) : own?.leave(hear);
}

let hiding = 0, gone = false;
document.addEventListener("visibilitychange", () => {
	clearTimeout(hiding);
	if (document.hidden) hiding = setTimeout(() => { gone = true; leave(); }, dull);
	else {
		if (gone) { gone = false; join(); soon(0); }
		void tick();
	}
});
addEventListener("pagehide", leave);
addEventListener("pageshow", (e) => { if (e.persisted) { join(); soon(0); } });

if (live) {
	look();
	main.prepend(spoken);
	if (match && !tail) main.prepend(note);
	badge?.after(button);
	button.addEventListener("click", pause);
	if (every) soon(every);
	if (!tail) join();
	tellState();
	setInterval(() => void tick(), 500);
}
