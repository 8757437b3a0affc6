// Appends a record with the producer of clients/js through a proxy, which first does what proxies do
// that are not set up, and in the end redirects requests to the server. Prints what happens.
import { once } from "node:events"
import { createServer } from "node:http"

import { Producer } from "./dist/producer.js"

const [server] = process.argv.slice(2)
let answer = null
const proxy = createServer((request, response) => {
  request.resume()
  if (request.url === "/login") response.end("<html>sign in</html>")
  else answer(request, response)
}).listen(0, "127.0.0.1")
await once(proxy, "listening")
const url = `http://127.0.0.1:${proxy.address().port}`

const redirect = (status, to) => (request, response) => {
  response.writeHead(status, { Location: to ?? server + request.url }).end()
}
const respond = (status, body) => (_, response) => void response.writeHead(status).end(body)
answer = redirect(302, "/login")
let kept = null
const place = { update: async (change) => (kept = change(kept)) }
const producer = await Producer.open({ url, topic: "t", id: "till", place, pauseMaxMs: 50 })
const flush = () => producer.flush().then(
  () => console.log("stored"),
  ({ constructor, message }) => console.log(
    `${constructor.name}: ${message}`.replaceAll(url, "PROXY").replaceAll(server, "SERVER"),
  ),
)

await producer.append({ value: "1" })
await flush()
const answers = [
  redirect(301), redirect(303), // fetch goes on with a GET: the read of the records
  respond(200, ""), respond(200, "null"), respond(200, '{"offset": 0}'), respond(204),
  respond(404, "<html>not here</html>"), respond(403, '{"code": 7}'),
]
for (answer of answers) await flush()
console.log("waiting", producer.waiting)
answer = redirect(307) // fetch goes on with the same POST
await flush()
await producer.close()
proxy.close()
proxy.closeAllConnections()
