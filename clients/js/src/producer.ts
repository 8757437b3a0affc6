/**
 * Appends records to one partition of a topic over HTTP, each exactly once and in order: across lost
 * responses, reloads, crashes of this program and kill -9 of the server. It works offline, too.
 *
 * The producer keeps its records and the number of its request in a `Place` (IndexedDB, or a file)
 * before it sends. What has no response is sent again under the same number, also by its next life.
 */

/** A record to append. */
export interface NewRecord {
  value: string | null
  key?: string
}

/** A request without a response yet: it is sent again under the same epoch and number. */
interface Doubt {
  epoch: number
  seq: number
  count: number
  since: number
}

/** What a producer keeps. `queue` begins with the records of the request in doubt. */
export interface State {
  epoch: number
  seq: number
  appended: number
  doubt: Doubt | null
  queue: NewRecord[]
}

/** Where a producer keeps its state. */
export interface Place {
  /** Replace the state, atomically and durably; `change` may throw, then nothing changes. */
  update(change: (state: State | null) => State): Promise<State>
}

export interface Options {
  /** The server, for example `http://127.0.0.1:8080`. */
  url: string
  topic: string
  partition?: number
  /** The Producer-Id: the same in each life, and no other producer's. */
  id: string
  place: Place
  /** The most records in one request. */
  batchMax?: number
  /** The most records that wait; `append` refuses more. */
  queueMax?: number
  /** The longest pause between two attempts, in ms. */
  pauseMaxMs?: number
  /** How long the server remembers a producer (`--lease-seconds`). */
  leaseSeconds?: number
  fetch?: typeof fetch
}

/** Another producer has the id and the place now; this one must not go on. */
export class TakenOverError extends Error {}

/** The server refuses the records; they stay in the place. */
export class RefusedError extends Error {
  constructor(readonly code: string, detail: string) {
    super(`${code}: ${detail}`)
  }
}

/** Something else than pidlease responds, a proxy for example; the records wait, and are sent again. */
export class NotPidleaseError extends Error {}

/** The producer was closed. */
export class ClosedError extends Error {}

/** The server's error: a problem document. */
interface Problem {
  code: string
  detail: string
  expected_seq?: number | null
}

/** The server's response to an append. */
interface Appended {
  offset: number | null
  duplicate: boolean
}

const PAUSE_MIN_MS = 50
const REQUEST_MS = 30_000

export class Producer {
  private state: State
  private running: Promise<void> | null = null
  private failure: Error | null = null
  private readonly closing = new AbortController()
  private readonly wake = (): void => this.hurry?.()
  private hurry: (() => void) | null = null
  /** The calls of `flush` that wait: each is told of responses that are not pidlease's. */
  private readonly flushes = new Set<(error: Error) => void>()
  private lastWarning = ""

  private constructor(private readonly options: Options, state: State) {
    this.state = state
    globalThis.addEventListener?.("online", this.wake)
  }

  /**
   * Take over the place, and go on with what it has.
   *
   * An empty place may be one that was lost: it begins above the epochs of all former lives. Records of
   * a former epoch would be rejected, and under the same numbers they would be duplicates.
   */
  static async open(options: Options): Promise<Producer> {
    const state = await options.place.update((last) => ({
      epoch: last ? last.epoch + 1 : Date.now(),
      seq: 0,
      appended: last?.appended ?? 0,
      doubt: last?.doubt ?? null,
      queue: last?.queue ?? [],
    }))
    const producer = new Producer(options, state)
    producer.send()
    return producer
  }

  /** How many records were ever appended, in all lives: where a source is to be resumed. */
  get appended(): number {
    return this.state.appended
  }

  /** How many records wait for the server. */
  get waiting(): number {
    return this.state.queue.length
  }

  /**
   * Keep records durably; they are sent as soon as the server can be reached. All are kept, or none.
   * Wait for each call before the next one.
   */
  async append(...records: NewRecord[]): Promise<void> {
    if (this.closing.signal.aborted) throw new ClosedError("closed; nothing is appended any more")
    await this.change((state) => {
      const { queueMax = 1000 } = this.options
      if (state.queue.length + records.length > queueMax) {
        throw new RangeError(`${queueMax} records wait for the server; append again later`)
      }
      const appended = state.appended + records.length
      return { ...state, appended, queue: [...state.queue, ...records] }
    })
    this.send()
  }

