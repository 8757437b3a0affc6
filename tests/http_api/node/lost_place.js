// Appends with the producer of clients/js, loses its place, and appends again under the same id; then
// goes on with the lost place, and with an empty one by a clock that is behind, in the end under another
// id. Prints what happens.
import { Producer } from "./dist/producer.js"

const [url] = process.argv.slice(2)
let now = 1000
Date.now = () => (now += 10)

function place() {
  let kept = null
  return { update: async (change) => (kept = change(kept)) }
}

async function live(id, place, ...values) {
  const producer = await Producer.open({ url, topic: "t", id, place })
  for (const value of values) {
    await producer.append({ value })
    await producer.flush().then(
      () => console.log("stored"),
      (error) => console.log(error.constructor.name),
    )
  }
  await producer.close()
}

const lost = place()
await live("till", lost, "1", "2", "3")
const found = place()
await live("till", found, "4", "5")
await live("till", found, "6")
await live("till", lost, "7")
now = 0
const behind = place()
await live("till", behind, "8")
await live("till-2", behind, "9")
