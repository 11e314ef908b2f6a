// SPDX-License-Identifier: BSD-2-Clause

// One port: what it is, its last ten minutes, its counters, its drops.

import { h, $, put, attr, bits, short, count, clock, size, span, READING } from './dom.js'
import { store, vlanText, halted, counters } from './store.js'

let current, charts = [], uplot, parts

function load() {
  if (!uplot) {
    document.head.append(h('link', { rel: 'stylesheet', href: 'uplot.css' }))
    uplot = import('./uplot.js').then((m) => m.default)
    uplot.catch(() => { uplot = null })
  }
  return uplot
}

const CHARTS = [
  { title: 'Bits a second', fields: [['rxBits', 'in', '--v0', []], ['txBits', 'out', '--v1', [5, 3]]], text: bits },
  { title: 'Frames a second', fields: [['rxFrames', 'in', '--v0', []], ['txFrames', 'out', '--v1', [5, 3]]], text: (n) => short(n) + '/s' },
  { title: 'Frames dropped a second', fields: [['drops', 'dropped', '--bad', []]], text: (n) => short(n) + '/s' },
]

export function show(key) {
  const p = store.ports.get(key)
  leave()
  current = key
  const name = key.split('/')
  put($('h-port'), p ? `${p.ifname} of ${p.master}` : `${name[1]} of ${name[0]}`)
  if (!p) {
    $('port').replaceChildren(h('p', { class: 'empty' }, ...(store.agent ? ['There is no such port. ', h('a', { href: '#/ports' }, 'All ports')] : [READING])))
    return
  }
  parts = { facts: h('dl', { class: 'facts-grid' }), charts: h('div', { class: 'charts' }), counters: h('tbody'), drops: h('div') }
  $('port').replaceChildren(parts.facts, parts.charts,
    h('div', { class: 'pair' },
      h('section', { class: 'panel', 'aria-labelledby': 'h-counters' }, h('h2', { id: 'h-counters' }, 'Counters', h('small', {}, 'since the port was added')),
        h('table', {}, h('thead', {}, h('tr', {}, ['', 'in', 'out'].map((t, i) => h('th', { scope: 'col', class: i ? 'num' : null }, t)))), parts.counters)),
      h('section', { class: 'panel', 'aria-labelledby': 'h-pdrops' }, h('h2', { id: 'h-pdrops' }, 'Drops', h('small', {}, 'of frames that came in here')), parts.drops)))
  config()
  load().then((U) => current === key && draw(U), (e) => parts.charts.replaceChildren(h('p', { class: 'error' }, e.message)))
}

// Settings that are worth a line where they are not as they begin.
const SETTINGS = [
  ['isolated', 'isolated'], ['hairpin', 'hairpin'], ['locked', 'locked'], ['mab', 'mab'], ['source_guard', 'source guard'], ['trusted', 'trusted'],
  ['block_non_ip', 'IP only'], ['route', 'routes'], ['guard', 'BPDU guard'], ['bpdu_filter', 'BPDU filter'], ['root_block', 'root guard'],
]

export function config() {
  const p = store.ports.get(current)
  if (!p || !parts) return current && store.agent && show2()
  const on = SETTINGS.filter(([k]) => p[k]).map(([, t]) => t)
  if (!p.learning) on.push('does not learn')
  if (!p.flood) on.push('no unknown unicast out')
  if (!p.mcast_flood) on.push('no multicast out')
  if (!p.bcast_flood) on.push('no broadcast out')
  const limits = [['in', p.rate_in], ['out', p.rate_out]].filter(([, l]) => l && l !== 'none').map(([way, l]) => `${way} ${l}`)
  const t = p.tree
  const facts = [
    ['Description', p.description], ['State', halted(p) || p.state], ['Type', p.type === 'netdev' ? 'device' : p.type], ['Hook', p.hook], ['Leads to', p.peer || p.link],
    ['Owner', p.owner && [p.owner.name, p.owner.id].filter(Boolean).join(', ')], ['Taken by', p.taken_by], ['Device', (p.flags || []).includes('UP') ? 'up' : p.ifindex ? 'down' : ''],
    ['At the device', (p.findings || []).map((f) => f.text).join(' — ')],
    ['MTU', p.mtu && `${p.mtu} bytes`], ['VLANs', vlanText(p)], ['Addresses', p.fdb_max ? `${count(p.fdb_count)} of ${count(p.fdb_max)}` : count(p.fdb_count)],
    ['Spanning tree', t && `${t.role}, ${t.state}, cost ${count(t.cost)}`], ['Limits', limits.join(', ')], ['Settings', on.join(', ')],
  ].filter(([, v]) => v)
  parts.facts.replaceChildren(...facts.map(([k, v]) => h('div', {}, h('dt', {}, k), h('dd', {}, v))))
  live()
}

function show2() { show(current) }