  /** Wait until all records are stored; throws what keeps them from it. */
  async flush(): Promise<void> {
    while (this.state.queue.length) {
      if (this.closing.signal.aborted) {
        throw new ClosedError(`closed; records that wait in the place: ${this.waiting}`)
      }
      this.send()
      let tell: (error: Error) => void = () => undefined
      const told = new Promise<never>((_, reject) => (tell = reject))
      this.flushes.add(tell)
      await Promise.race([this.running, told]).finally(() => this.flushes.delete(tell))
      if (this.failure) throw this.failure
    }
  }

  /** The records of a request without a response; after the error `in_doubt`, see `settle`. */
  get inDoubt(): NewRecord[] {
    return this.state.queue.slice(0, this.state.doubt?.count ?? 0)
  }

  /** After the error `in_doubt`: say whether the log has the records in doubt, and go on. */
  async settle(inLog: boolean): Promise<void> {
    await this.change((state) => {
      const queue = inLog ? state.queue.slice(state.doubt?.count ?? 0) : state.queue
      return { ...state, epoch: state.epoch + 1, seq: 0, doubt: null, queue }
    })
    this.send()
  }

  /** End; what waits stays in the place, and the next life sends it. */
  async close(): Promise<void> {
    globalThis.removeEventListener?.("online", this.wake)
    this.closing.abort()
    this.hurry?.()
    await this.running
    if (this.waiting) this.warn("closed")
  }

  /** Say on the console why records wait, once for each reason: nobody may call `flush`. */
  private warn(reason: string): void {
    if (reason === this.lastWarning) return
    this.lastWarning = reason
    const { topic, id } = this.options
    console.warn(`pidlease: ${topic}, ${id}: records that wait in the place: ${this.waiting}; ${reason}`)
  }

  private async change(change: (state: State) => State): Promise<void> {
    const next = await this.options.place.update((state) => {
      if (state?.epoch !== this.state.epoch) throw new TakenOverError("another producer has the place")
      return change(state)
    })
    this.state = next
  }

  private send(): void {
    this.failure = null
    this.running ??= this.run()
      .catch((error: unknown) => {
        this.failure = error instanceof Error ? error : new Error(String(error))
        if (!this.flushes.size) this.warn(this.failure.message)
      })
      .finally(() => {
        this.running = null
        const waits = this.state.queue.length > 0 && !this.closing.signal.aborted
        if (waits && !this.failure) this.send() // appended just now
      })
  }

  private async run(): Promise<void> {
    while (this.state.queue.length && !this.closing.signal.aborted) {
      const sentBefore = this.state.doubt !== null
      if (!sentBefore) {
        await this.change((state) => {
          const count = Math.min(state.queue.length, this.options.batchMax ?? 100)
          const doubt = { epoch: state.epoch, seq: state.seq, count, since: Date.now() }
          return { ...state, seq: state.seq + 1, doubt }
        })
      }
      if (!(await this.stored(sentBefore))) return
      await this.change((state) => {
        const queue = state.queue.slice((state.doubt as Doubt).count)
        return { ...state, doubt: null, queue }
      })
    }
  }

