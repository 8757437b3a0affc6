// Appends the numbers below COUNT by the producer of clients/js, and goes on where it was after a
// crash. Prints a line for each record that is kept, and `stored` in the end.
import { FilePlace } from "./dist/file_place.js"
import { Producer } from "./dist/producer.js"

const [url, path, count] = process.argv.slice(2)
const place = await FilePlace.open(path)
const options = { url, topic: "t", id: "till", place, batchMax: 7, queueMax: 30, pauseMaxMs: 100 }
const producer = await Producer.open(options)
console.log(`opened ${producer.appended}`)
while (producer.appended < Number(count)) {
  const number = producer.appended
  try {
    await producer.append({ value: String(number) })
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
    await new Promise((resolve) => setTimeout(resolve, 5))
    continue
  }
  console.log(`kept ${number}`)
  await new Promise((resolve) => setTimeout(resolve, 2))
}
await producer.flush()
await producer.close()
await place.close()
console.log("stored")
