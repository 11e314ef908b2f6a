// SPDX-License-Identifier: BSD-2-Clause

// The agent's API, which is all that the page asks. Answers have the form of what the
// commands print with -j.

export const BASE = new URL('../api/v1/', document.baseURI).pathname

// A Problem is an answer that is none. Its status is 0 where nobody answers.
export class Problem extends Error {
  constructor(status, text) {
    super(text)
    this.status = status
  }
}

// url makes the address of a resource. Parameters that are empty are left out.
export function url(path, params = {}) {
  const q = new URLSearchParams()
  for (const [k, v] of Object.entries({ netns: netns.name, ...params })) {
    for (const one of Array.isArray(v) ? v : [v]) if (one !== '' && one !== undefined && one !== null && one !== false) q.append(k, one)
  }
  const text = q.toString()
  return BASE + path.split('/').map(encodeURIComponent).join('/') + (text ? '?' + text : '')
}

// netns is the network namespace that the page looks at; '' is the agent's own.
export const netns = { name: '' }

// The agent logs the page's address as http://ADDRESS/#TOKEN. The page keeps the token
// while its tab is open, and takes it out of the address. A unix socket has none.
const KEY = 'bascule-token'
let token = ''
try { token = sessionStorage.getItem(KEY) || '' } catch { /* where it is forbidden */ }

export function keep(text) {
  token = text
  try { sessionStorage.setItem(KEY, text) } catch { /* as above */ }
}

// taken takes a token out of the address, and reports whether there was one.
export function taken() {
  const hash = location.hash.slice(1)
  if (!hash || hash.startsWith('/')) return false
  keep(hash)
  history.replaceState(null, '', '#/switch')
  return true
}

export async function ask(path, params, { method = 'GET', body, signal } = {}) {
  let answer
  try {
    answer = await fetch(url(path, params), {
      method, signal, credentials: 'omit', cache: 'no-store', redirect: 'error',
      headers: { ...(token && { Authorization: `Bearer ${token}` }), ...(body && { 'Content-Type': 'application/json' }) }, body: body && JSON.stringify(body),
    })
  } catch (e) {
    if (e.name === 'AbortError') throw e
    throw new Problem(0, 'The agent does not answer.')
  }
  if (!answer.ok) throw new Problem(answer.status, await complaint(answer))
  return answer
}

// complaint is the text of an answer that is an error (RFC 9457, or plain).
async function complaint(answer) {
  const text = await answer.text().catch(() => '')
  try {
    const p = JSON.parse(text)
    const more = (p.errors || []).map((e) => [e.location, e.message].filter(Boolean).join(': '))
    if (more.length && p.detail?.startsWith(more[0])) more.shift() // the one line tells the first
    return [p.detail || p.title, ...more].filter(Boolean).join('; ')
  } catch {
    return text.trim() || `The agent answers ${answer.status}.`
  }
}

export const get = async (path, params, options) => {
  const answer = await ask(path, params, options)
  return answer.status === 204 ? null : answer.json()
}

// follow reads a stream of server-sent events, each of which has JSON as its data. It
// fails when the stream ends. An EventSource could send no token.
export async function follow(path, params, f, { signal, begun } = {}) {
  const answer = await ask(path, params, { signal })
  begun?.()
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  for (;;) {
    let part
    try {
      part = await reader.read()
    } catch (e) {
      if (e.name === 'AbortError') throw e
      throw new Problem(0, 'The stream was interrupted.')
    }
    if (part.done) throw new Problem(0, 'The stream has ended.')
    const blocks = (rest + part.value).split('\n\n')
    rest = blocks.pop()
    for (const block of blocks) {
      let name = '', data = ''
      for (const line of block.split('\n')) {
        if (line.startsWith('event: ')) name = line.slice(7)
        else if (line.startsWith('data: ')) data += line.slice(6)
      }
      if (name === 'error') throw new Problem(500, JSON.parse(data).detail)
      if (data) f(JSON.parse(data))
    }
  }
}
