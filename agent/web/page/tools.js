// SPDX-License-Identifier: BSD-2-Clause

// Views that ask for something: ports, addresses, states, events, a trace, a capture.

import { h, $, put, attr, bits, short, count, span, clock, plural, size, ask as confirm, say, byName, pieces, READING } from './dom.js'
import { get, ask, url } from './api.js'
import { store, vlanText, halted, keyOf } from './store.js'
import { Table, narrow } from './table.js'

const link = (p) => `#/port/${encodeURIComponent(p.master)}/${encodeURIComponent(p.ifname)}`

// linked puts a link to a port into a cell, and uses the link that is there.
function linked(cell, row, text = row.ifname) {
  let a = cell.firstElementChild
  if (!a) cell.append(a = h('a', { class: 'mono' }))
  put(a, text || '')
  attr(a, 'href', link(row))
}

function marked(cell, text, mark) {
  put(cell, text)
  attr(cell, 'data-mark', mark)
  cell.classList.toggle('st-bad', mark === 'bad')
  cell.classList.toggle('st-off', mark === 'off')
}

const rate = (n, text) => (n > 0 ? text(n) : '–')
const about = (out, word) => (n, all) => put($(out), n === all ? plural(all, word) : `${count(n)} of ${plural(all, word)}`)

function searched(field, table) {
  $(field).addEventListener('input', (e) => table.find(e.target.value))
  $(field).addEventListener('keydown', (e) => {
    if (e.key === 'Escape' && e.target.value) { e.target.value = ''; table.find('') }
    if (e.key === 'ArrowDown') { e.preventDefault(); table.root.focus() }
  })
}

// ---- ports

export const ports = {
  start() {
    const t = this.table = new Table('Ports', [
      { key: 'ifname', label: 'Port', width: 'minmax(90px, 1.4fr)', narrow: 'minmax(60px, 1fr)', natural: true, draw: (c, r) => linked(c, r) },
      { key: 'master', label: 'Bridge', width: 'minmax(60px, .8fr)', natural: true, lo: true, mono: true },
      { key: (r) => halted(r) || r.state, label: 'State', width: 'minmax(90px, 1.2fr)', narrow: '76px', draw: (c, r) => { const bad = halted(r); marked(c, bad || r.state, bad ? 'bad' : r.state === 'forwarding' ? '' : 'off') } },
      { key: 'type', label: 'Type', width: '62px', lo: true, text: (r) => (r.type === 'netdev' ? 'device' : r.type) },
      { key: (r) => vlanText(r), label: 'VLANs', width: 'minmax(70px, 1fr)', natural: true, lo: true, text: (r) => vlanText(r) || '–' },
      { key: (r) => r.now?.rxBits || 0, label: 'In', width: '92px', narrow: '44px', num: true, desc: true, text: (r) => rate(r.now?.rxBits, narrow.matches ? short : bits) },
      { key: (r) => r.now?.txBits || 0, label: 'Out', width: '92px', narrow: '44px', num: true, desc: true, text: (r) => rate(r.now?.txBits, narrow.matches ? short : bits) },
      { key: (r) => r.now?.rxFrames || 0, label: 'Frames in', width: '78px', num: true, desc: true, lo: true, text: (r) => rate(r.now?.rxFrames, (n) => short(n) + '/s') },
      { key: (r) => r.now?.txFrames || 0, label: 'Frames out', width: '82px', num: true, desc: true, lo: true, text: (r) => rate(r.now?.txFrames, (n) => short(n) + '/s') },
      { key: (r) => r.dropRate, label: 'Drops', width: '72px', narrow: '50px', num: true, desc: true, draw: (c, r) => marked(c, rate(r.dropRate, (n) => short(n) + '/s'), r.dropRate > 0 ? 'bad' : '') },
      { key: 'fdb_count', label: 'Addresses', width: '78px', num: true, desc: true, lo: true, text: (r) => count(r.fdb_count) },
      { key: (r) => r.description || '', label: 'Description', width: 'minmax(60px, 1.2fr)', natural: true, lo: true, text: (r) => r.description || '' },
    ], { empty: 'No port yet. bascule port add BRIDGE DEVICE adds one.' })
    t.onshow = about('n-ports', 'port')
    $('t-ports').append(t.root)
    searched('q-ports', t)
  },
  show() { this.config() },
  config() {
    for (const p of store.ports.values()) p.hay = [p.ifname, p.description, p.master, halted(p) || p.state, p.type, p.owner?.name, p.owner?.id, p.peer, `vlan ${vlanText(p)}`].join(' ').toLowerCase()
    if (store.agent) this.table.set([...store.ports.values()])
  },
  live() {
    if (this.table.columns[this.table.sort].desc) this.table.order() // by a rate
    this.table.draw()
  },
}

