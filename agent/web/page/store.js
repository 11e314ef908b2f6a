// SPDX-License-Identifier: BSD-2-Clause

// What the page knows of the switch. It reads all once, then follows the agent's
// stream: a sample of counters each second, and events as they happen.

import { get, follow, netns } from './api.js'
import { byName } from './dom.js'

const SECONDS = 600 // of history
const EVENTS = 1000
export const FIELDS = ['rxBits', 'txBits', 'rxFrames', 'txFrames', 'drops']

export const store = {
  link: 'wait', // 'live', 'gone', 'paused', 'locked'
  why: '', since: Date.now(),
  agent: null, write: false, bridges: [], ports: new Map(), vlans: new Map(), reasons: {},
  trees: new Map(), // by bridge
  events: [], drops: new Map(), began: Date.now(),
}

const hears = {}
export function on(what, f) { (hears[what] ||= []).push(f) }
function tell(what, value) { for (const f of hears[what] || []) f(value) }

export const keyOf = (bridge, port) => `${bridge}/${port}`

// A History has the last ten minutes of a port.
class History {
  constructor() {
    this.n = 0
    this.at = new Float64Array(SECONDS)
    this.of = Object.fromEntries(FIELDS.map((f) => [f, new Float32Array(SECONDS)]))
  }

  add(time, port) {
    const i = this.n++ % SECONDS
    this.at[i] = time
    for (const f of FIELDS) this.of[f][i] = port ? port[f] : NaN
  }

  // span is how many seconds it goes back from now: a moment at least, for an axis.
  span() {
    const first = this.n ? this.at[this.n > SECONDS ? this.n % SECONDS : 0] : Infinity
    return Math.min(SECONDS, Math.max(30, Date.now() / 1000 - first))
  }

  // columns are times and values from old to new, with null where nothing is known.
  columns(fields) {
    const n = Math.min(this.n, SECONDS)
    const order = Array.from({ length: n }, (_, i) => (this.n - n + i) % SECONDS)
    return [order.map((i) => this.at[i]), ...fields.map((f) => order.map((i) => (Number.isNaN(this.of[f][i]) ? null : this.of[f][i])))]
  }
}

const byBridge = (list) => list.sort((a, b) => byName(a.master, b.master))

// read reads what changes seldom.
async function read(signal) {
  const o = { signal }
  const [agent, bridges, ports, vlans] = await Promise.all([
    get('agent/status', {}, o), get('bridge/show', {}, o), get('port/show', { stats: true }, o), get('vlan/show', {}, o),
  ])
  store.agent = agent
  store.write = (agent.doors || []).some((d) => d.what === 'web' && d.write)
  store.bridges = bridges.sort((a, b) => byName(a.ifname, b.ifname))
  const known = store.ports
  store.ports = new Map()
  for (const p of byBridge(ports)) {
    const key = keyOf(p.master, p.ifname)
    const was = known.get(key)
    p.key = key
    p.history = was?.history || new History()
    p.now = was?.now || null
    p.dropRate = was?.dropRate || 0
    store.ports.set(key, p)
  }
  store.vlans = new Map(vlans.filter((v) => v.master).map((v) => [keyOf(v.master, v.ifname), v.vlans]))
  store.trees = new Map()
  for (const n of agent.namespaces || []) {
    if (n.netns !== netns.name) continue
    for (const b of n.bridges || []) if (b.spanning_tree) store.trees.set(b.ifname, b.spanning_tree)
  }
  for (const [bridge, tree] of store.trees) {
    for (const t of tree.ports || []) {
      const p = store.ports.get(keyOf(bridge, t.ifname))
      if (p) p.tree = t
    }
  }
  tell('config')
}

// vlansOf are the VLANs of a port as ranges, and vlanText as people write them.
export const vlansOf = (p) => store.vlans.get(p.key) || []
export function vlanText(p) {
  return vlansOf(p).map((v) => {
    const range = v.vlanEnd ? `${v.vlan}-${v.vlanEnd}` : String(v.vlan)
    const flags = v.flags || []
    return range + (flags.includes('Egress Untagged') ? 'u' : '') + (flags.includes('PVID') ? '*' : '')
  }).join(' ')
}

