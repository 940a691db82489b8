import { createHash } from 'node:crypto'
import { existsSync, readFileSync, readdirSync, writeFileSync, mkdirSync, statSync } from 'node:fs'
import { dirname, join, posix, relative } from 'node:path'
import { fileURLToPath } from 'node:url'

const docs = join(dirname(fileURLToPath(import.meta.url)), '..', '..')
const repository = 'https://github.com/posthaste-dev/posthaste'

// What is no part of the manual: evidence, and pages for people who change the code. Links lead to the repository.
const left = /^(site|adr|model|benchmarks)\/|^(proof|mutants|architecture|races|from-main)\.md$/

const pages = list('').filter((page) => page.endsWith('.md') && !left.test(page))

function list(folder) {
	return readdirSync(join(docs, folder), { withFileTypes: true }).flatMap((entry) => {
		const path = posix.join(folder, entry.name)
		if (entry.name === 'node_modules' || left.test(path + '/')) return []
		return entry.isDirectory() ? list(path) : [path]
	})
}

const text = (page) => readFileSync(join(docs, page), 'utf8')
const title = (page) => (/^# (.+)$/m.exec(text(page)) ?? [page, page])[1].replaceAll('`', '')
const url = (page) => '/' + page.replace(/README\.md$/, '').replace(/\.md$/, '')

// README.md is the map: its sections are the groups of the sidebar, its links the pages in their order.
function sidebar() {
	const listed = new Set(['README.md'])
	const groups = text('README.md').split(/^## /m).slice(1).map((section) => {
		const items = [...section.matchAll(/\]\(([^)#]+\.md)\)/g)].map((m) => m[1]).filter((page) => pages.includes(page))
		items.forEach((page) => listed.add(page))
		return { text: section.split('\n')[0], items: items.map((page) => ({ text: title(page), link: url(page) })) }
	})
	const others = pages.filter((page) => !listed.has(page)).map((page) => ({ text: title(page), link: url(page) }))
	if (others.length) groups.push({ text: 'More', items: others })
	return groups.filter((group) => group.items.length)
}

// A link to a file that is no page of the manual leads to the repository.
function outside(md) {
	const rewrite = (token, attribute, page, kind) => {
		const target = token.attrGet(attribute)
		if (!target || /^([a-z]+:|\/|#)/.test(target)) return
		const [file, fragment] = target.split('#')
		const path = posix.normalize(posix.join('docs', posix.dirname(page), file)).replace(/\/$/, '')
		if (pages.includes(path.replace(/^docs\//, ''))) return
		token.attrSet(attribute, `${repository}/${kind(path)}/main/${path}` + (fragment ? '#' + fragment : ''))
	}
	const treeOrBlob = (path) => {
		const at = join(docs, '..', path)
		if (!existsSync(at)) throw new Error(`${path} is linked to and is not there`)
		return statSync(at).isDirectory() ? 'tree' : 'blob'
	}
	md.core.ruler.push('outside', (state) => {
		const page = relative(docs, state.env.path ?? join(docs, state.env.relativePath))
		for (const token of state.tokens) {
			for (const child of token.children ?? []) {
				if (child.type === 'link_open') rewrite(child, 'href', page, treeOrBlob)
				// Pictures of the console would be half of the site, in a program that has the console itself.
				if (child.type === 'image' && child.attrGet('src').endsWith('.png')) {
					rewrite(child, 'src', page, treeOrBlob)
					child.type = 'html_inline'
					child.content = `<a href="${child.attrGet('src')}">Picture: ${md.utils.escapeHtml(child.content)}</a>`
				}
			}
		}
	})
}

// slugify is what GitHub does, so that an anchor is the same on both.
const slugify = (heading) => heading.trim().toLowerCase().replace(/[^\p{L}\p{N}_ -]/gu, '').replaceAll(' ', '-')

// The pages are outside of the folder that has node_modules: what renders them to HTML finds vue when it runs.
function vueOutside(id, _, { ssr }) {
	return ssr && /^vue(\/|$)/.test(id) ? { id, external: true } : null
}

// Each npm package whose code or style is in the site is listed with its licence in deploy/release/parts/assets.txt.
function parts() {
	const assets = readFileSync(join(docs, '..', 'deploy/release/parts/assets.txt'), 'utf8')
	const listed = [...assets.matchAll(/^(@?[^@# ]+)@\S+ /gm)].map((m) => m[1])
	return {
		name: 'parts-are-listed',
		generateBundle(_, bundle) {
			const bundled = Object.values(bundle).flatMap((chunk) => Object.entries(chunk.modules ?? {}))
				.filter(([id, module]) => module.renderedLength > 0 || id.split('?')[0].endsWith('.css'))
				.map(([id]) => /.*\/node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(id)?.[1])
			const missing = [...new Set(bundled)].filter((name) => name && !listed.includes(name))
			if (missing.length) this.error(`the site has code of ${missing.sort().join(', ')}: list it in deploy/release/parts/assets.txt`)
		},
	}
}

export default {
	lang: 'en',
	title: 'Posthaste',
	description: 'A transactional outbox and job queue for Postgres, in Go',
	base: '/manual/',
	srcDir: '..',
	srcExclude: ['site/**', 'adr/**', 'model/**', 'proof.md', 'mutants.md', 'architecture.md', 'races.md', 'from-main.md'],
	rewrites: { 'README.md': 'index.md' },
	cleanUrls: true,
	metaChunk: true,
	vite: { plugins: [{ name: 'vue-of-this-folder', enforce: 'pre', resolveId: vueOutside }, parts()] },
	lastUpdated: false,
	// The usual themes have colours that are too faint on the background of blocks (console/browsertest).
	markdown: {
		config: outside, anchor: { slugify }, toc: { slugify },
		theme: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
	},
	themeConfig: {
		search: { provider: 'local' },
		sidebar: sidebar(),
		nav: [],
		outline: [2, 3],
		socialLinks: [],
		docFooter: { prev: false, next: false },
	},

	// llms.txt lists the pages, and each page is there as Markdown, for programs that read it.
	buildEnd({ outDir }) {
		const about = (page) => (/^(?!#|<|\||`)\S.*(\n\S.*)*/m.exec(text(page).replace(/^# .*$/m, '')) ?? [''])[0].replaceAll('\n', ' ').replace(/(\.|:) .*/, '$1')
		const lines = ['# Posthaste', '', '> A transactional outbox and job queue for Postgres, in Go.', '']
		for (const group of sidebar()) {
			lines.push(`## ${group.text}`, '')
			for (const item of group.items) {
				lines.push(`- [${item.text}](/manual${item.link}.md): ${about(item.link.slice(1) + '.md')}`)
			}
			lines.push('')
		}
		writeFileSync(join(outDir, 'llms.txt'), lines.join('\n'))
		for (const page of pages) {
			const to = join(outDir, page === 'README.md' ? 'index.md' : page)
			mkdirSync(dirname(to), { recursive: true })
			writeFileSync(to, text(page))
		}
		// The scripts that pages have in themselves, for the Content-Security-Policy.
		const hashes = new Set()
		for (const page of pages) {
			const html = readFileSync(join(outDir, page === 'README.md' ? 'index.html' : page.replace(/\.md$/, '.html')), 'utf8')
			for (const [, script] of html.matchAll(/<script(?![^>]*\bsrc=)[^>]*>([\s\S]*?)<\/script>/g)) {
				hashes.add(`'sha256-${createHash('sha256').update(script).digest('base64')}'`)
			}
		}
		writeFileSync(join(outDir, 'scripts.txt'), [...hashes].sort().join(' '))
	},
}
