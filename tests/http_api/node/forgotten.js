// Appends 1 to 5 with the producer of clients/js to a server that forgets it meanwhile, and settles
// what is in doubt. Prints what happens.
import { Producer } from "./dist/producer.js"

const [url, leaseMs] = process.argv.slice(2)
let kept = null
const place = { update: async (change) => (kept = change(kept)) }
const network = { arrives: true, returns: true }
const options = {
  url, topic: "t", id: "till", place, pauseMaxMs: 50,
  fetch: async (...request) => {
    if (!network.arrives) throw new TypeError("offline")
    const response = await fetch(...request)
    if (network.returns) return response
    network.arrives = false
    throw new TypeError("the response is lost")
  },
}
const lease = () => new Promise((resolve) => setTimeout(resolve, 2 * leaseMs))
let producer = await Producer.open(options)

async function flush() {
  await producer.flush().then(
    () => console.log("stored"),
    (error) => console.log(error.code ?? error, ...producer.inDoubt.map((each) => each.value)),
  )
}

async function append(value) {
  await producer.append({ value })
}

await append("1")
await flush()
await lease()
await append("2")
await flush()

network.returns = false
await append("3")
await lease()
Object.assign(network, { arrives: true, returns: true })
await flush()
await producer.close()
producer = await Producer.open(options)
await flush()
await producer.settle(true)
await append("4")
await flush()

network.arrives = false
await append("5")
await lease()
network.arrives = true
await flush()
await producer.settle(false)
await flush()
await producer.close()