// ---- addresses

export const addresses = {
  start() {
    const t = this.table = new Table('Addresses', [
      { key: 'mac', label: 'Address', width: 'minmax(150px, 1.2fr)', narrow: '138px', mono: true },
      { key: 'ifname', label: 'Port', width: 'minmax(80px, 1fr)', narrow: 'minmax(50px, 1fr)', natural: true, draw: (c, r) => linked(c, r) },
      { key: (r) => r.vlan || 0, label: 'VLAN', width: '56px', narrow: '42px', num: true, text: (r) => String(r.vlan || '–') },
      { key: 'master', label: 'Bridge', width: 'minmax(60px, .8fr)', natural: true, lo: true, mono: true },
      { key: 'kind', label: 'Kind', width: '80px', lo: true },
      { key: (r) => r.updated ?? -1, label: 'Seen', width: '84px', narrow: '52px', num: true, text: (r) => (r.updated !== undefined ? span(r.updated) : narrow.matches ? r.kind : '–') },
    ], { empty: 'No address yet. A bridge learns one from each frame that comes in.' })
    t.onshow = (n, all) => { about('n-addresses', 'address')(n, all); if (this.read) put($('n-addresses'), `${$('n-addresses').textContent}, at ${clock(this.read)}`) }
    $('t-addresses').append(t.root)
    searched('q-addresses', t)
    $('r-addresses').addEventListener('click', () => this.again(true))
  },
  show() { this.again() },
  async again(told) {
    if (this.busy) return
    this.busy = true
    try {
      const rows = await get('fdb/show')
      await pieces(rows, (e) => {
        e.kind = e.state || e.flags[0] || 'learned'
        e.hay = `${e.mac} ${e.ifname} ${e.master} vlan ${e.vlan || 0} ${e.kind}`.toLowerCase()
      })
      this.read = new Date()
      this.table.problem = ''
      this.table.set(rows)
      if (told) say(`${plural(rows.length, 'address')} read`)
    } catch (e) {
      this.table.fail(e.message)
    }
    this.busy = false
  },
  // The table changes with each frame: it is read every ten seconds while it is seen.
  live() { if (this.read && Date.now() - this.read > 10000) this.again() },
}

// ---- states

