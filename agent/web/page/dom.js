// SPDX-License-Identifier: BSD-2-Clause

// Elements, and numbers as people read them. Text from the switch becomes text nodes
// only, never markup.

const SVG = 'http://www.w3.org/2000/svg'

export const $ = (id) => document.getElementById(id)

function fill(e, props, kids) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue
    if (name.startsWith('on')) e.addEventListener(name.slice(2), value)
    else if (name === 'data') Object.assign(e.dataset, value)
    else e.setAttribute(name, value === true ? '' : value)
  }
  e.append(...kids.flat().filter((k) => k !== null && k !== undefined && k !== false))
  return e
}

// h makes an element of HTML, s one of SVG.
export const h = (tag, props, ...kids) => fill(document.createElement(tag), props, kids)
export const s = (tag, props, ...kids) => fill(document.createElementNS(SVG, tag), props, kids)

// put sets a text where it has changed: a write costs layout.
export function put(e, text) {
  if (e.textContent !== text) e.textContent = text
}

export function attr(e, name, value) {
  if (value === null || value === undefined || value === false) {
    if (e.hasAttribute(name)) e.removeAttribute(name)
  } else if (e.getAttribute(name) !== String(value)) e.setAttribute(name, value)
}

const units = ['', 'k', 'M', 'G', 'T']

// short is a number with three digits and a unit's prefix: 1.23M.
export function short(n) {
  if (!(n > 0)) return '0'
  let i = 0
  while (n >= 999.5 && i < units.length - 1) { n /= 1000; i++ }
  if (i === 0 && n < 9.95) return n < 0.95 ? n.toFixed(1) : n % 1 ? n.toFixed(1) : String(n)
  return (n >= 99.95 ? n.toFixed(0) : n >= 9.995 ? n.toFixed(1) : n.toFixed(2)) + units[i]
}

export const bits = (n) => short(n).replace(/([kMGT]?)$/, ' $1bit/s')
export const pps = (n) => short(n) + '/s'
const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 })
// count is a whole number with thin spaces between thousands.
export const count = (n) => whole.format(n).replaceAll(',', ' ')
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? '' : word.endsWith('s') ? 'es' : 's'}`

export function span(seconds) {
  seconds = Math.max(0, Math.round(seconds))
  if (seconds < 120) return `${seconds} s`
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`
  return `${Math.floor(seconds / 86400)} days`
}

export function size(n) {
  return n < 1000 ? `${n} B` : short(n).replace(/([kMGT])$/, ' $1B')
}

const two = (n) => String(n).padStart(2, '0')
export function clock(t) {
  const d = t instanceof Date ? t : new Date(t)
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`
}

// byName compares names as people count: eth2 comes before eth10.
const collator = new Intl.Collator('en', { numeric: true })
export const byName = (a, b) => collator.compare(a, b)

// READING stands where something is to be, until the first answer is in: nothing is said of a switch that is not known.
export const READING = 'Reading the switch …'

// say tells users of a screen reader.
export function say(text) { put($('said'), text) }

// ask asks whether something shall be done that cannot be undone. A question that another
// takes the place of is answered by no: the dialog tells that it was closed some time later,
// when it may be open again with the next question.
let answer = () => {}
export function ask(head, text, yes) {
  const d = $('ask')
  answer(false)
  put($('ask-head'), head)
  put($('ask-text'), text)
  put($('ask-yes'), yes)
  d.onsubmit = (e) => answer(e.submitter?.value === 'yes')
  d.oncancel = () => answer(false)
  d.onclose = () => { if (!d.open) answer(false) }
  if (!d.open) d.showModal()
  return new Promise((done) => { answer = done })
}

// pieces runs f with each of a list, and lets the page go on now and then.
export async function pieces(list, f) {
  for (const [i, x] of list.entries()) {
    if (i % 2000 === 0) await new Promise((go) => setTimeout(go))
    f(x)
  }
  await new Promise((go) => setTimeout(go))
}
