// What scripts add to pages that are complete without them: ages that go on counting, buttons that copy, the browser's
// time zone. Everything is text: no HTML is made here.
// @ts-check

const root = document.documentElement;
root.dataset.script = "";

// The server's clock: the browser's own may be wrong.
let skew = 0;
export const now = () => skew + performance.now();

/** setClock says what the server's clock shows now. A machine that sleeps may stand performance.now still, so each page
 * that is read sets it. @param {string | undefined} text */
export function setClock(text) {
	const at = Date.parse(text ?? "");
	if (!Number.isNaN(at)) skew = at - performance.now();
}
setClock(root.dataset.now);

/** age is how long something is, as show.go writes it. @param {number} ms */
export function age(ms) {
	const s = Math.max(0, Math.floor(ms / 1000)), m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
	const two = (/** @type {number} */ a, /** @type {string} */ unit, /** @type {number} */ b, /** @type {string} */ small) =>
		b ? `${a} ${unit} ${b} ${small}` : `${a} ${unit}`;
	if (s < 60) return `${s} s`;
	if (m < 60) return `${m} min`;
	if (h < 24) return two(h, "h", m % 60, "min");
	return d < 100 ? two(d, "d", h % 24, "h") : `${d} d`;
}

/** count has the ages of a part of the page go on. @param {ParentNode} part */
export function count(part) {
	const at = now();
	for (const e of /** @type {NodeListOf<HTMLTimeElement>} */ (part.querySelectorAll("time[data-age],time[data-ago],time[data-in],time[data-live]"))) {
		const d = at - Date.parse(e.dateTime);
		let text = age(d);
		if ("live" in e.dataset) text = (e.dataset.clock ??= e.textContent ?? "") + (d < 2000 ? "" : `, ${age(d)} ago`);
		else if ("in" in e.dataset) text = d < 0 ? `in ${age(-d)}` : `${age(d)} ago`;
		else if ("ago" in e.dataset) text = `${age(d)} ago`;
		if (e.textContent !== text) e.textContent = text;
	}
}
// Where ages are: the list of Live has none, and to look through its ten thousand rows each second takes long.
const parts = [document.querySelector("header.top"), document.querySelector("main:not([data-tail])")].filter((part) => part !== null);
setInterval(() => document.hidden || parts.forEach(count), 1000);

/** copyable adds a button to what can be copied. @param {ParentNode} part */
export function copyable(part) {
	for (const e of /** @type {NodeListOf<HTMLElement>} */ (part.querySelectorAll("[data-copy]:not([data-copies])"))) {
		e.dataset.copies = "";
		const button = document.createElement("button");
		button.type = "button";
		button.className = "copy";
		button.dataset.added = "";
		const label = button.textContent = e.tagName === "PRE" ? "Copy as shown" : "Copy";
		button.addEventListener("click", async () => {
			button.textContent = await copy(e) ? "Copied" : "Press Ctrl+C";
			setTimeout(() => { button.textContent = label; }, 1600);
		});
		const row = e.nextElementSibling;
		if (e.tagName === "PRE" && row?.matches("p.row")) {
			button.className = "button";
			row.prepend(button);
		} else e.after(button);
	}
}

/** copy copies a text, or selects it where that is all there is: on plain http. @param {HTMLElement} e */
export async function copy(e) {
	try {
		await navigator.clipboard.writeText(e.textContent ?? "");
		return true;
	} catch {
		getSelection()?.selectAllChildren(e);
		return false;
	}
}

/** followForm has the command of a preview follow the rate and the reason that a person enters. */
function followForm() {
	const code = document.querySelector(".confirm .command code"), form = /** @type {HTMLFormElement | null} */ (document.querySelector(".confirm form"));
	const [line, of] = code?.textContent?.split(/(?= --rate \S+ --reason '| --reason ')/) ?? [];
	if (!code || !form || !of) return;
	const quoted = (/** @type {string} */ s) => `'${s.replaceAll("'", "'\\''")}'`;
	form.addEventListener("input", () => {
		const { rate, reason } = Object.fromEntries(new FormData(form));
		code.textContent = line + (rate ? ` --rate ${quoted(String(rate).trim())}` : "") + ` --reason ${quoted(String(reason) || "why it is done")}`;
	});
}

/** offerZone adds the browser's zone to the choice, and takes it the first time. */
function offerZone() {
	const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
	const cookie = (/** @type {string} */ zone) => { document.cookie = `ph_zone=${zone}; max-age=31536000; samesite=lax`; };
	if (!own || !/^[A-Za-z0-9_+\-/]+$/.test(own)) return;
	if (!document.cookie.includes("ph_zone=")) {
		cookie(own);
		if (own !== root.dataset.zone) localise(own);
	}
	for (const fieldset of document.querySelectorAll("[data-zones] fieldset")) {
		if ([...fieldset.querySelectorAll("button")].some((b) => b.value === own)) continue;
		const button = document.createElement("button");
		button.name = "zone";
		button.value = button.textContent = own;
		button.setAttribute("aria-pressed", "false");
		fieldset.append(button);
	}
}

/** localise writes the times of this page in a zone; the next page comes with it. @param {string} zone */
function localise(zone) {
	const day = (/** @type {number} */ t) => new Intl.DateTimeFormat("en-GB", { timeZone: zone, day: "numeric", month: "short", year: "numeric" }).format(t);
	const clock = new Intl.DateTimeFormat("en-GB", { timeZone: zone, hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
	for (const e of /** @type {NodeListOf<HTMLTimeElement>} */ (document.querySelectorAll("time:not([data-age],[data-ago],[data-in])"))) {
		const t = Date.parse(e.dateTime), today = day(now()), then = day(t);
		const date = then === today ? "" : (then.slice(-4) === today.slice(-4) ? then.slice(0, -5) : then) + " ";
		e.textContent = date + clock.format(t);
	}
	root.dataset.zone = zone;
	const name = document.querySelector(".menu .zone");
	if (name) name.textContent = zone.split("/").pop()?.replaceAll("_", " ") ?? zone;
}

document.addEventListener("keydown", (e) => {
	if (e.key === "Escape") document.querySelector(".menu[open]")?.removeAttribute("open");
});
document.addEventListener("click", (e) => {
	for (const menu of document.querySelectorAll(".menu[open]")) {
		if (!menu.contains(/** @type {Node} */ (e.target))) menu.removeAttribute("open");
	}
});

followForm();
offerZone();
copyable(document);
