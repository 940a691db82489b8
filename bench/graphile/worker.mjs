// Measures graphile-worker with the workloads of `posthaste bench`, and prints the
// same figures under the same names. The Go code that this follows step by step is
// internal/bench; a change there belongs here too.
//
// The worker runs in threads of its own, so that neither the producer's nor the
// measuring's JavaScript holds it up.
import { once } from "node:events";
import { readFileSync, writeFileSync, appendFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";
import { Logger, run, runMigrations } from "graphile-worker";
import pg from "pg";

const quiet = new Logger(() => () => {});
const schema = "graphile_worker";
const now = () => Number(process.hrtime.bigint()) / 1e6; // milliseconds, the same clock in every thread

// ---- the worker -----------------------------------------------------------

function preset({ jobs, queue, delay }, url) {
  const worker = { connectionString: url, logger: quiet };
  if (jobs > 0) Object.assign(worker, { concurrentJobs: jobs, maxPoolSize: 10 });
  if (queue > 0) worker.localQueue = { size: queue };
  if (delay >= 0) Object.assign(worker, { completeJobBatchDelay: delay, failJobBatchDelay: delay });
  return { worker };
}

async function workInThread({ settings, url, done, starts }) {
  const began = starts && new Float64Array(starts), count = new Int32Array(done);
  const noop = ({ n }) => {
    if (began && n >= 0) began[n] = now();
    Atomics.add(count, 0, 1);
  };
  parentPort.postMessage("loaded");
  await once(parentPort, "message"); // start
  const runner = await run({ preset: preset(settings, url), noHandleSignals: true, taskList: { noop } });
  await once(parentPort, "message"); // stop
  await runner.stop();
  parentPort.close();
}

// load makes the threads: reading the code is not to be measured.
async function load(settings, url, starts) {
  const done = new SharedArrayBuffer(4);
  const threads = Array.from({ length: settings.threads }, () =>
    new Worker(new URL(import.meta.url), { workerData: { settings, url, done, starts } }));
  await Promise.all(threads.map((t) => once(t, "message")));
  return {
    done: () => Atomics.load(new Int32Array(done), 0),
    start: () => threads.forEach((t) => t.postMessage("start")),
    stop: () => Promise.all(threads.map((t) => { t.postMessage("stop"); return once(t, "exit"); })),
  };
}

// hold is the process that idles.
async function hold(settings, url, ledger) {
  await run({
    preset: preset(settings, url),
    taskList: { noop: () => { appendFileSync(ledger, new Date().toISOString() + "\n"); return new Promise(() => {}); } },
  });
}

// ---- the producer ---------------------------------------------------------

// insert stores n jobs in one call of the function that the manual recommends for
// many; in SQL, which is quicker than the JavaScript around it.
async function insert(pool, n) {
  for (let first = 0; first < n; first += 10_000) {
    const payloads = Array.from({ length: Math.min(10_000, n - first) }, (_, i) => JSON.stringify({ n: first + i }));
    await pool.query({
      name: "insert",
      text: `select count(*) from ${schema}.add_jobs((
        select array_agg(row('noop', payload::json, null, null, null, null, null, null)::${schema}.job_spec)
        from unnest($1::text[]) as payload))`,
      values: [payloads],
    });
  }
}

async function commit(pool, job, also) {
  const client = await pool.connect();
  try {
    await client.query("begin");
    await also(client);
    await client.query({ name: "one", text: `select id from ${schema}.add_job('noop', $1::json)`, values: [JSON.stringify({ n: job })] });
    await client.query("commit");
  } finally {
    client.release();
  }
}

// ---- what is measured -----------------------------------------------------

async function settled(pool, worker, n) {
  for (; ; await sleep(1)) {
    if (worker.done() < n) continue;
    const { rows } = await pool.query(`select exists (select from ${schema}._private_jobs where run_at <= now()) as open`);
    if (!rows[0].open) return;
  }
}

async function calm(pool) {
  await pool.query(`vacuum (analyze) ${schema}._private_jobs`);
  await pool.query("checkpoint");
}

const perSecond = (n, started) => (n / (now() - started)) * 1000;

async function burndown(pool, url, o) {
  const worker = await load(o.settings, url);
  await calm(pool);
  const { rows: [{ before }] } = await pool.query("select pg_current_wal_lsn()::text as before");
  let started = now();
  await insert(pool, o.jobs);
  const enqueued = perSecond(o.jobs, started);

  try { writeFileSync("/proc/self/clear_refs", "5"); } catch { /* the peak is then that of the whole run */ }
  const cpu = process.cpuUsage();
  started = now();
  worker.start();
  await settled(pool, worker, o.jobs);
  const rate = perSecond(o.jobs, started);
  const used = process.cpuUsage(cpu), peak = peakMiB();
  const { rows: [{ wal }] } = await pool.query("select (pg_current_wal_lsn() - $1::pg_lsn)::float8 as wal", [before]);
  await worker.stop();
  await pool.end(); // a backend tells its numbers when it ends
  await sleep(500);
  const { rows: [{ dead }] } = await query(url, "select sum(n_tup_upd + n_tup_del)::float8 as dead from pg_stat_user_tables");
  return {
    bulk_enqueue_per_s: enqueued,
    jobs_per_s: rate,
    wal_bytes_per_job: wal / o.jobs,
    dead_tuples_per_job: dead / o.jobs,
    client_cpu_us_per_job: (used.user + used.system) / o.jobs,
    rss_mib: peak,
  };
}

async function bulk(pool, url, o) {
  const transaction = 10_000, share = Math.max(Math.floor(o.jobs / o.clients / transaction), 1) * transaction;
  const atOnce = (n) => Promise.all(Array.from({ length: o.clients }, () => insert(pool, n)));
  await atOnce(transaction); // connects, and has the server read its catalogues
  await calm(pool);
  const started = now();
  await atOnce(share);
  return { bulk_enqueue_per_s: perSecond(share * o.clients, started) };
}

async function steady(pool, url, o) {
  const mostOpen = 20_000, batch = 1000;
  const worker = await load(o.settings, url);
  await calm(pool);
  const started = now();
  worker.start();
  let enqueued = 0;
  while (now() - started < o.duration) {
    if (enqueued - worker.done() > mostOpen - batch) { await sleep(1); continue; }
    await insert(pool, batch);
    enqueued += batch;
  }
  await settled(pool, worker, enqueued);
  const rate = perSecond(enqueued, started);
  await worker.stop();
  return { jobs_per_s: rate };
}

async function latency(pool, url, o) {
  const warmUp = 50, begun = new Float64Array(o.jobs);
  const starts = new SharedArrayBuffer(8 * o.jobs);
  const worker = await load(o.settings, url, starts);
  worker.start();
  const one = (i) => commit(pool, i, () => { if (i >= 0) begun[i] = now(); });
  await one(-1);
  await settled(pool, worker, 1); // it is up
  for (let i = 1; i < warmUp; i++) { await one(-1); await sleep(Math.min(o.every, 10)); }
  let next = now();
  for (let i = 0; i < o.jobs; i++) {
    next += o.every;
    await sleep(Math.max(0, next - now()));
    await one(i);
  }
  await settled(pool, worker, o.jobs + warmUp);
  await worker.stop();
  const took = Array.from(new Float64Array(starts), (start, i) => start - begun[i]).sort((a, b) => a - b);
  const at = (q) => took[Math.min(Math.floor(q * took.length), took.length - 1)];
  return { p50_ms: at(0.5), p95_ms: at(0.95), p99_ms: at(0.99), max_ms: at(1) };
}

async function enqueue(pool, url, o) {
  await pool.query("create table public.orders (id bigint generated always as identity primary key, customer text not null, placed_at timestamptz not null default now())");
  await calm(pool);
  const clients = await Promise.all(Array.from({ length: 64 }, () => pool.connect())); // connecting is not to be measured
  clients.forEach((client) => client.release());
  let committed = 0;
  const started = now();
  await Promise.all(Array.from({ length: 64 }, async () => {
    while (now() - started < o.duration) {
      await commit(pool, 1, (tx) => tx.query({ name: "order", text: "insert into public.orders (customer) values ($1)", values: ["somebody"] }));
      committed++;
    }
  }));
  return { tx_per_s: perSecond(committed, started) };
}

async function heldSnapshot(pool, url, o) {
  const burn = async () => {
    await insert(pool, o.jobs);
    const worker = await load(o.settings, url);
    const started = now();
    worker.start();
    await settled(pool, worker, o.jobs);
    const rate = perSecond(o.jobs, started);
    await worker.stop();
    return rate;
  };
  await calm(pool);
  const clean = await burn();
  await calm(pool);
  const forgotten = await pool.connect();
  await forgotten.query("begin isolation level repeatable read");
  await forgotten.query("select count(*) from pg_class");
  const held = await burn();
  await forgotten.query("rollback");
  forgotten.release();
  return { clean_jobs_per_s: clean, held_jobs_per_s: held, kept: held / clean };
}

// query runs one statement on a connection of its own.
async function query(url, text) {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  const result = await client.query(text);
  await client.end();
  return result;
}

function peakMiB() {
  try {
    return Number(/VmHWM:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]) / 1024;
  } catch {
    return 0;
  }
}

