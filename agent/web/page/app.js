// SPDX-License-Identifier: BSD-2-Clause

// The page: which view is seen, how the connection is, which theme.

import { h, $, put, attr, plural, span, clock, say } from './dom.js'
import { store, on, open, close } from './store.js'
import { get, keep, taken } from './api.js'
import * as picture from './picture.js'
import * as port from './port.js'
import { ports, addresses, states, events, trace, capture, aside, trees } from './tools.js'

const main = {
  start() { picture.start() },
  show() { picture.draw(); aside(); trees() },
  config() { picture.draw(); aside(); trees() },
  live() { picture.live(); aside() },
}
const one = {
  start() {},
  show(rest) { port.show(rest.join('/')) },
  config() { port.config() },
  live() { port.live() },
  leave() { port.leave() },
}
const views = { switch: main, ports, port: one, addresses, states, trace, capture, events }
let view = null, name = ''

function route(first) {
  const [, want, ...rest] = location.hash.split('/').map((p) => { try { return decodeURIComponent(p) } catch { return p } })
  const next = views[want] ? want : 'switch'
  view?.leave?.()
  for (const v of Object.keys(views)) $(`v-${v}`).hidden = v !== next
  for (const a of document.querySelectorAll('.top nav a')) attr(a, 'aria-current', a.hash === `#/${next === 'port' ? 'ports' : next}` && 'page')
  view = views[next]
  name = next
  view.show(rest)
  const head = document.querySelector(`#v-${next} h1`)
  document.title = `${head.textContent} · bascule`
  if (!first) {
    window.scrollTo(0, 0)
    head.focus({ preventScroll: true })
  }
}

function linked() {
  const { link } = store
  attr($('lamp'), 'data-state', link)
  put($('conn'), { wait: 'connecting', live: 'live', gone: 'agent gone', paused: 'paused', locked: 'no access' }[link])
  document.body.classList.toggle('stale', link === 'gone' || link === 'locked')
  alarm()
}

// alarm says that what is seen is old, and why.
function alarm() {
  const box = $('alarm')
  const { link } = store
  if (link === 'locked') {
    if (!box.hidden && box.querySelector('form')) return
    box.hidden = false
    box.replaceChildren(h('b', {}, 'No access. '), 'The agent logs an address with a token when it starts. Open that, or give the token here. ',
      h('form', { class: 'inline', onsubmit: (e) => { e.preventDefault(); keep(e.target.elements.token.value.trim()); open() } },
        h('label', {}, 'Token ', h('input', { name: 'token', type: 'password', required: true, autocomplete: 'off' })), h('button', {}, 'Open')))
  } else if (link === 'gone') {
    const text = `${store.agent ? `Nothing here is newer than ${clock(store.since)}` : 'Nothing is known about the switch yet'}. Trying again`
    if (box.hidden || box.querySelector('form')) {
      box.hidden = false
      box.replaceChildren(h('b', {}, 'The agent does not answer. '), h('span', {}, text), h('span', { 'aria-hidden': 'true', id: 'wait' }), '. ', h('span', {}, 'The switch forwards without it.'))
    }
    const wait = Math.round((store.next - Date.now()) / 1000)
    put($('wait'), wait > 0 ? ` in ${wait} s` : ' now')
  } else if (link === 'live') box.hidden = true
}

// words reads what the reasons of drops mean: they are the program's, and stay.
function words() {
  if (store.link !== 'live' || words.read) return
  words.read = true
  get('help/reasons').then((list) => { store.reasons = Object.fromEntries(list.map((r) => [r.name, r])) }, () => { words.read = false })
}

function facts() {
  const a = store.agent
  if (!a) return
  put($('facts'), [`${plural(store.bridges.length, 'bridge')}, ${plural(store.ports.size, 'port')}`, `agent ${a.version}`,
    `up ${span((Date.now() - new Date(a.since)) / 1000)}`, a.error ? `files not in force: ${a.error}` : a.applying ? 'applying its files' : ''].filter(Boolean).join(' · '))
  $('facts').classList.toggle('st-bad', !!a.error)
  const mode = $('mode')
  mode.hidden = false
  put(mode, store.write ? 'can kill states' : 'read only')
  attr(mode, 'title', store.write ? 'This page ends states of pf, and changes nothing else. The API at this address changes everything.'
    : 'Start the agent with --web-write to end states of pf here.')
  mode.classList.toggle('write', store.write)
}

const themes = ['auto', 'light', 'dark']
function theme(t) {
  if (t === 'auto') delete document.documentElement.dataset.theme
  else document.documentElement.dataset.theme = t
  $('theme').replaceChildren(h('span', { class: 'long' }, 'Theme: '), t)
  try { localStorage.setItem('bascule-theme', t) } catch { /* where it is forbidden */ }
  port.themed()
}

function kept() {
  try { return localStorage.getItem('bascule-theme') } catch { return null }
}

function start() {
  for (const v of Object.values(views)) v.start()
  on('link', linked)
  on('link', words)
  on('config', () => { facts(); view.config?.() })
  on('sample', () => view.live?.())
  on('event', () => { events.fresh = true })
  window.addEventListener('hashchange', () => { if (taken()) open(); route() })
  $('theme').addEventListener('click', () => theme(themes[(themes.indexOf(kept() || 'auto') + 1) % 3]))
  if (themes.includes(kept())) theme(kept())
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => port.themed())
  $('pause').addEventListener('click', () => {
    const now = $('pause').getAttribute('aria-pressed') !== 'true'
    attr($('pause'), 'aria-pressed', String(now))
    if (now) { close('paused'); say('Paused') } else open()
  })
  // nobody looks at a page that is hidden
  let hidden
  document.addEventListener('visibilitychange', () => {
    clearTimeout(hidden)
    if ($('pause').getAttribute('aria-pressed') === 'true') return
    if (document.hidden) hidden = setTimeout(() => close('paused'), 5000)
    else if (store.link === 'paused') open()
  })
  document.addEventListener('keydown', (e) => {
    if (e.key !== '/' || e.ctrlKey || e.metaKey || e.altKey || e.target.closest('input, textarea, select, dialog')) return
    const field = document.querySelector(`#v-${name} input[type=search]`)
    if (field) { e.preventDefault(); field.focus() }
  })
  setInterval(() => { if (store.link === 'gone') alarm() }, 1000)
  taken()
  route(true)
  open()
}

start()
