// Appends {"n": 0}, {"n": 1}, ... to a stream by the official client's idempotent producer, and reads
// them back by a live reader meanwhile, until the file STOP exists; then it closes the stream.
// Prints a line for each flush, and in the end what the reader got.
import { existsSync, writeFileSync } from "node:fs"
import { DurableStream, IdempotentProducer, stream } from "@durable-streams/client"

const [url, live, stop, result] = process.argv.slice(2)
const backoff = { initialDelay: 20, maxDelay: 200, multiplier: 1.3, maxRetries: Infinity }

// The producer sends a batch once, and handles 409 itself (a batch before it is still on its way).
// What it does not handle is a server that is away; the client's own fetch with retries throws at
// 409, so it cannot be used here.
async function patient(...call) {
  for (;;) {
    try {
      const response = await fetch(...call)
      if (response.status < 500) return response
      await response.body?.cancel()
    } catch (error) {
      if (call[1]?.signal?.aborted) throw error
    }
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

const handle = await DurableStream.create({
  url, contentType: "application/json", fetch: patient, backoffOptions: backoff,
})

async function read() {
  const got = []
  let offset = "-1"
  let ended = false
  // A reader that is cut off goes on at its offset.
  for (;;) {
    try {
      const response = await stream({ url, offset, live, json: true, fetch: patient,
                                      backoffOptions: backoff })
      await new Promise((resolve, reject) => {
        response.subscribeJson(async (batch) => {
          for (const item of batch.items) got.push(item.n)
          offset = batch.offset
          ended = batch.streamClosed
        })
        response.closed.then(resolve, reject)
      })
      // Not response.streamClosed: it may be set before the last batch is delivered.
      if (ended) return got
    } catch (error) {
      console.log(`reading again at ${offset}: ${error}`)
    }
  }
}

const reading = read()
const failures = []
const producer = new IdempotentProducer(handle, "the-producer", {
  fetch: patient, lingerMs: 1, maxInFlight: 5, onError: (error) => failures.push(String(error)),
})
let n = 0
while (!existsSync(stop)) {
  for (let i = 0; i < 20; i++) {
    for (let j = 0; j < 3; j++) producer.append(JSON.stringify({ n: n++ }))
    await new Promise((resolve) => setTimeout(resolve, 2)) // several batches in flight
  }
  await producer.flush()
  console.log(`flushed ${n}`)
}
await producer.close(JSON.stringify({ n: n++ }))
console.log("closed")
const got = await reading
writeFileSync(result, JSON.stringify({ appended: n, got, failures }))
process.exit(0)
