// What the tests ask of a page. It is evaluated in pages from outside, so that it works where scripts are switched off.
(() => {
	const shown = (e) => e.checkVisibility({ visibilityProperty: true, opacityProperty: false });
	const squeezed = (s) => s.replace(/\s+/g, " ").trim();
	const name = (e) => {
		const label = e.getAttribute("aria-label") || e.textContent || e.name || e.value || "";
		return `<${e.localName}> ${squeezed(label).slice(0, 60)}`;
	};

	// The text of the main part. Ages are as the server has written them, because scripts let them go on; a page that is
	// read twice says another time of day.
	const text = () => {
		const main = document.querySelector("main").cloneNode(true);
		for (const e of main.querySelectorAll("time")) e.textContent = e.dateTime;
		for (const e of main.querySelectorAll("script,button:not(form button),button.copy")) e.remove();
		return squeezed(main.textContent).replace(/\d\d:\d\d:\d\d(\.\d+)?/g, "–");
	};

	// Everything that people read: text, titles, labels, the values of fields.
	const readable = () => {
		const all = [document.body.innerText, document.body.textContent];
		for (const e of document.querySelectorAll("*")) {
			for (const a of ["title", "aria-label", "value", "placeholder"]) if (e.hasAttribute(a)) all.push(e.getAttribute(a));
		}
		return all.join("\n");
	};

	// What a Tab has to come to.
	const controls = () => [...document.querySelectorAll("a[href],button,input,select,textarea,summary,[tabindex]")].filter((e) =>
		shown(e) && !e.disabled && e.tabIndex >= 0 && e.type !== "hidden" && (e.type !== "radio" || e.checked));

	const look = (e) => {
		const s = getComputedStyle(e);
		return [s.outlineStyle, s.outlineWidth, s.outlineColor, s.boxShadow, s.backgroundColor, s.borderColor, s.textDecoration].join();
	};
	let before = new Map();
	const visited = new Set(), invisible = [];
	const focused = (e) => {
		if (visited.has(e)) return;
		visited.add(e);
		const style = getComputedStyle(e);
		if (before.get(e) === look(e) && !(style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0)) {
			invisible.push(`${name(e)}: nobody sees that it has the focus`);
		}
		const header = document.querySelector("header.top"), box = e.getClientRects()[0];
		const above = box && document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
		if (header && !header.contains(e) && header.contains(above)) invisible.push(`${name(e)}: the header covers it`);
	};
	// How many Tabs it takes at most; from now on what gets the focus is looked at.
	const atFirst = () => {
		document.activeElement?.blur();
		before = new Map(controls().map((e) => [e, look(e)]));
		addEventListener("focusin", (e) => focused(e.target));
		return before.size;
	};
	const unreached = () => [...invisible, ...[...before.keys()].filter((e) => !visited.has(e) && e.isConnected).map((e) => `${name(e)}: no Tab comes to it`)];

	// What is wider than the window, if something has to be scrolled to the side.
	const wide = () => {
		const root = document.documentElement, width = root.clientWidth;
		if (root.scrollWidth <= width) return [];
		const over = [...document.body.querySelectorAll("*")].filter((e) => shown(e) && e.getBoundingClientRect().right > width + 0.5 && !e.closest(".scroll"));
		return [`${root.scrollWidth} px are needed of ${width}: ` + over.slice(0, 3).map((e) => `${name(e)} .${e.className}`).join("; ")];
	};

	// Texts that lie over each other, labels that do not fit in their cell, and cells that cut a text off although other
	// columns of their table have room.
	const overlaps = () => {
		const faults = [], boxes = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
		const floats = (e) => { for (; e; e = e.parentElement) if (["fixed", "sticky"].includes(getComputedStyle(e).position)) return true; return false; };
		for (let n = texts.nextNode(); n; n = texts.nextNode()) {
			const e = n.parentElement;
			if (!n.data.trim() || !shown(e) || e.closest(".hide,script,option,.asof,dialog") || floats(e)) continue;
			const clips = [];
			for (let of = e; of !== document.body; of = of.parentElement) {
				const s = getComputedStyle(of);
				if (s.overflowX !== "visible" || s.clipPath !== "none") clips.push(of.getBoundingClientRect());
			}
			const of = document.createRange();
			of.selectNodeContents(n);
			for (const r of of.getClientRects()) {
				const left = Math.max(r.left, ...clips.map((c) => c.left)), right = Math.min(r.right, ...clips.map((c) => c.right));
				const top = Math.max(r.top, ...clips.map((c) => c.top)), bottom = Math.min(r.bottom, ...clips.map((c) => c.bottom));
				if (right > left + 2 && bottom > top + 2) boxes.push({ n, text: squeezed(n.data).slice(0, 30), left, right, top, bottom });
			}
		}
		boxes.sort((a, b) => a.top - b.top);
		boxes.forEach((a, i) => {
			for (let j = i + 1; j < boxes.length && boxes[j].top < a.bottom - 4; j++) {
				const b = boxes[j];
				if (a.n !== b.n && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2) faults.push(`“${a.text}” lies over “${b.text}”`);
			}
		});
		for (const e of document.querySelectorAll("td")) {
			if (shown(e) && e.scrollHeight > e.clientHeight + 2) faults.push(`${name(e)}: the label ${e.dataset.th} needs ${e.scrollHeight} px of ${e.clientHeight}`);
		}
		return faults.concat(cut());
	};
	const cut = () => [...document.querySelectorAll("main table")].flatMap((table) => {
		const rows = [...table.tBodies].flatMap((b) => [...b.rows]).filter(shown);
		const clipped = [...table.querySelectorAll("td .error")].find((e) => shown(e) && e.scrollWidth > e.clientWidth + 1);
		if (!clipped || table.closest(".part") || getComputedStyle(table).display !== "table") return []; // the columns of Live are fixed
		const spare = (cell) => {
			const of = document.createRange(), s = getComputedStyle(cell);
			of.selectNodeContents(cell);
			return cell.clientWidth - parseFloat(s.paddingLeft) - parseFloat(s.paddingRight) - of.getBoundingClientRect().width;
		};
		const columns = [...rows[0].cells].map((cell, i) => Math.min(...[...rows, ...table.tHead?.rows ?? []].map((r) => r.cells[i] ? spare(r.cells[i]) : 0)));
		const room = columns.filter((px) => px > 8).reduce((sum, px) => sum + px, 0);
		return room > 48 ? [`${name(clipped)}: is cut off, and other columns have ${Math.round(room)} px to spare`] : [];
	});

	// Rows of a table that differ in their texts alone look alike and behave alike: two of each are enough for what takes
	// long, unless their number matters. thin takes the others out of the page, and whole puts them back.
	let taken = [];
	const built = (e) => {
		const of = [...e.attributes].map((a) => ["class", "role", "type"].includes(a.name) ? `${a.name}=${a.value}` : a.value ? a.name : `${a.name}=`);
		const parts = [...e.childNodes].map((n) => n.nodeType === Node.ELEMENT_NODE ? built(n) : n.textContent.trim() ? "x" : "");
		return `<${e.localName} ${of.sort()}>${parts.join("")}`;
	};
	const thin = () => {
		for (const body of document.querySelectorAll("main tbody")) {
			const seen = new Map(), rows = [...body.rows];
			for (const row of rows) {
				const n = (seen.get(built(row)) ?? 0) + 1;
				seen.set(built(row), n);
				if (n > 2) row.remove();
			}
			if (body.rows.length < rows.length) taken.push({ body, rows, left: body.rows.length });
		}
	};
	const whole = () => {
		for (const { body, rows, left } of taken) if (body.rows.length === left) body.append(...rows); // otherwise it was updated
		taken = [];
	};

	// Of "colours", only the rules about colours; of "structure", all but the one that takes longest.
	const accessible = async (of) => {
		const found = await axe.run(document, {
			resultTypes: ["violations"],
			runOnly: of === "colours" ? { type: "rule", values: ["color-contrast", "link-in-text-block"] } :
				{ type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] },
			rules: of === "structure" ? { "color-contrast": { enabled: false } } : {},
		});
		return found.violations.flatMap((v) => v.nodes.slice(0, 3).map((n) => `axe ${v.id}: ${n.target.join(" ")}: ${squeezed(n.failureSummary)}`));
	};

	const tables = () => [...document.querySelectorAll("table")].map((t) => ({ caption: squeezed(t.caption?.textContent ?? ""), rows: [...t.tBodies].reduce((n, b) => n + b.rows.length, 0) }));
	const empties = () => [...document.querySelectorAll(".empty")].map((e) => ({ text: squeezed(e.textContent), commands: [...e.querySelectorAll("[data-copy]")].map((c) => c.textContent) }));

	// Times that are not those of the zone that the page is in, and texts with times that no zone applies to.
	const times = () => {
		const day = (t) => new Intl.DateTimeFormat("en-GB", { timeZone: document.documentElement.dataset.zone, day: "numeric", month: "short", year: "numeric" }).format(t);
		const today = day(Date.parse(document.documentElement.dataset.now));
		const date = (t) => day(t) === today ? "" : (day(t).slice(-4) === today.slice(-4) ? day(t).slice(0, -5) : day(t)) + " ";
		const main = document.querySelector("main").cloneNode(true);
		for (const e of main.querySelectorAll("time,code,pre,script,textarea,input,.error,.name,svg")) e.replaceWith(" x ");
		const bare = [...main.textContent.matchAll(/.{0,30}(\d{4}-\d\d-\d\dT\d\d:\d\d|\b\d\d:\d\d:\d\d\b(?! (UTC|[+-]\d|[A-Z]{3,5}\b)))/g)].map(([text]) => `“${squeezed(text)}” has a time that no zone applies to`);
		const clock = new Intl.DateTimeFormat("en-GB", {
			timeZone: document.documentElement.dataset.zone, hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
		});
		const want = (e) => date(Date.parse(e.dateTime)) + clock.format(Date.parse(e.dateTime));
		return bare.concat([...document.querySelectorAll("time:not([data-age],[data-ago],[data-in])")].filter(shown)
			.filter((e) => !squeezed(e.textContent).startsWith(want(e)))
			.map((e) => `${e.dateTime} is shown as ${squeezed(e.textContent)}, in ${document.documentElement.dataset.zone} it is ${want(e)}`));
	};

	// A blank before a punctuation mark, in what people read; what is stored, and commands, stay as they are.
	const punctuation = () => {
		const main = document.querySelector("main").cloneNode(true);
		for (const e of main.querySelectorAll("code,pre,script,textarea,.error,.wrap,.name,svg,option")) e.replaceWith("x");
		return [...main.textContent.replace(/\s+/g, " ").matchAll(/.{0,30}\s[:,.;](?=\s|$)/g)].map(([m]) => `“${m}” has a blank before its mark`);
	};

	// What cannot be told apart in forced colours, where backgrounds and shadows are gone.
	const forced = () => {
		const faults = [], canvas = getComputedStyle(document.body).backgroundColor;
		const edged = (s) => ["Top", "Right", "Bottom", "Left"].some((side) => parseFloat(s[`border${side}Width`]) > 0 && s[`border${side}Color`] !== canvas);
		for (const e of document.querySelectorAll("button,.button,.pill,.chip,.note,input:not([type=hidden]),select,textarea,progress")) {
			const s = getComputedStyle(e);
			if (e.type === "checkbox" && s.appearance === "auto") continue; // the browser draws it, its edge included
			if (shown(e) && !edged(s) && !s.textDecorationLine.includes("underline") && !e.matches(".pause,.copy")) faults.push(`${name(e)} .${e.className}: has no edge`);
		}
		const kept = (e) => { const s = getComputedStyle(e); return [s.backgroundColor, s.borderBottomColor].join(); };
		for (const e of document.querySelectorAll("[aria-current],[aria-pressed=true]:not(.pause)")) {
			const all = [...e.closest("ul,fieldset,nav").querySelectorAll(e.localName)];
			for (const other of all) if (other !== e && !other.matches("[aria-current],[aria-pressed=true]") && kept(other) === kept(e)) faults.push(`${name(e)}: looks like ${name(other)}`);
		}
		for (const e of document.querySelectorAll(".status")) if (!squeezed(e.textContent) || !e.querySelector("svg")) faults.push(`${name(e)}: a status without its word or shape`);
		return faults;
	};
	// What moves, or would.
	const moving = () => [...document.querySelectorAll("*")].filter((e) => {
		const s = getComputedStyle(e);
		return s.transitionDuration.split(",").some((d) => parseFloat(d) > 0) || s.animationName !== "none" || s.scrollBehavior === "smooth";
	}).map(name).concat(document.getAnimations().map(() => "an animation"));

	globalThis.checks = { forced, moving, times, text, readable, atFirst, unreached, wide, overlaps, punctuation, accessible, thin, whole, tables, empties };
})();