// halted says why a port that is up forwards nothing, '' where it does.
export function halted(p) {
  if (p.state === 'blocked') return 'blocked by its loop guard'
  if (p.tree?.bpdu_guard) return 'shut by BPDU guard'
  if (p.tree?.root_inconsistent) return 'held back by root guard'
  if (p.state === 'discarding') return `discarding${p.tree ? `, ${p.tree.role}` : ', by spanning tree'}`
  return ''
}

function sample(list) {
  let changed = false
  for (const r of list) {
    const p = store.ports.get(keyOf(r.master, r.ifname))
    if (p) take(p, r.rates, r.drops, new Date(r.time).getTime() / 1000, r.elapsed)
    if (p?.state !== r.state) changed = true
  }
  tell('sample')
  if (changed || list.length !== store.ports.size) again()
}

function take(p, rates, drops, time, elapsed) {
  p.dropRates = drops || {}
  p.dropRate = Object.values(p.dropRates).reduce((a, b) => a + b, 0)
  p.now = rates && {
    rxBits: rates.rx.bits, txBits: rates.tx.bits, rxFrames: rates.rx.packets, txFrames: rates.tx.packets, drops: p.dropRate,
  }
  p.history.add(time, p.now)
  for (const [reason, rate] of Object.entries(p.dropRates)) {
    const key = `${p.key} ${reason}`
    const d = store.drops.get(key) || { reason, port: p.ifname, bridge: p.master, frames: 0 }
    d.rate = rate
    d.frames += Math.round(rate * elapsed)
    d.at = time
    store.drops.set(key, d)
  }
}

// Events that change what read has read.
const changing = /^(port-|blocked|unblocked|loop|config|state)/

function event(e) {
  e.n = store.count = (store.count || 0) + 1
  e.hay = [e.event, e.master, e.ifname, e.mac, e.from && `from ${e.from}`, e.vlan && `vlan ${e.vlan}`, e.reason].filter(Boolean).join(' ').toLowerCase()
  store.events.push(e)
  if (store.events.length > EVENTS + 200) store.events.splice(0, store.events.length - EVENTS)
  tell('event', e)
  if (changing.test(e.event)) again()
}

// again reads anew, at most once a second.
let due = 0
export function again() {
  due ||= setTimeout(() => { due = 0; if (store.link === 'live') read().catch(() => {}) }, 1000)
}

let retry, stop, tries = 0, slow

function state(link, why = '') {
  if (link !== store.link) store.since = Date.now()
  Object.assign(store, { link, why })
  tell('link')
}

// open begins to follow the agent, and keeps on.
export async function open() {
  close()
  state('wait')
  stop = new AbortController()
  const { signal } = stop
  try {
    await read(signal)
    if (!signal.aborted) watch()
  } catch (e) {
    if (!signal.aborted) gone(e) // else there is a later try
  }
}

export function close(link) {
  stop?.abort()
  clearTimeout(retry)
  clearInterval(slow)
  if (link) state(link)
}

// A browser has six connections to a server at a time: a page takes two, and none while it
// is hidden.
function watch() {
  const { signal } = stop
  const end = (e) => { if (!signal.aborted) gone(e) }
  follow('rates', {}, (list) => { tries = 0; sample(list) }, { signal, begun: () => state('live') }).catch(end)
  follow('monitor', {}, event, { signal }).catch(end)
  // settings change without an event
  slow = setInterval(() => read(signal).catch(() => {}), 30000)
}

function gone(e) {
  close()
  if (e.status === 401 || e.status === 403) {
    state('locked', e.message)
    return
  }
  const wait = Math.min(10, 2 ** tries++)
  store.next = Date.now() + wait * 1000
  state('gone', e.message)
  retry = setTimeout(open, wait * 1000)
}

// counters reads those of one port.
export async function counters(key) {
  const p = store.ports.get(key)
  if (!p) return
  try {
    const [c] = await get('stats', { bridge: p.master, port: p.ifname })
    for (const k of ['stats64', 'learned', 'moves', 'refused', 'drops', 'routed']) p[k] = c[k]
  } catch { /* the next reading tells more */ }
}
