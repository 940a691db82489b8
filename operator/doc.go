// Package operator is what an operator asks and does: look at jobs and queues,
// pause and resume, retry and dismiss. It holds no state and runs nothing; the
// API, the console and the CLI are skins over it.
//
// Every act is one statement, legal by the same rules that bind workers: it raises
// the job's epoch, so that a worker that still believes to own the job can write
// nothing any more.
package operator
