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

	const accessible = async () => {
		const found = await axe.run(document, {
			resultTypes: ["violations"], runOnly: { type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] },
		});
		return found.violations.flatMap((v) => v.nodes.slice(0, 3).map((n) => `axe ${v.id}: ${n.target.join(" ")}: ${squeezed(n.failureSummary)}`));
	};

	const tables = () => [...document.querySelectorAll("table")].map((t) => ({ caption: squeezed(t.caption?.textContent ?? ""), rows: [...t.tBodies].reduce((n, b) => n + b.rows.length, 0) }));
	const empties = () => [...document.querySelectorAll(".empty")].map((e) => ({ text: squeezed(e.textContent), commands: [...e.querySelectorAll("[data-copy]")].map((c) => c.textContent) }));

	// Times that are not those of the zone that the page is in.
	const times = () => {
		const clock = new Intl.DateTimeFormat("en-GB", {
			timeZone: document.documentElement.dataset.zone, hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
		});
		return [...document.querySelectorAll("time:not([data-age],[data-ago],[data-in])")].filter(shown)
			.filter((e) => !e.textContent.includes(clock.format(Date.parse(e.dateTime))))
			.map((e) => `${e.dateTime} is shown as ${squeezed(e.textContent)}, in ${document.documentElement.dataset.zone} it is ${clock.format(Date.parse(e.dateTime))}`);
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

	globalThis.checks = { forced, moving, times, text, readable, atFirst, unreached, wide, accessible, tables, empties };
})();
