// SPDX-License-Identifier: BSD-2-Clause

// The switch as a picture: a chassis for each bridge, a cell for each port, and the
// cords between ports.

import { h, s, put, attr, $, bits, short, byName, plural } from './dom.js'
import { store, vlansOf, vlanText, halted } from './store.js'

// Kinds of cells, by how many ports the fullest bridge has.
const KINDS = [
  { upto: 24, w: 118, h: 66, gap: 8, lane: 16, big: true },
  { upto: 72, w: 80, h: 36, gap: 6, lane: 14 },
  { upto: Infinity, w: 27, h: 27, gap: 4, lane: 10, tiny: true },
]
const HEAD = 30, PAD = 12

let root, width = 0, cells = new Map(), lit = 0, palette = new Map(), drawn = ''

// Patterns of a VLAN's band: which tenths of it are left out. A colour alone tells
// nothing to many people. No two VLANs have the same colour and the same pattern; where
// there are more VLANs than SIGNS, the rest have a grey band.
const COLOURS = 8
const PATTERNS = [[], [4, 5], [2, 7], [1, 3, 5, 7, 9], [0, 1, 8, 9], [3, 4, 5, 6], [0, 5], [2, 3, 6, 7]]
const SIGNS = COLOURS * PATTERNS.length

export function start(go) {
  root = $('picture')
  new ResizeObserver(([e]) => {
    const w = Math.floor(e.contentRect.width)
    if (w && w !== width) { width = w; draw(true) }
  }).observe(root)
  root.addEventListener('keydown', (e) => move(e))
  root.addEventListener('focusin', (e) => show(e.target.closest?.('.port')))
  root.addEventListener('pointerover', (e) => show(e.target.closest?.('.port, .cord')))
  root.addEventListener('pointerleave', () => show(document.activeElement?.closest?.('.port')))
}

// numbered are the VLANs of the switch with how many ports each has: first those whose band a
// port has, by number, then the others that ports carry.
function numbered() {
  const ports = new Map()
  for (const p of store.ports.values()) {
    for (const v of vlansOf(p)) for (let id = v.vlan; id <= Math.min(v.vlanEnd || v.vlan, v.vlan + 4094); id++) ports.set(id, (ports.get(id) || 0) + 1)
  }
  const main = new Set([...store.ports.values()].map(mainVLAN))
  return [...ports.keys()].sort((a, b) => main.has(b) - main.has(a) || a - b).map((id) => [id, ports.get(id)])
}

// mainVLAN is the VLAN of frames without a tag, or else the first; 0 for none.
function mainVLAN(p) {
  const list = vlansOf(p)
  return (list.find((v) => v.flags?.includes('PVID')) || list[0])?.vlan || 0
}

function band(id, x, y, w, high) {
  const k = palette.get(id)
  const g = s('g', {}, s('rect', { x, y, width: w, height: high, class: k === undefined ? 'k-rest' : `k${k % COLOURS}` }))
  const gaps = k === undefined ? [] : PATTERNS[(k + Math.floor(k / COLOURS)) % PATTERNS.length]
  for (const i of gaps) g.append(s('rect', { x: x + (w * i) / 10, y, width: w / 10, height: high, class: 'gap' }))
  return g
}

const cut = (text, most) => (text.length > most ? text.slice(0, Math.max(1, most - 1)) + '…' : text)

// shape is what the picture is drawn from: it is drawn anew only where that changes.
function shape() {
  return JSON.stringify([width, store.bridges.map((b) => [b.ifname, b.stp, b.fdb_count, b.vlan_filtering, b.address]),
    [...store.ports.values()].map((p) => [p.key, p.type, p.peer, p.link, p.owner?.id, vlanText(p)])])
}

