// Jobs that a person selects in a list. What is selected stays so while rows change, and when the person comes back to
// the list in this tab; it ends when something was done to it.
// @ts-check

/** @type {HTMLFormElement | null} */
const form = document.querySelector("form.selected");
const words = form?.querySelector("[data-selected]");
const address = new URL(location.href), ended = address.searchParams.has("acted");
for (const name of ["acted", "of", "refused", "ended", "request"]) address.searchParams.delete(name);
const place = `selected ${address.pathname}${address.search}`;
if (ended) for (const key of Object.keys(sessionStorage)) if (key.startsWith(`selected ${address.pathname}`)) sessionStorage.removeItem(key);

/** boxes are those of the rows, in their order. */
const boxes = () => /** @type {HTMLInputElement[]} */ ([...document.querySelectorAll("td.pick input")]);
/** The box from which a range goes. @type {HTMLInputElement | undefined} */
let last;
/** @type {HTMLInputElement | undefined} */
let all;

/** show says how many are selected, and remembers which. */
function show() {
	const every = boxes(), some = every.filter((b) => b.checked);
	if (form) form.hidden = !some.length;
	if (words && some.length) words.textContent = `${some.length} selected:`;
	if (all) {
		all.checked = some.length > 0 && some.length === every.length;
		all.indeterminate = some.length > 0 && some.length < every.length;
	}
	if (some.length) sessionStorage.setItem(place, some.map((b) => b.value).join(" "));
	else sessionStorage.removeItem(place);
}

/** reach makes all from the one before to a box what that is. @param {HTMLInputElement} to */
function reach(to) {
	const every = boxes(), from = last ? every.indexOf(last) : -1, end = every.indexOf(to);
	if (from >= 0) for (const b of every.slice(Math.min(from, end), Math.max(from, end) + 1)) b.checked = to.checked;
}

/** selectRow selects the row that has the focus, or no longer. @param {boolean} range also all from the one before */
export function selectRow(range) {
	const box = /** @type {HTMLInputElement | null | undefined} */ (document.activeElement?.closest("tr")?.querySelector("td.pick input"));
	if (!box) return false;
	box.checked = range || !box.checked;
	if (range) reach(box);
	last = box;
	show();
	return true;
}

/** selectAll selects all that are shown, or none if they are already. */
export function selectAll() {
	const every = boxes(), on = !every.every((b) => b.checked);
	for (const b of every) b.checked = on;
	show();
	return every.length > 0;
}

if (form) {
	all = document.createElement("input");
	all.type = "checkbox";
	all.setAttribute("aria-label", "Select all that are shown");
	all.dataset.added = "";
	all.addEventListener("change", selectAll);
	document.querySelector("th.pick")?.append(all);
	const before = new Set((sessionStorage.getItem(place) ?? "").split(" "));
	for (const b of boxes()) b.checked ||= before.has(b.value);
	document.addEventListener("click", (e) => {
		const box = /** @type {Element} */ (e.target);
		if (!(box instanceof HTMLInputElement && box.matches("td.pick input"))) return;
		if (e.shiftKey) reach(box);
		last = box;
		show();
	});
	addEventListener("pageshow", show); // the browser may have put back what was selected
	show();
}
