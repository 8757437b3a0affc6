// node file_server.js PORT FOLDER: the reference server, with its streams in files.
import { DurableStreamTestServer } from "@durable-streams/server"

const [port, dataDir] = process.argv.slice(2)
const server = new DurableStreamTestServer({ host: "127.0.0.1", port: Number(port), dataDir })
process.on("SIGTERM", async () => {
  await server.stop()
  process.exit(0)
})
await server.start()