// ---- the command ----------------------------------------------------------

const workloads = { burndown, bulk, steady, latency, enqueue, "held-snapshot": heldSnapshot };

async function main() {
  const { values: v, positionals: [workload, ...rest] } = parseArgs({
    allowPositionals: true,
    options: Object.fromEntries(["database-url", "jobs", "clients", "duration", "every", "threads", "concurrency", "queue", "delay"].map((name) => [name, { type: "string" }])),
  });
  const number = (name, fallback) => Number(v[name] ?? fallback);
  const milliseconds = (name, fallback) => (v[name] ? parseFloat(v[name]) * (v[name].endsWith("ms") ? 1 : 1000) : fallback); // 10ms, 5s
  const settings = { threads: number("threads", 1), jobs: number("concurrency", 0), queue: number("queue", 0), delay: number("delay", -1) };
  if (workload === "worker") return hold(settings, ...rest);

  const name = `graphile_bench_${process.pid}`;
  const server = new pg.Client({ connectionString: v["database-url"] });
  await server.connect();
  await server.query(`create database ${name} template template0`);
  const url = new URL(v["database-url"]);
  url.pathname = "/" + name;
  const o = { jobs: number("jobs", 100_000), clients: number("clients", 2), duration: milliseconds("duration", 10_000), every: milliseconds("every", 10), settings };
  const pool = new pg.Pool({ connectionString: url.href, max: 72 });
  pool.on("error", () => {}); // of idle connections, when the database is dropped
  try {
    await runMigrations({ connectionString: url.href, logger: quiet });
    console.log(JSON.stringify({ workload, ...(await workloads[workload](pool, url.href, o)) }));
  } finally {
    await server.query(`drop database ${name} with (force)`);
    process.exit();
  }
}

if (isMainThread) await main();
else await workInThread(workerData);
