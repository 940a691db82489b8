// What people would type is among the first three pages that the site's own search finds.
import { readdirSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { resolve } from 'node:path'
import MiniSearch from 'minisearch'

const chunks = resolve('.vitepress/dist/assets/chunks')
const file = readdirSync(chunks).find((name) => name.startsWith('@localSearchIndexroot'))
const { default: json } = await import(pathToFileURL(resolve(chunks, file)))
// The options are those of VitePress' search box.
const index = MiniSearch.loadJSON(json, {
	fields: ['title', 'titles', 'text'],
	storeFields: ['title', 'titles'],
	searchOptions: { fuzzy: 0.2, prefix: true, boost: { title: 4, text: 2, titles: 1 } },
})
const wanted = {
	'dead letters': 'guides/dead-letters',
	'cancel a running job': 'guides/cancel',
	'deadline': 'guides/timeouts',
	'retry backoff': 'guides/retries',
	'cron schedule': 'guides/schedules',
	'idempotency key': 'guides/enqueue',
	'jobs in order': 'guides/keys',
	'rate limit of a queue': 'guides/limits',
	'batch': 'guides/batches',
	'encrypt payload': 'guides/payloads',
	'checkpoint': 'guides/progress',
	'retention': 'operate/operations#retention',
	'pgbouncer pooler': 'operate/rollout#poolers',
	'metrics': 'operate/operations#metrics',
	'row security roles': 'guides/tenants',
	'kafka': 'operate/sinks#kafka-relay-kafka',
	'inbox once': 'guides/consumers#by-id-inbox-once',
	'debezium': 'reference/events#from-debezium',
}
let failed = 0
for (const [query, page] of Object.entries(wanted)) {
	const found = index.search(query).slice(0, 3).map((hit) => hit.id)
	if (!found.some((id) => id.startsWith(`/manual/${page.split('#')[0]}`))) {
		console.error(`search for "${query}" finds ${found.join(', ')}, want ${page}`)
		failed++
	}
}
console.log(`search: ${Object.keys(wanted).length - failed} of ${Object.keys(wanted).length} queries`)
process.exit(failed ? 1 : 0)
