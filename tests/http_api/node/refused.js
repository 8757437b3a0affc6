// Appends large records with the producer of clients/js, under an id that is no ASCII; the third
// response is 421, as in a hand-over between servers. Prints what happens.
import { Producer } from "./dist/producer.js"

const [url] = process.argv.slice(2)
let kept = null
let requests = 0
const place = { update: async (change) => (kept = change(kept)) }
const options = {
  url, topic: "t", id: "касса-7", place, pauseMaxMs: 50,
  fetch: async (...request) => {
    requests++
    if (requests !== 3) return fetch(...request)
    return new Response(JSON.stringify({ code: "not_owner", detail: "elsewhere" }), { status: 421 })
  },
}
const producer = await Producer.open(options)
const values = [1, 2, 3, 4, 5, 6, 7].map((each) => String(each).repeat(400_000))
await producer.append(...values.map((value) => ({ value })))
await producer.flush().then(() => console.log("stored"), (error) => console.log(error.code ?? error))
await producer.close()
