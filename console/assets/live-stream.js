// The stream of changes of jobs, for several pages at once: in the shared worker for all tabs of a browser, and in a
// tab by itself where there are no shared workers.
// @ts-check

/** @typedef {{id: string, kind: string, queue: string, tenant?: string, status: string, epoch: number, attempt: number, finishedAt?: string, error?: {code: string}}} Change */
/** @typedef {{kind?: string, queue?: string, tenant?: string, statuses?: string[], unsure?: boolean}} Match */
/** @typedef {{jobs: string[], match?: Match, all?: boolean}} Interest what of the stream a page wants: changes of its jobs, or all that match */
/** @typedef {{state?: string, heard?: number, build?: string, resync?: boolean, burst?: number, more?: boolean, changes?: Change[], others?: [string, boolean][], touched?: boolean, acted?: boolean}} Message
 * heard is when the server was heard last, by the machine's clock; resync: changes may have been left out, so that the page has to be read again; burst is how many changes came at once, or with more how many at least, of
 * which a page that wants all has some; others are jobs that the page does not show, and whether they belong there; touched: something has changed; acted: an operator may have acted on something other than a job. */

const silence = 18_000; // milliseconds: the server says something every 15 s
const pass = 250; // between two messages to a page
const longest = 30_000; // between two attempts to connect

/** matches reports whether a job belongs to a list. @param {Match} m @param {Change} c */
export const matches = (m, c) => (!m.kind || m.kind === c.kind) && (!m.queue || m.queue === c.queue) &&
	(!m.tenant || !c.tenant || m.tenant === c.tenant) && (!m.statuses || m.statuses.includes(c.status));

/** @typedef {{jobs: Set<string>, match?: Match, all?: boolean}} Wanted */
/** wants reports whether a page wants to have a change itself. @param {Wanted} i @param {Change} c */
const wants = (i, c) => i.all ? !i.match || matches(i.match, c) : i.jobs.has(c.id);

export class Stream {
	/** @type {Map<(m: Message) => void, Wanted>} */
	#pages = new Map();
	/** @type {Map<string, Change>} those that were not sent to pages yet, the newest state of each */
	#changes = new Map();
	/** @type {Map<string, string>} what was heard of jobs since the position: where the stream is cut, it is sent again */
	#since = new Map();
	/** @type {AbortController | undefined} */
	#connection;
	#position = "";
	#state = "";
	#build = "";
	#heard = Date.now();
	#sent = 0; // when pages were sent something last
	#timer = 0;
	#wake = () => {};

	/** @param {string} url */
	constructor(url) { this.url = url; }

	/** join sends a page what it wants. Joining again changes its interest. @param {(m: Message) => void} tell @param {Interest} interest */
	join(tell, interest) {
		const first = !this.#pages.size, again = this.#pages.has(tell);
		this.#pages.set(tell, { ...interest, jobs: new Set(interest.jobs) });
		if (first) void this.#run();
		else if (!again) {
			if (this.#state === "live") tell({ state: "live", build: this.#build, resync: true });
			else this.#wake(); // it was refused before: the login may be another one by now
		}
	}

	/** leave is for a page that goes, or that nobody sees. @param {(m: Message) => void} tell */
	leave(tell) {
		this.#pages.delete(tell);
		if (this.#pages.size) return;
		this.#connection?.abort();
		this.#wake();
	}

	/** #run holds the stream as long as there are pages. */
	async #run() {
		for (let failures = 0; this.#pages.size;) {
			const began = Date.now();
			const status = await this.#connect();
			if (!this.#pages.size) break;
			if (status === 400) this.#forget(); // another database's server does not know it
			failures = Date.now() - began > longest ? 0 : failures + 1;
			const refused = status === 401 ? "ended" : status === 403 || status === 404 ? "refused" : "lost";
			this.#say({ state: this.#state = refused, heard: this.#heard });
			const wait = refused === "lost" ? Math.min(longest, 500 * 2 ** failures) * (0.5 + Math.random()) : 2 ** 31 - 1;
			await new Promise((done) => { this.#wake = () => done(null); setTimeout(done, wait); });
			this.#wake = () => {};
		}
		this.#forget();
		this.#state = "";
		this.#changes.clear();
	}

	/** #forget has the stream begin where it is by then. */
	#forget() {
		this.#position = "";
		this.#since.clear();
	}

	/** #connect reads the stream until it ends. It returns the status that refused it, or 0. */
	async #connect() {
		const connection = this.#connection = new AbortController();
		const began = Date.now();
		const watchdog = setInterval(() => { if (Date.now() - Math.max(began, this.#heard) > silence) connection.abort(); }, 500);
		try {
			const after = this.#position ? "?after=" + encodeURIComponent(this.#position) : "";
			const answer = await fetch(this.url + after, { headers: { Accept: "text/event-stream" }, cache: "no-store", signal: connection.signal });
			if (!answer.ok || !answer.body) return answer.status;
			if (!answer.headers.get("Content-Type")?.startsWith("text/event-stream")) return 401; // it led to the login
			const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
			for (let text = ""; ;) {
				const { value, done } = await reader.read();
				if (done) break;
				this.#heard = Date.now();
				const events = (text + value).split("\n\n");
				text = events.pop() ?? "";
				events.forEach((e) => this.#note(e));
			}
		} catch {
			// The network, the server or the watchdog has ended it.
		} finally {
			clearInterval(watchdog);
		}
		return 0;
	}

	/** #note reads an event. @param {string} event */
	#note(event) {
		let name = "", id = "", data = "";
		for (const line of event.split("\n")) {
			if (line.startsWith("event: ")) name = line.slice(7);
			else if (line.startsWith("id: ")) id = line.slice(4);
			else if (line.startsWith("data: ")) data = line.slice(6);
		}
		if (name === "hello") {
			this.#build = JSON.parse(data).build;
			this.#say({ state: this.#state = "live", build: this.#build, resync: !this.#position, acted: true });
		} else if (name === "acted") {
			this.#say({ acted: true });
		} else if (name === "resync") {
			this.#forget(); // unless the event has a position
			const { changes, more, sample } = /** @type {{changes?: number, more?: boolean, sample?: Change[]}} */ (JSON.parse(data));
			for (const [tell, i] of this.#pages) tell({ resync: true, burst: changes, more, changes: i.all ? sample?.filter((c) => wants(i, c)) : undefined });
		} else if (name === "job") {
			const c = /** @type {Change} */ (JSON.parse(data));
			const again = this.#since.get(c.id) === data;
			this.#since.set(c.id, data);
			if (!again && !(c.epoch < (this.#changes.get(c.id)?.epoch ?? 0))) this.#changes.set(c.id, c);
			this.#timer ||= setTimeout(() => this.#send(), Math.max(0, this.#sent + pass - Date.now()));
		}
		if (id) {
			this.#position = id;
			this.#since.clear();
		}
	}

	/** @param {Message} m */
	#say(m) { for (const tell of this.#pages.keys()) tell(m); }

	/** #send sends each page what it wants. */
	#send() {
		this.#timer = 0;
		this.#sent = Date.now();
		const all = [...this.#changes.values()];
		this.#changes.clear();
		for (const [tell, i] of this.#pages) {
			const changes = all.filter((c) => wants(i, c)), match = i.match;
			/** @type {[string, boolean][]} */
			const others = match && !i.all ? all.filter((c) => !i.jobs.has(c.id)).map((c) => [c.id, matches(match, c)]) : [];
			tell({ changes, others, touched: all.length > 0 });
		}
	}
}
