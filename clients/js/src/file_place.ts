/** Keeps a producer's state in a file, for Node. One process at a time may have it. */

import { open, readFile, rename, rm } from "node:fs/promises"
import { dirname } from "node:path"

import type { Place, State } from "./producer.js"

export class FilePlace implements Place {
  private last: Promise<unknown> = Promise.resolve()

  private constructor(private readonly path: string) {}

  /** Take a file; throws if another process that still runs has it. */
  static async open(path: string): Promise<FilePlace> {
    const lock = `${path}.lock`
    for (;;) {
      try {
        const file = await open(lock, "wx")
        await file.writeFile(String(process.pid))
        await file.close()
        return new FilePlace(path)
      } catch (error) {
        if ((error as { code?: string }).code !== "EEXIST") throw error
      }
      const owner = Number(await readFile(lock, "utf8").catch(() => "0"))
      if (owner && owner !== process.pid && isAlive(owner)) {
        throw new Error(`${path} belongs to process ${owner}; if that is another program, remove ${lock}`)
      }
      await rm(lock, { force: true }) // its process was killed
    }
  }

  /** Give the file back. */
  async close(): Promise<void> {
    await this.last
    await rm(`${this.path}.lock`, { force: true })
  }

  update(change: (state: State | null) => State): Promise<State> {
    const next = this.last.then(() => this.replace(change))
    this.last = next.catch(() => undefined)
    return next
  }

  private async replace(change: (state: State | null) => State): Promise<State> {
    const text = await readFile(this.path, "utf8").catch((error: { code?: string }) => {
      if (error.code === "ENOENT") return "null"
      throw error
    })
    const next = change(JSON.parse(text) as State | null)
    const aside = `${this.path}.new`
    const file = await open(aside, "w")
    await file.writeFile(JSON.stringify(next))
    await file.sync()
    await file.close()
    await rename(aside, this.path)
    const folder = await open(dirname(this.path), "r")
    await folder.sync()
    await folder.close()
    return next
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as { code?: string }).code === "EPERM"
  }
}