const cssColor = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()

function draw(U) {
  const p = store.ports.get(current)
  if (!p) return
  const soft = cssColor('--soft'), rule = cssColor('--faint')
  charts = CHARTS.map((c) => {
    const about = h('p', { class: 'sr', id: `about-${c.fields[0][0]}` })
    const box = h('div', { class: 'chart', role: 'img', 'aria-labelledby': about.id })
    const since = h('small', {}, last(p))
    parts.charts.append(h('figure', { class: 'panel' }, h('h2', {}, c.title, since), box, about))
    const axis = { stroke: soft, font: '11px system-ui', grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1, size: 4 } }
    const u = new U({
      width: box.clientWidth || 300, height: 150, cursor: { sync: { key: 'port' }, y: false, drag: { x: false, y: false } }, legend: { live: true },
      scales: { x: { time: true, range: () => { const now = Date.now() / 1000; return [now - p.history.span(), now] } }, y: { range: (_, lo, hi) => [0, Math.max(hi || 0, 1) * 1.1] } },
      axes: [{ ...axis, values: (u, list, axis, room, step) => list.map((v) => clock(v * 1000).slice(0, step < 60 ? 8 : 5)), space: 80 },
        { ...axis, size: 56, values: (_, list) => list.map((v) => short(v)), space: 28 }],
      series: [{ label: 'at', value: (_, v) => (v == null ? '–' : clock(v * 1000)) },
        ...c.fields.map(([, label, color, dash]) => ({ label, stroke: cssColor(color), dash, width: 1.5, points: { show: false }, value: (_, v) => (v == null ? '–' : c.text(v)) }))],
    }, p.history.columns(c.fields.map((f) => f[0])), box)
    const watch = new ResizeObserver(([e]) => { const w = Math.floor(e.contentRect.width); if (w && w !== u.width) u.setSize({ width: w, height: 150 }) })
    watch.observe(box)
    return { c, u, about, since, watch }
  })
  tell()
}

const last = (p) => `last ${span(p.history.span())}`

// tell says in words what the charts show, now and then.
function tell() {
  const p = store.ports.get(current)
  for (const { c, about } of charts) {
    const [, ...values] = p.history.columns(c.fields.map((f) => f[0]))
    about.textContent = `${c.title}, ${last(p)}: ` + c.fields.map(([, label], i) => {
      const known = values[i].filter((v) => v !== null)
      if (!known.length) return `${label}: nothing yet`
      return `${label}: now ${c.text(known.at(-1))}, mean ${c.text(known.reduce((a, b) => a + b, 0) / known.length)}, at most ${c.text(Math.max(...known))}`
    }).join('; ') + '.'
  }
}

let ticks = 0
export function live() {
  if (ticks % 2 === 0) counters(current)
  const p = store.ports.get(current)
  if (!p || !parts || $('v-port').hidden) return
  const st = p.stats64 || { rx: {}, tx: {} }
  const rows = [
    ['Bytes', size(st.rx.bytes || 0), size(st.tx.bytes || 0)], ['Frames', count(st.rx.packets || 0), count(st.tx.packets || 0)],
    ['Now', p.now ? bits(p.now.rxBits) : '–', p.now ? bits(p.now.txBits) : '–'], ['', p.now ? `${short(p.now.rxFrames)} frames/s` : '–', p.now ? `${short(p.now.txFrames)} frames/s` : '–'],
['Addresses learned', count(p.learned || 0), ''], ['moved here', count(p.moves || 0), ''], ['refused', count(p.refused || 0), ''],
  ]
  parts.counters.replaceChildren(...rows.map((r) => h('tr', {}, r.map((t, i) => h(i ? 'td' : 'th', i ? { class: 'num' } : { scope: 'row' }, t)))))
  const drops = Object.entries(p.drops || {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1])
  parts.drops.replaceChildren(drops.length ? h('table', {}, h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'reason'), h('th', { scope: 'col', class: 'num' }, 'frames'), h('th', { scope: 'col', class: 'num' }, 'now'))),
    h('tbody', {}, drops.map(([reason, n]) => h('tr', {}, h('td', {}, reason, h('span', { class: 'why' }, store.reasons[reason]?.text)), h('td', { class: 'num' }, count(n)),
      h('td', { class: 'num' }, p.dropRates?.[reason] ? short(p.dropRates[reason]) + '/s' : ''))))) : h('p', { class: 'empty' }, 'None.'))
  for (const { c, u, since } of charts) {
    put(since, last(p))
    u.setData(p.history.columns(c.fields.map((f) => f[0])))
  }
  if (ticks++ % 15 === 0) tell()
}

export function leave() {
  for (const { u, watch } of charts) { watch.disconnect(); u.destroy() }
  charts = []
  current = parts = null
}

// themed draws the charts in the colours of the theme.
export function themed() { if (current) show(current) }