  /**
   * Send the request in doubt until it is stored; false: the producer is closed.
   *
   * `sent`: it may have been sent already, so it may be stored.
   */
  private async stored(sent: boolean): Promise<boolean> {
    const { url, topic, partition = 0, id, leaseSeconds = 86_400, pauseMaxMs = 5000 } = this.options
    const path = `/v1/topics/${encodeURIComponent(topic)}/partitions/${partition}/records`
    const body = JSON.stringify({ records: this.inDoubt })
    for (let pause = PAUSE_MIN_MS; ; pause = Math.min(pause * 2, pauseMaxMs), sent = true) {
      if (this.closing.signal.aborted) return false
      const doubt = this.state.doubt as Doubt
      if (Date.now() - doubt.since > leaseSeconds * 1000) throw inDoubtError()
      const headers = {
        "Content-Type": "application/json",
        // As UTF-8: fetch sends the lower byte of each character.
        "Producer-Id": String.fromCharCode(...new TextEncoder().encode(id)),
        "Producer-Epoch": String(doubt.epoch),
        "Producer-Seq": String(doubt.seq),
      }
      let refusal: Problem | null = null
      try {
        const signal = AbortSignal.any([this.closing.signal, AbortSignal.timeout(REQUEST_MS)])
        const request = { method: "POST", headers, body, signal }
        const response = await (this.options.fetch ?? fetch)(url + path, request)
        const answer = parsed(await response.text())
        // Not the status alone: fetch follows a redirect of a POST by a GET, of any page.
        if (response.ok && isAppended(answer)) return true
        if (response.status < 500 && ![408, 421, 429].includes(response.status)) {
          if (!response.ok && isProblem(answer)) refusal = answer
          else this.tellFlushes(url + path, response)
        }
      } catch {
        // No response, or not all of it: whether the records are stored is unknown. Send them again.
      }
      if (refusal?.code === "producer_seq_conflict" && refusal.expected_seq === 0) {
        // The server has forgotten this producer, and with it a request that it may have stored.
        if (sent) throw inDoubtError()
        await this.change((state) => {
          const epoch = state.epoch + 1
          return { ...state, epoch, seq: 1, doubt: { ...doubt, epoch, seq: 0 } }
        })
        continue
      }
      if (refusal?.code === "body_too_large" && !sent && doubt.count > 1) {
        // It was sent once only, so it is not stored. Half of it begins a new epoch.
        await this.change((state) => {
          const epoch = state.epoch + 1
          const count = doubt.count >> 1
          return { ...state, epoch, seq: 1, doubt: { ...doubt, epoch, seq: 0, count } }
        })
        return this.stored(false)
      }
      if (refusal?.code === "producer_fenced") throw new TakenOverError(refusal.detail)
      if (refusal) throw new RefusedError(refusal.code, refusal.detail)
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, pause * (0.5 + Math.random() / 2))
        this.hurry = () => (clearTimeout(timer), resolve())
      })
      this.hurry = null
    }
  }

  private tellFlushes(url: string, { redirected, status, url: last }: Response): void {
    const error = new NotPidleaseError(`${url}${redirected ? ` (redirected to ${last})` : ""} returned`
      + ` ${status}, and not as pidlease does: check \`url\`. The records wait, and are sent again`)
    for (const tell of this.flushes) tell(error)
    if (!this.flushes.size) this.warn(error.message)
  }
}

function parsed(text: string): Partial<Appended & Problem> {
  try {
    return (JSON.parse(text) ?? {}) as Partial<Appended & Problem>
  } catch {
    return {}
  }
}

function isAppended({ offset, duplicate }: Partial<Appended>): boolean {
  return (offset === null || typeof offset === "number") && typeof duplicate === "boolean"
}

function isProblem(answer: Partial<Problem>): answer is Problem {
  return typeof answer.code === "string" && typeof answer.detail === "string"
}

function inDoubtError(): RefusedError {
  return new RefusedError("in_doubt", "the server may have stored a request and forgotten that:"
    + " look at the log's end, and call settle()")
}

/** Keeps a producer's state in the browser's IndexedDB; tabs with the same name take over. */
export class BrowserPlace implements Place {
  constructor(private readonly name: string) {}

  async update(change: (state: State | null) => State): Promise<State> {
    const opening = indexedDB.open("pidlease", 1)
    opening.onupgradeneeded = () => opening.result.createObjectStore("producers")
    const database = await settled(opening)
    try {
      const options = { durability: "strict" } as const
      const transaction = database.transaction("producers", "readwrite", options)
      const done = new Promise<void>((resolve, reject) => {
        transaction.oncomplete = () => resolve()
        transaction.onabort = () => reject(transaction.error ?? new Error("not kept"))
      })
      done.catch(() => undefined)
      const store = transaction.objectStore("producers")
      const last = (await settled(store.get(this.name))) as State | undefined
      let next: State
      try {
        next = change(last ?? null)
        store.put(next, this.name)
      } catch (error) {
        transaction.abort()
        throw error
      }
      await done
      return next
    } finally {
      database.close()
    }
  }
}

function settled<Result>(request: IDBRequest<Result>): Promise<Result> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result)
    request.onerror = () => reject(request.error)
  })
}