export function draw(force) {
  if (!root || !width || !store.agent) return // until the first answer it says that it reads
  const now = shape()
  if (!force && now === drawn) {
    for (const [key, c] of cells) settle(c, store.ports.get(key))
    return
  }
  drawn = now
  const focus = document.activeElement?.dataset?.key
  const vlans = numbered()
  palette = new Map(vlans.slice(0, SIGNS).map(([id], i) => [id, i]))
  cells = new Map()
  if (!store.bridges.length) {
    root.replaceChildren(h('p', { class: 'empty' }, 'There is no bridge here. ', h('code', {}, 'bascule bridge add br0'), ' makes one.'))
    $('legend').replaceChildren()
    return
  }
  const by = new Map(store.bridges.map((b) => [b.ifname, []]))
  for (const p of store.ports.values()) by.get(p.master)?.push(p)
  let kind = KINDS.find((k) => Math.max(...[...by.values()].map((l) => l.length)) <= k.upto)
  if (width < 480) kind = kind.big ? { ...KINDS[0], w: Math.floor((width - 2 * PAD - 18 - 8) / 2) } : kind
  const cords = cordsOf()
  const gutter = cords.length ? 10 + 5 * Math.min(cords.length, 8) : 0
  const columns = Math.max(1, Math.floor((width - 2 * PAD - gutter + kind.gap) / (kind.w + kind.gap)))
  const picture = s('svg', { role: 'group', 'aria-label': 'Bridges and their ports' },
    s('defs', {}, s('pattern', { id: 'hatch', width: 6, height: 6, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' },
      s('line', { x1: 0, y1: 0, x2: 0, y2: 6, class: 'hatch-line' }))))
  let y = 1
  for (const b of store.bridges) {
    const ports = by.get(b.ifname)
    const rows = Math.ceil(ports.length / columns)
    const pitch = kind.h + (cords.length ? kind.lane : kind.gap)
    const high = rows ? HEAD + rows * pitch + PAD - (cords.length ? 4 : kind.gap) : HEAD + 26
    const g = s('g', { role: 'group', 'aria-label': `Bridge ${b.ifname}, ${plural(ports.length, 'port')}, ${facts(b)}` },
      s('rect', { class: 'chassis', x: 1, y, width: width - 2, height: high, rx: 5 }),
      s('text', { class: 'c-name', x: PAD, y: y + 20 }, b.ifname),
      s('text', { class: 'c-fact', x: PAD + 12 + b.ifname.length * 8, y: y + 20 }, cut(facts(b), Math.floor((width - 40 - b.ifname.length * 8) / 6.2))))
    if (!ports.length) g.append(s('text', { class: 'c-fact', x: PAD, y: y + HEAD + 12 }, `No port yet; bascule port add ${b.ifname} DEVICE`))
    ports.forEach((p, i) => {
      const c = cell(p, PAD + (i % columns) * (kind.w + kind.gap), y + HEAD + Math.floor(i / columns) * pitch, kind)
      attr(c.e, 'tabindex', i ? -1 : 0)
      g.append(c.e)
      cells.set(p.key, c)
    })
    picture.append(g)
    y += high + 12
  }
  for (const [i, c] of cords.entries()) {
    const e = cord(c, i, kind, gutter)
    if (e) picture.append(e)
  }
  attr(picture, 'viewBox', `0 0 ${width} ${y - 10}`)
  attr(picture, 'height', y - 10)
  root.replaceChildren(picture)
  for (const [key, c] of cells) settle(c, store.ports.get(key))
  legend(vlans, cords)
  light()
  if (focus) cells.get(focus)?.e.focus()
}

function facts(b) {
  const tree = store.trees.get(b.ifname)
  const root = tree && (tree.root_port ? `root port ${tree.ports.find((p) => p.port === tree.root_port)?.ifname ?? tree.root_port}` : 'root')
  return [b.address, plural(b.fdb_count, 'address'), b.vlan_filtering && 'VLANs', b.stp !== 'off' && `${b.stp} ${root || 'without an agent'}`]
    .filter(Boolean).join(' · ')
}

function cell(p, x, y, k) {
  const id = mainVLAN(p)
  const e = s('a', { class: 'port', href: `#/port/${encodeURIComponent(p.master)}/${encodeURIComponent(p.ifname)}`, data: { key: p.key } },
    s('rect', { class: 'cell', x, y, width: k.w, height: k.h, rx: 3 }),
    s('rect', { class: 'hatch', x, y, width: k.w, height: k.h, rx: 3 }))
  const c = { e, x, y, k, id }
  if (k.tiny) {
    e.append(c.lamp = s('circle', { class: 'lamp', cx: x + 13.5, cy: y + 9, r: 3.5 }))
    bar(c, x + 3, y + 15.5, 21, 3)
    if (id) e.append(band(id, x + 3, y + 21, 21, 3.5))
  } else {
    const most = Math.floor((k.w - 26) / 7.3)
    e.append(c.lamp = s('circle', { class: 'lamp', cx: x + 11, cy: y + 12, r: 4 }), s('text', { class: 'n', x: x + 20, y: y + 16 }, cut(p.ifname, most)))
    if (k.big) {
      const kindText = { netdev: '', host: 'host', span: 'copies', patch: `to ${p.peer || 'no peer'}` }[p.type] ?? p.type
      e.append(c.text = s('text', { class: 's', x: x + 8, y: y + 32 }))
      c.idle = cut(p.owner ? `${p.owner.name || p.owner.id}` : kindText, Math.floor((k.w - 16) / 5.6))
      bar(c, x + 8, y + 38, k.w - 16, 4)
      if (id) e.append(s('text', { class: 'v', x: x + 8, y: y + 55 }, cut(vlanText(p), Math.floor((k.w - 16) / 6.4))), band(id, x + 8, y + k.h - 8, k.w - 16, 4))
    } else {
      bar(c, x + 8, y + 22, k.w - 16, 3)
      if (id) e.append(band(id, x + 8, y + k.h - 8, k.w - 16, 4))
    }
  }
  e.append(c.drop = s('path', { class: 'drop', d: `M${x + k.w - 10} ${y} h7 a3 3 0 0 1 3 3 v7z` }))
  return c
}

function bar(c, x, y, w, high) {
  c.w = w
  c.fill = s('rect', { class: 'fill', x, y, width: 0, height: high })
  c.e.append(s('rect', { class: 'back', x, y, width: w, height: high }), c.fill)
}

// settle shows the state of a port now.
function settle(c, p) {
  if (!p) return
  const halt = halted(p)
  attr(c.e, 'data-state', p.state)
  attr(c.e, 'data-halt', halt ? '1' : null)
  attr(c.e, 'data-drops', p.dropRate > 0 ? '1' : null)
  const busy = p.now ? p.now.rxBits + p.now.txBits : 0
  // ten kbit/s is the first step, ten Gbit/s all of it
  const part = busy > 0 ? Math.min(1, Math.max(0.04, (Math.log10(busy) - 3.5) / 6.5)) : 0
  attr(c.fill, 'width', (part * c.w).toFixed(1))
  if (c.text) {
    put(c.text, halt ? halt.split(',').pop().trim().replace(/^blocked.*/, 'blocked') : p.state !== 'forwarding' ? p.state
      : busy > 0 ? `↓ ${short(p.now.rxBits)}  ↑ ${short(p.now.txBits)}` : c.idle || 'quiet')
  }
  // a sentence changes only where a user hears something new: rates are in the table
  attr(c.e, 'aria-label', [`${p.ifname} of ${p.master}`, p.description, p.type !== 'netdev' && p.type, halt || p.state, p.peer && `cord to ${p.peer}`,
    p.link && `cable to ${p.link}`, vlansOf(p).length && `VLAN ${vlanText(p).replaceAll('u', ' untagged').replaceAll('*', '')}`, p.dropRate > 0 && 'drops frames now']
    .filter(Boolean).join(', '))
}

export function live() {
  if ($('v-switch').hidden) return
  for (const [key, c] of cells) settle(c, store.ports.get(key))
  if (shown) show(shown)
}

// cordsOf are the pairs of ports that a patch cord, or a cable of veths, joins.
function cordsOf() {
  const list = []
  for (const p of store.ports.values()) {
    const far = p.type === 'patch' ? p.peer : p.link && [...store.ports.values()].find((o) => o.ifname === p.link && o.link === p.ifname)?.key
    if (far && store.ports.has(far) && byName(p.key, far) < 0) list.push({ a: p.key, b: far, patch: p.type === 'patch' })
  }
  return list
}

// cord draws a cord below the cells, and through the gutter at the right.
function cord(c, i, k, gutter) {
  const a = cells.get(c.a), b = cells.get(c.b)
  if (!a || !b) return null
  const off = (i % 8) * 1.4
  const lane = width - PAD - 2 - (i % 8) * 5
  const [ax, ay] = [a.x + a.k.w / 2, a.y + k.h], [bx, by] = [b.x + b.k.w / 2, b.y + k.h]
  const al = ay + 4 + off, bl = by + 4 + off
  const d = a.y === b.y ? `M${ax} ${ay}V${al}H${bx}V${by}` : `M${ax} ${ay}V${al}H${lane}V${bl}H${bx}V${by}`
  const halt = [c.a, c.b].some((key) => halted(store.ports.get(key)))
  const what = `${c.a} to ${c.b}: ${c.patch ? 'patch cord' : 'cable of veths'}${halt ? ', one end blocked' : ''}`
  return s('path', { class: `cord${c.patch ? '' : ' veth'}${halt ? ' halt' : ''}`, d, role: 'img', 'aria-label': what, data: { told: what } }, s('title', {}, what))
}

// legend says what signs mean, and lights up the ports of a VLAN.
function legend(vlans, cords) {
  const key = (text, ...signs) => h('li', {}, s('svg', { viewBox: '0 0 22 12', 'aria-hidden': 'true' }, signs), text)
  const states = new Set([...store.ports.values()].map((p) => (halted(p) ? 'halt' : p.state)))
  const port = (state, halt) => s('g', { class: 'port', data: halt ? { state, halt: 1 } : { state } },
    s('rect', { class: 'cell', x: 1, y: 0.5, width: 20, height: 11, rx: 2 }), s('rect', { class: 'hatch', x: 1, y: 0.5, width: 20, height: 11, rx: 2 }),
    s('circle', { class: 'lamp', cx: 11, cy: 6, r: 3 }))
  const keys = [key('forwards', port('forwarding'))]
  if (states.has('halt')) keys.push(key('blocked or discarding', port('discarding', true)))
  if (states.has('learning')) keys.push(key('learning', port('learning')))
  if (states.has('disabled')) keys.push(key('device is down', port('disabled')))
  if (states.has('gone') || states.has('no-peer')) keys.push(key('device or other end is gone', port('gone')))
  keys.push(key('drops frames now', s('g', { class: 'port', data: { drops: 1 } }, s('path', { class: 'drop', d: 'M6 1h10v10z' }))))
  if (cords.some((c) => c.patch)) keys.push(key('patch cord', s('path', { class: 'cord', d: 'M0 6H22' })))
  if (cords.some((c) => !c.patch)) keys.push(key('veth cable', s('path', { class: 'cord veth', d: 'M0 6H22' })))
  const most = 40
  const buttons = vlans.slice(0, most).map(([id, n]) => h('li', {}, h('button', {
    type: 'button', 'aria-pressed': String(lit === id), title: `${plural(n, 'port')}: light ${n === 1 ? 'it' : 'them'} up`, data: { vlan: id },
    onclick: () => { lit = lit === id ? 0 : id; light() },
  }, s('svg', { viewBox: '0 0 22 8', 'aria-hidden': 'true' }, band(id, 0, 1, 22, 6)), ` ${id}`)))
  $('legend').replaceChildren(h('ul', { class: 'keys', 'aria-label': 'Signs' }, keys),
    vlans.length ? h('ul', { class: 'vlans', 'aria-label': 'VLANs: light up their ports' }, h('li', {}, 'VLANs'), buttons,
      h('li', {}, 'u untagged, * for frames that come without a tag'), vlans.length > most && h('li', {}, h('a', { href: '#/ports' }, `and ${vlans.length - most} more`))) : '')
}

function light() {
  root.classList.toggle('dim', !!lit)
  for (const [key, c] of cells) {
    c.e.classList.toggle('lit', vlansOf(store.ports.get(key) || {}).some((v) => v.vlan <= lit && lit <= (v.vlanEnd || v.vlan)))
  }
  for (const b of $('legend').querySelectorAll('button')) attr(b, 'aria-pressed', String(lit === Number(b.dataset.vlan)))
}

// show tells of the port, or cord, that is pointed at.
let shown
function show(e) {
  shown = e
  const told = $('told')
  const p = e && store.ports.get(e.dataset.key)
  if (!p) {
    told.replaceChildren(e?.dataset.told || '\u00a0')
    return
  }
  const facts = [p.description, halted(p) || p.state, p.owner && `of ${p.owner.name || p.owner.id}`, p.peer && `to ${p.peer}`, p.link && `cable to ${p.link}`,
    vlansOf(p).length && `VLAN ${vlanText(p)}`, plural(p.fdb_count, 'address'), p.now && `in ${bits(p.now.rxBits)}, out ${bits(p.now.txBits)}`,
    p.dropRate > 0 && `drops ${short(p.dropRate)}/s`].filter(Boolean)
  told.replaceChildren(h('b', {}, `${p.master} ${p.ifname}`), ' ', facts.join(' · '))
}

// move goes to another port by the arrow keys: a bridge has one stop for Tab.
function move(e) {
  const at = e.target.closest?.('.port')
  if (!at || e.ctrlKey || e.altKey || e.metaKey) return
  const all = [...at.parentNode.querySelectorAll('.port')]
  const here = cells.get(at.dataset.key)
  const i = all.indexOf(at)
  const row = (way) => all.filter((o) => (cells.get(o.dataset.key).y - here.y) * way > 0)
    .sort((a, b) => { const x = cells.get(a.dataset.key), y = cells.get(b.dataset.key); return Math.abs(x.y - here.y) - Math.abs(y.y - here.y) || Math.abs(x.x - here.x) - Math.abs(y.x - here.x) })[0]
  const to = { ArrowRight: all[i + 1], ArrowLeft: all[i - 1], ArrowDown: row(1), ArrowUp: row(-1), Home: all[0], End: all.at(-1) }[e.key]
  if (to === undefined) return
  e.preventDefault()
  at.setAttribute('tabindex', -1)
  to.setAttribute('tabindex', 0)
  to.focus()
}