const end = (host, port) => (port ? (host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`) : host)

export const states = {
  start() {
    const t = this.table = new Table('States of pf', [
      { key: 'protocol', label: 'Proto', width: '58px', narrow: '34px' },
      { key: 'from', label: 'From', width: 'minmax(120px, 1.4fr)', narrow: 'minmax(50px, 1fr)', natural: true, mono: true },
      { key: 'dest', label: 'To', width: 'minmax(120px, 1.4fr)', narrow: 'minmax(50px, 1fr)', natural: true, mono: true },
      { key: 'how', label: 'State', width: 'minmax(110px, 1.2fr)', lo: true },
      { key: (r) => r.in || '', label: 'In', width: '76px', natural: true, lo: true, mono: true, text: (r) => r.in || '–' },
      { key: (r) => r.out || '', label: 'Out', width: '76px', natural: true, lo: true, mono: true, text: (r) => r.out || '–' },
      { key: (r) => r.bytes[0] + r.bytes[1], label: 'Bytes', width: '74px', num: true, desc: true, lo: true, text: (r) => size(r.bytes[0] + r.bytes[1]) },
      { key: 'age', label: 'Age', width: '66px', num: true, desc: true, lo: true, text: (r) => span(r.age) },
      { key: 'expires', label: 'Ends in', width: '66px', num: true, lo: true, text: (r) => span(r.expires) },
      { label: '', width: '52px', narrow: '46px', draw: (c, r) => this.button(c, r) },
    ], { empty: 'No state. pf keeps one for each connection that a rule passes.' })
    t.onshow = about('n-states', 'state')
    $('t-states').append(t.root)
    searched('q-states', t)
    $('r-states').addEventListener('click', () => this.again(true))
    $('kill-host').addEventListener('submit', async (e) => {
      e.preventDefault()
      const host = e.target.elements.host.value.trim()
      const many = (this.table.all || []).filter((r) => r.src === host || r.dst === host).length
      if (host && await confirm(`Kill the states of ${host}?`, `${many ? `${plural(many, 'state')} in sight. ` : ''}The rules judge its connections again, and many will break.`, 'Kill')) {
        this.kill(store.bridges.flatMap((b) => [{ bridge: b.ifname, from: host }, { bridge: b.ifname, to: host }]))
      }
    })
  },
  button(cell, row) {
    let b = cell.firstElementChild
    if (!store.write) return b?.remove()
    if (!b) cell.append(b = h('button', { type: 'button', class: 'danger', onclick: () => this.one(b.row) }, 'Kill'))
    b.row = row
    attr(b, 'aria-label', `Kill ${row.protocol} ${row.from} to ${row.dest}`)
  },
  async one(row) {
    if (await confirm('Kill this state?', `${row.protocol} ${row.from} → ${row.dest}. The rules judge the connection again.`, 'Kill')) this.kill([{ bridge: row.master, id: row.id }])
  },
  // kill kills what is asked for: each is a body of the API.
  async kill(list) {
    try {
      let n = 0
      for (const body of list) for (const a of await get('pf/kill-states', {}, { method: 'POST', body })) n += a.removed
      say(`${plural(n, 'state')} killed`)
      await this.again()
    } catch (e) {
      $('pf').replaceChildren(h('p', { class: 'error', role: 'alert' }, e.message))
    }
  },
  show() { this.config(); this.again() },
  config() {
    $('kill-host').hidden = !store.write
    if (!this.read) this.again()
    else this.table.draw()
  },
  async again(told) {
    if (this.busy || !store.agent) return
    this.busy = true
    try {
      const all = (path) => Promise.all(store.bridges.map((b) => get(path, { bridge: b.ifname })))
      const [lists, info] = await Promise.all([all('pf/states'), all('pf/info')])
      const rows = lists.flat()
      await pieces(rows, (r) => {
        r.from = end(r.src, r.src_port)
        r.dest = end(r.dst, r.dst_port)
        r.how = [r.src_state, r.dst_state].filter(Boolean).join(':')
        r.hay = [r.protocol, r.from, r.dest, r.how, r.in, r.out, r.label, r.master, r.vlan && `vlan ${r.vlan}`, r.translated && end(r.translated.src, r.translated.src_port), r.translated && end(r.translated.dst, r.translated.dst_port)].filter(Boolean).join(' ').toLowerCase()
      })
      this.read = Date.now()
      const on = info.filter((i) => i.enabled)
      put($('pf'), info.length ? info.map((i) => `pf of ${i.master} is ${i.enabled ? 'on' : 'off'}: ${plural(i.states, 'state')}, ${plural(i.source_nodes, 'source')}`).join(' · ') : 'No bridge has pf.')
      this.table.emptyText = on.length ? 'No state. pf keeps one for each connection that a rule passes.' : 'pf is not enabled on any bridge. bascule pfctl -b BRIDGE -f /etc/pf.conf loads rules.'
      this.table.problem = ''
      this.table.set(rows)
      if (told) say(`${plural(rows.length, 'state')} read`)
    } catch (e) {
      this.table.fail(e.message)
    }
    this.busy = false
  },
  live() { if (this.read && Date.now() - this.read > 10000) this.again() },
}

// ---- events

const what = (e) => [e.mac, e.vlan && `vlan ${e.vlan}`, e.from && `from ${e.from}`, e.reason, e.seconds && `for ${span(e.seconds)}`, e.count > 1 && `× ${count(e.count)}`].filter(Boolean).join(' · ')

export const events = {
  start() {
    const t = this.table = new Table('Events', [
      { key: 'n', label: 'Time', width: '74px', narrow: '62px', desc: true, text: (e) => clock(e.time) },
      { key: 'event', label: 'Event', width: 'minmax(90px, .7fr)', narrow: '66px', draw: (c, e) => marked(c, e.event, /drops|blocked|loop|refused|gone/.test(e.event) ? 'bad' : '') },
      { key: (e) => e.ifname || '', label: 'Port', width: 'minmax(80px, .8fr)', narrow: '56px', natural: true, draw: (c, e) => linked(c, e) },
      { key: 'master', label: 'Bridge', width: 'minmax(60px, .6fr)', natural: true, lo: true, mono: true },
      { key: what, label: 'What', width: 'minmax(120px, 3fr)', narrow: 'minmax(60px, 2fr)', text: what },
    ], { desc: true, empty: 'Nothing has happened since this page was opened.' })
    t.onshow = about('n-events', 'event')
    $('t-events').append(t.root)
    searched('q-events', t)
  },
  show() { if (store.agent) this.table.set(store.events) },
  config() { this.show() },
  live() { if (this.fresh) { this.fresh = false; this.table.set(store.events) } },
}

// ---- what the first view has beside the picture

export function aside() {
  const now = Date.now() / 1000
  const by = new Map()
  for (const d of store.drops.values()) {
    const r = by.get(d.reason) || { reason: d.reason, rate: 0, frames: 0, at: 0, ports: [] }
    if (now - d.at < 2.5) r.rate += d.rate
    r.frames += d.frames
    r.at = Math.max(r.at, d.at)
    r.ports.push(d)
    by.set(d.reason, r)
  }
  const list = [...by.values()].sort((a, b) => b.rate - a.rate || b.at - a.at).slice(0, 10)
  $('drops').replaceChildren(list.length ? h('table', {}, h('thead', {}, h('tr', {}, ['reason', 'most by'].map((t) => h('th', { scope: 'col' }, t)), ['now', 'frames', 'last'].map((t) => h('th', { scope: 'col', class: 'num' }, t)))),
    h('tbody', {}, list.map((r) => h('tr', {}, h('td', {}, r.reason, h('span', { class: 'why' }, store.reasons[r.reason]?.text)),
      h('td', {}, r.ports.sort((a, b) => b.frames - a.frames).slice(0, 2).flatMap((d, i) => [i ? ', ' : '', h('a', { href: link({ master: d.bridge, ifname: d.port }) }, d.port)]), r.ports.length > 2 && ` and ${r.ports.length - 2} more`),
      h('td', { class: 'num st-bad' }, r.rate ? short(r.rate) + '/s' : ''), h('td', { class: 'num' }, count(r.frames)), h('td', { class: 'num' }, r.rate ? 'now' : `${span(now - r.at)} ago`)))))
    : h('p', { class: 'empty' }, store.agent ? 'No frame has been dropped.' : READING))
  const last = store.events.slice(-9).reverse()
  $('last').replaceChildren(...(last.length ? last.map((e) => h('li', {}, h('time', {}, clock(e.time)), h('span', {}, h('b', {}, e.event), ` ${e.ifname || e.master} `, what(e)))) : [h('p', { class: 'empty' }, store.agent ? 'Nothing has happened.' : READING)]))
}

export function trees() {
  $('tree-panel').hidden = !store.trees.size
  const rows = [...store.trees].flatMap(([bridge, t]) => (t.ports || []).map((p) => h('tr', {}, h('td', {}, h('a', { href: link({ master: bridge, ifname: p.ifname }) }, p.ifname)), h('td', {}, bridge), h('td', {}, p.role),
    h('td', { class: p.state === 'forwarding' ? null : 'st-bad' }, p.state), h('td', { class: 'num' }, count(p.cost)))))
  $('tree').replaceChildren(
    ...[...store.trees].map(([bridge, t]) => h('p', { class: 'facts-line' }, `${bridge}: ${t.root_port ? `root ${t.root}` : `is the root`}; ${plural(t.topology_changes, 'change')} of topology${t.since_change >= 0 ? `, the last ${span(t.since_change)} ago` : ''}`)),
    rows.length ? h('table', {}, h('thead', {}, h('tr', {}, ['port', 'bridge', 'role', 'state'].map((x) => h('th', { scope: 'col' }, x)), h('th', { scope: 'col', class: 'num' }, 'cost'))), h('tbody', {}, rows.slice(0, 24))) : '')
}

// ---- trace and capture

function options(select, list, first) {
  const was = select.value
  const want = [...(first === undefined ? [] : [['', first]]), ...list.map((x) => [x, x])]
  if (want.map((w) => w[0]).join('\n') === [...select.options].map((o) => o.value).join('\n')) return
  select.replaceChildren(...want.map(([value, text]) => h('option', { value }, text)))
  if (want.some(([v]) => v === was)) select.value = was
}

// chosen fills a form's lists of bridges and ports.
function chosen(form, portField, first) {
  const f = form.elements
  options(f.bridge, store.bridges.map((b) => b.ifname))
  options(f[portField], [...store.ports.values()].filter((p) => p.master === f.bridge.value).map((p) => p.ifname).sort(byName), first)
}

export const trace = {
  start() {
    const form = $('trace'), f = form.elements
    f.bridge.addEventListener('change', () => chosen(form, 'in'))
    f.kind.addEventListener('change', () => this.kinds())
    form.addEventListener('submit', (e) => { e.preventDefault(); this.go() })
    this.kinds()
  },
  show() { this.config() },
  config() { chosen($('trace'), 'in') },
  kinds() {
    const form = $('trace'), kind = form.elements.kind.value
    for (const e of form.querySelectorAll('[data-for]')) e.hidden = !e.dataset.for.split(' ').includes(kind)
    for (const name of ['src', 'dst', 'vlan', 'size']) form.elements[name].closest('label').hidden = kind === 'raw'
  },
  async go() {
    const form = $('trace'), f = form.elements, kind = f.kind.value
    const text = (name) => f[name].value.trim() || undefined
    const number = (name) => (f[name].value.trim() === '' ? undefined : Number(f[name].value))
    const body = { bridge: f.bridge.value, in: f.in.value }
    if (kind === 'raw') body.frame = text('frame')
    else {
      Object.assign(body, { src: text('src'), dst: text('dst'), vlan: number('vlan'), size: number('size') })
      if (kind === 'arp') Object.assign(body, { arp: 'request', spa: text('spa'), tpa: text('tpa') })
      else if (kind) {
        Object.assign(body, { ip: text('ip'), to: text('to') })
        if (kind === 'icmp') body.icmp = true
        else Object.assign(body, { [kind]: number('dport') ?? 443, sport: number('sport') })
      }
    }
    const out = $('traced')
    try {
      const [t] = await get('trace', body)
      const drop = /^dropped/.test(t.verdict)
      const reason = /^dropped: ([\w-]+)/.exec(t.verdict)?.[1]
      out.replaceChildren(
        h('p', { class: `verdict${drop ? ' bad' : ''}` }, h('b', {}, t.verdict), reason && store.reasons[reason] ? `: ${store.reasons[reason].text}` : '',
          t.out.length ? h('span', {}, '; it leaves by ', t.out.flatMap((p, i) => [i ? ', ' : '', store.ports.has(keyOf(t.master, p)) ? h('a', { class: 'mono', href: link({ master: t.master, ifname: p }) }, p) : p])) : ''),
        h('ol', { class: 'steps' }, t.steps.map((s) => h('li', {}, h('b', {}, s.name), h('span', {}, s.text)))))
    } catch (e) {
      out.replaceChildren(h('p', { class: 'error', role: 'alert' }, e.message))
    }
  },
}

export const capture = {
  start() {
    const form = $('capture'), f = form.elements
    f.bridge.addEventListener('change', () => chosen(form, 'port', 'all'))
    form.addEventListener('submit', (e) => { e.preventDefault(); this.go() })
    f.stop.addEventListener('click', () => this.stop?.abort())
  },
  show() { this.config() },
  config() { chosen($('capture'), 'port', 'all') },
  async go() {
    const f = $('capture').elements, out = $('captured')
    const bridge = f.bridge.value
    const chunks = []
    let bytes = 0, problem
    this.stop = new AbortController()
    f.start.disabled = true
    f.stop.disabled = false
    put(out, 'Capturing; no frame yet.')
    try {
      const answer = await ask('capture', {
        bridge, port: f.port.value, dropped: f.dropped.checked, count: f.count.value, seconds: f.seconds.value, snaplen: f.snaplen.value,
      }, { signal: this.stop.signal })
      const reader = answer.body.getReader()
      for (;;) {
        const { done, value } = await reader.read()
        if (done) break
        chunks.push(value)
        bytes += value.length
        put(out, `Capturing: ${size(bytes)}.`)
        if (bytes > 256e6) this.stop.abort()
      }
    } catch (e) {
      if (e.name !== 'AbortError') problem = e
    }
    f.start.disabled = false
    f.stop.disabled = true
    if (problem && !bytes) {
      out.replaceChildren(h('p', { class: 'error', role: 'alert' }, problem.message))
      return
    }
    if (!bytes) {
      put(out, 'Stopped before a frame came.')
      return
    }
    const file = `${bridge}-${new Date().toISOString().replace(/[-:.]/g, '').slice(0, 15)}.pcapng`
    const href = URL.createObjectURL(new Blob(chunks, { type: 'application/x-pcapng' }))
    const a = h('a', { href, download: file }, file)
    out.replaceChildren(h('p', {}, 'Saved as ', a, `, ${size(bytes)}.`, problem ? ` It ends early: ${problem.message}` : ''))
    a.click()
    clearTimeout(this.old)
    this.old = setTimeout(() => URL.revokeObjectURL(href), 600000)
  },
}
