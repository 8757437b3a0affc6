// Lets several processes open one file at the same time, again and again; those that get it are
// killed. Prints how many got it in each round.
import { fork } from "node:child_process"
import { once } from "node:events"
import { fileURLToPath } from "node:url"

import { FilePlace } from "./dist/file_place.js"

const [path, rounds] = process.argv.slice(2)
if (rounds) {
  for (let round = 0; round < Number(rounds); round++) {
    const children = Array.from({ length: 4 }, () => fork(fileURLToPath(import.meta.url), [path]))
    await Promise.all(children.map((child) => once(child, "message")))
    const answers = children.map((child) => once(child, "message"))
    for (const child of children) child.send("open")
    const owners = (await Promise.all(answers)).filter(([answer]) => answer === "mine")
    console.log(owners.length)
    const exits = children.map((child) => once(child, "exit"))
    for (const child of children) child.kill("SIGKILL")
    await Promise.all(exits)
  }
} else {
  process.on("message", async () => {
    process.send(await FilePlace.open(path).then(() => "mine", (error) => String(error)))
  })
  process.send("ready")
}
