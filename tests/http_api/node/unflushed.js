// Appends with the producer of clients/js to a partition that does not exist, and never flushes. Prints what
// the console is given.
import { Producer } from "./dist/producer.js"

const [url] = process.argv.slice(2)
let kept = null
const place = { update: async (change) => (kept = change(kept)) }
let warned = () => undefined
console.warn = (text) => {
  console.log(text)
  warned()
}
const warns = () => new Promise((resolve) => (warned = resolve))

let warning = warns()
let producer = await Producer.open({ url, topic: "t", partition: 99, id: "till", place })
await producer.append({ value: "1" })
await warning
await producer.append({ value: "2" }) // the same reason again: no second line
await producer.close()

const login = async () => new Response("<html>log in</html>", { status: 200 })
warning = warns()
producer = await Producer.open({ url: "http://hotel", topic: "t", id: "till", place, fetch: login })
await warning
await producer.flush().catch((error) => console.log(error.constructor.name))
await producer.close()

producer = await Producer.open({ url, topic: "t", id: "till", place })
await producer.flush()
await producer.close()
console.log("kept", kept.queue.length)
