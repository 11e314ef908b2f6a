// SPDX-License-Identifier: BSD-2-Clause

// A table of any number of rows, of which those in sight are elements.

import { h, put, attr } from './dom.js'

// natural is a text whose order is that in which people count: eth2 comes before eth10.
const natural = (text) => String(text ?? '').toLowerCase().replace(/\d+/g, (n) => n.padStart(12, '0'))

export const narrow = matchMedia('(max-width: 760px)')

// Table shows rows. A column has key (the property, or a function of the row), label,
// width (a track of a grid), and perhaps num, lo (left out on narrow screens), desc
// (sorts downwards first), text(row), or draw(cell, row).
export class Table {
  constructor(label, columns, { sort = 0, desc = false, empty, key } = {}) {
    this.columns = columns
    this.sort = sort
    this.desc = desc
    this.emptyText = empty
    this.rows = []
    this.sorted = []
    this.pool = []
    this.words = []
    this.heads = columns.map((c, i) => h('div', { role: 'columnheader', class: this.kind(c) },
      c.label && h('button', { type: 'button', onclick: () => this.by(i) }, c.label)))
    this.head = h('div', { class: 'row head', role: 'row', 'aria-rowindex': 1 }, this.heads)
    this.body = h('div', { class: 'body', role: 'rowgroup' })
    this.none = h('div', { class: 'empty', hidden: true })
    this.root = h('div', { class: 'vt', role: 'table', 'aria-label': label, tabindex: 0 }, this.head, this.body, this.none)
    this.root.addEventListener('scroll', () => this.later(), { passive: true })
    new ResizeObserver(() => this.measure()).observe(this.root)
    narrow.addEventListener('change', () => this.measure())
    this.key = key
    this.marks()
    this.measure()
  }

  kind(c) { return [c.num && 'num', c.lo && 'lo', c.mono && 'mono'].filter(Boolean).join(' ') || null }

  measure() {
    this.high = narrow.matches ? 34 : 27
    this.tracks = this.columns.filter((c) => !(c.lo && narrow.matches)).map((c) => (narrow.matches && c.narrow) || c.width).join(' ')
    this.head.style.gridTemplateColumns = this.tracks
    for (const r of this.pool) r.e.style.gridTemplateColumns = this.tracks
    this.draw()
  }

  by(i) {
    if (this.sort === i) this.desc = !this.desc
    else { this.sort = i; this.desc = !!this.columns[i].desc }
    this.marks()
    this.root.scrollTop = 0
    this.order()
  }

  marks() {
    this.heads.forEach((e, i) => attr(e, 'aria-sort', i === this.sort && (this.desc ? 'descending' : 'ascending')))
  }

  set(rows) {
    this.all = rows
    this.order()
  }

  // find shows the rows that have all words; hay says in which text they are sought.
  find(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean)
    this.root.scrollTop = 0
    this.refilter()
  }

  refilter() {
    const { words, sorted } = this
    this.rows = words.length ? sorted.filter((r) => words.every((w) => r.hay.includes(w))) : sorted
    this.draw()
    this.onshow?.(this.rows.length, (this.all || []).length)
  }

  // order compares each value once with the others, however many rows have it, and sorts rows
  // by numbers: of 20 000 rows, a comparison of names for each pair would stop the page.
  order() {
    this.sorted = this.inOrder(this.all || [])
    this.refilter()
  }

  inOrder(rows) {
    const c = this.columns[this.sort]
    if (!c || c.key === undefined) return rows
    const get = typeof c.key === 'function' ? c.key : (r) => r[c.key]
    const keys = rows.map(get)
    const values = [...new Set(keys)]
    if (c.natural) {
      const padded = new Map(values.map((v) => [v, natural(v)]))
      values.sort((a, b) => { const x = padded.get(a), y = padded.get(b); return x < y ? -1 : x > y ? 1 : 0 })
    } else if (typeof values[0] === 'string') values.sort()
    else values.sort((a, b) => a - b)
    if (this.desc) values.reverse()
    const ranks = new Map(values.map((v, i) => [v, i]))
    const n = rows.length
    const order = Float64Array.from(keys, (k, i) => ranks.get(k) * n + i).sort()
    return Array.from(order, (x) => rows[x % n])
  }

  later() {
    if (this.asked) return
    this.asked = requestAnimationFrame(() => { this.asked = 0; this.draw() })
  }

  // draw fills the rows in sight.
  draw() {
    const n = this.rows.length
    attr(this.root, 'aria-rowcount', n + 1)
    if (this.tall !== n * this.high) {
      this.tall = n * this.high
      this.body.style.height = `${this.tall}px`
    }
    if (this.none.hidden !== n > 0) this.none.hidden = n > 0
    if (!n) this.showNone()
    if (!this.root.clientHeight) return
    const first = Math.max(0, Math.floor(this.root.scrollTop / this.high) - 4)
    const last = Math.min(n, first + Math.ceil(this.root.clientHeight / this.high) + 8)
    while (this.pool.length < last - first) this.pool.push(this.make())
    this.pool.forEach((r, i) => {
      const at = first + i
      if (at >= last) {
        if (!r.e.hidden) r.e.hidden = true
        return
      }
      if (r.e.hidden) r.e.hidden = false
      if (r.at !== at || r.high !== this.high) {
        r.at = at
        r.high = this.high
        r.e.style.transform = `translateY(${at * this.high}px)`
        r.e.setAttribute('aria-rowindex', at + 2)
      }
      const row = this.rows[at]
      this.columns.forEach((c, j) => (c.draw ? c.draw(r.cells[j], row, this) : put(r.cells[j], c.text ? c.text(row) : String(row[c.key] ?? ''))))
    })
  }

  make() {
    const cells = this.columns.map((c) => h('div', { role: 'cell', class: this.kind(c) }))
    const e = h('div', { class: 'row', role: 'row' }, cells)
    e.style.gridTemplateColumns = this.tracks
    this.body.append(e)
    return { e, cells, at: -1 }
  }

  showNone() {
    this.none.replaceChildren(this.problem ? h('p', { class: 'error' }, this.problem)
      : this.words.length && this.all?.length ? `Nothing matches “${this.words.join(' ')}”.`
        : this.all ? this.emptyText : 'Reading …')
  }

  fail(text) {
    this.problem = text
    if (text) this.all = this.rows = this.sorted = []
    this.draw()
  }
}
