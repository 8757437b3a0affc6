// Closes the producer of clients/js while a record waits, and appends it in its next life. Prints what
// happens.
import { Producer } from "./dist/producer.js"

const [url] = process.argv.slice(2)
let kept = null
const place = { update: async (change) => (kept = change(kept)) }
const options = { url, topic: "t", id: "till", place, pauseMaxMs: 50 }
const said = (call) => call.then(
  () => console.log("returned"),
  (error) => console.log(`${error.constructor.name}: ${error.message}`),
)

let arrived = null
const arrives = new Promise((resolve) => (arrived = resolve))
const offline = async () => {
  arrived()
  throw new TypeError("offline")
}
let producer = await Producer.open({ ...options, fetch: offline })
await producer.append({ value: "1" })
const flushed = said(producer.flush())
await arrives
await producer.close()
await flushed
await said(producer.flush())
await said(producer.append({ value: "2" }))
console.log("kept", ...kept.queue.map((each) => each.value))

producer = await Producer.open(options)
await said(producer.flush())
await producer.close()
await said(producer.flush()) // nothing waits
