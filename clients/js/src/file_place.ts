/** Keeps a producer's state in a file, for Node. One process at a time may have it. */

import { randomUUID } from "node:crypto"
import { mkdir, open, readFile, readdir, rename, rm, rmdir, writeFile } from "node:fs/promises"
import { dirname, join } from "node:path"

import type { Place, State } from "./producer.js"

export class FilePlace implements Place {
  private last: Promise<unknown> = Promise.resolve()

  private constructor(private readonly path: string, private readonly lock: string) {}

  /**
   * Take a file; throws if another process that still runs has it.
   *
   * The lock is a folder with one empty file, named after its owner. One rename creates both, or
   * replaces an owner that was killed; it fails if another process was faster.
   */
  static async open(path: string): Promise<FilePlace> {
    const folder = `${path}.lock`
    const owner = `${process.pid}-${randomUUID()}`
    const aside = `${folder}.${owner}`
    await mkdir(aside)
    try {
      await writeFile(join(aside, owner), "")
      while (!(await renamed(aside, folder))) {
        const [last] = await readdir(folder).catch(ignore("ENOENT", []))
        if (last === undefined) continue // it was given back just now
        const pid = Number.parseInt(last, 10)
        if (pid !== process.pid && isAlive(pid)) {
          throw new Error(`${path} belongs to process ${pid}; if that is another program, remove ${folder}`)
        }
        if (await renamed(join(folder, last), join(folder, owner))) break
      }
      return new FilePlace(path, join(folder, owner))
    } finally {
      await rm(aside, { recursive: true, force: true })
    }
  }

  /** Give the file back. */
  async close(): Promise<void> {
    await this.last
    await rm(this.lock, { force: true })
    // Another process may have it already.
    await rmdir(dirname(this.lock)).catch(ignore("ENOENT ENOTEMPTY EEXIST", undefined))
  }

  update(change: (state: State | null) => State): Promise<State> {
    const next = this.last.then(() => this.replace(change))
    this.last = next.catch(() => undefined)
    return next
  }

  private async replace(change: (state: State | null) => State): Promise<State> {
    const text = await readFile(this.path, "utf8").catch(ignore("ENOENT", "null"))
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

/** Rename a file or folder; false: `from` is gone, or `to` is a folder that is not empty. */
function renamed(from: string, to: string): Promise<boolean> {
  return rename(from, to).then(() => true).catch(ignore("ENOENT ENOTEMPTY EEXIST", false))
}

/** Return a handler of errors that replaces those with one of some codes by a result. */
function ignore<Result>(codes: string, result: Result): (error: { code?: string }) => Result {
  return (error) => {
    if (codes.split(" ").includes(error.code ?? "")) return result
    throw error
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
