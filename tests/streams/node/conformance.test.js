// Runs the official suite against the server at BASE_URL.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

runConformanceTests({ baseUrl: process.env.BASE_URL })
