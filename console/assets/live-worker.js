// The shared worker: one stream for all tabs of a browser. Its name is the login's, so that those of another have their own.
// @ts-check
import { Stream } from "./live-stream.js";

const stream = new Stream(new URL("../../events", import.meta.url).href);

// A tab learns by this that the worker is there: one that the browser has killed says nothing.
/** @type {Set<MessagePort>} */
const ports = new Set();
setInterval(() => ports.forEach((port) => port.postMessage({})), 5000);

addEventListener("connect", (e) => {
	const port = /** @type {MessageEvent} */ (e).ports[0];
	const tell = (/** @type {import("./live-stream.js").Message} */ m) => port.postMessage(m);
	port.onmessage = ({ data }) => {
		data ? ports.add(port) : ports.delete(port);
		data ? stream.join(tell, data) : stream.leave(tell);
	};
});
