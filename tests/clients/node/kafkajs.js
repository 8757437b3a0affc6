// A producer and a group consumer with kafkajs.
//
//   node kafkajs.js produce --bootstrap HOST:PORT --topic T --codec C --stream S --count N
//   node kafkajs.js produce ... --partition kafkajs
//   node kafkajs.js consume --bootstrap HOST:PORT --topic T --group G --count N
//
// Prints what go/lines/lines.go says.
'use strict'

const fs = require('node:fs')
const { parseArgs } = require('node:util')
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = require('kafkajs')
const lz4 = require('lz4-napi')
const snappy = require('kafkajs-snappy')
const zstd = require('@bokuweb/zstd-wasm')

// kafkajs brings gzip, and takes the others from whoever registers them.
CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: async (buffer) => lz4.decompressFrame(buffer),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer, 3)),
  // Where a frame does not say how long its content is: more than any batch holds.
  decompress: async (buffer) =>
    Buffer.from(zstd.decompress(buffer, { defaultHeapSize: 16 << 20 })),
})

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}
// Not the same number for each partition: going round ends elsewhere than it began.
const SENT_AT_ONCE = 401

const say = (...words) => fs.writeSync(1, words.join(' ') + '\n')

async function produce(kafka, options) {
  // kafkajs's own rules for idempotence: acks of all, one request at a time, any number of
  // retries. It asks its partitioner again for each retry, and for records without a key that
  // goes on round from where it stopped: what was stored and what is sent again are then not the
  // same batches, whatever the server does. So each record has its partition, unless it is asked
  // for what kafkajs does by itself (test_kafkajs.py); then it is not told what stands where.
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const admin = kafka.admin()
  await admin.connect()
  const [{ partitions }] = (await admin.fetchTopicMetadata({ topics: [options.topic] })).topics
  await admin.disconnect()
  for (let first = 0; first < options.count; first += SENT_AT_ONCE) {
    const numbers = new Map(partitions.map(({ partitionId }) => [partitionId, []]))
    const messages = []
    for (let number = first; number < Math.min(first + SENT_AT_ONCE, options.count); number++) {
      const { partitionId } = partitions[number % partitions.length]
      numbers.get(partitionId).push(number)
      messages.push({
        partition: options.partition === 'kafkajs' ? undefined : partitionId,
        value: `${options.stream}.${number} `.padEnd(100, '.'),
      })
    }
    const sent = await producer.send({
      topic: options.topic,
      acks: -1,
      compression: CODECS[options.codec],
      messages,
    })
    if (options.partition === 'kafkajs') continue
    const lines = []
    for (const { partition, baseOffset } of sent) {
      numbers.get(partition).forEach((number, place) => {
        lines.push(`acked ${number} ${partition} ${BigInt(baseOffset) + BigInt(place)}`)
      })
    }
    say(lines.join('\n'))
  }
  await producer.disconnect()
}

async function consume(kafka, options) {
  const consumer = kafka.consumer({ groupId: options.group })
  await consumer.connect()
  await consumer.subscribe({ topic: options.topic, fromBeginning: true })
  let left = options.count
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    const eachBatch = async ({ batch, resolveOffset, commitOffsetsIfNecessary, heartbeat }) => {
      const lines = batch.messages.map(({ offset, value }) => {
        const identity = value.subarray(0, value.indexOf(' ') + 1 || undefined).toString().trim()
        return `read ${identity} ${batch.partition} ${offset}`
      })
      if (lines.length > 0) say(lines.join('\n'))
      resolveOffset(batch.lastOffset())
      await heartbeat()
      await commitOffsetsIfNecessary()
      left -= lines.length
      if (left <= 0) resolve()
    }
    consumer.run({ eachBatch }).catch(reject)
  })
  await consumer.disconnect() // commits what was resolved
}

// The login that the variables name (tests/clients/login.py).
function login() {
  const { LOGIN_CA, LOGIN_MECHANISM, LOGIN_USER, LOGIN_PASSWORD } = process.env
  if (!LOGIN_CA) return {}
  const read = (name) => process.env[name] && fs.readFileSync(process.env[name], 'utf8')
  const ssl = { ca: [read('LOGIN_CA')], cert: read('LOGIN_CERTIFICATE'), key: read('LOGIN_KEY') }
  if (!LOGIN_MECHANISM) return { ssl }
  const mechanism = LOGIN_MECHANISM.toLowerCase()
  if (mechanism === 'oauthbearer') {
    const value = read('LOGIN_TOKEN_FILE')
    return { ssl, sasl: { mechanism, oauthBearerProvider: async () => ({ value }) } }
  }
  return { ssl, sasl: { mechanism, username: LOGIN_USER, password: LOGIN_PASSWORD } }
}

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: Object.fromEntries(
      ['bootstrap', 'topic', 'codec', 'stream', 'partition', 'group', 'count'].map((name) => [
        name,
        { type: 'string' },
      ]),
    ),
  })
  const options = { ...values, count: Number(values.count) }
  say('client', require('kafkajs/package.json').version)
  await zstd.init()
  const kafka = new Kafka({
    brokers: [options.bootstrap],
    ...login(),
    logLevel: logLevel.ERROR,
    // It tells what it retries at this level; only what it gives up is an error here.
    logCreator: () => ({ log }) => process.stderr.write(`${log.message}\n`),
    // The five retries that it comes with end before a server has started again.
    retry: { retries: 1000, maxRetryTime: 500 },
  })
  await { produce, consume }[positionals[0]](kafka, options)
  say('done')
}

process.env.KAFKAJS_NO_PARTITIONER_WARNING = '1'
main().then(
  () => process.exit(0),
  (error) => {
    process.stderr.write(`${error.stack}\n`)
    process.exit(1)
  },
)
