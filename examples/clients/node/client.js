// Asks weir about requests, and about work whose cost is known only at its end.
//
//     node client.js [ADDRESS [USER]]
"use strict";

const path = require("node:path");
const { setTimeout: sleep } = require("node:timers/promises");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

// How long this program waits for one answer. weir receives it as grpc-timeout and does not work longer.
const DEADLINE_MS = Number(process.env.DEADLINE_MS ?? 100);

// The files of this repository's proto/, which have Envoy's messages. Copy that folder into your service.
const definition = loader.loadSync("envoy/service/ratelimit/v3/rls.proto", {
  includeDirs: [path.join(__dirname, "../../../proto")],
  keepCase: true,
  enums: String,
  defaults: true,
});
const { RateLimitService } = grpc.loadPackageDefinition(definition).envoy.service.ratelimit.v3;

// One attempt.
function call(client, request) {
  return new Promise((resolve, reject) => {
    const options = { deadline: Date.now() + DEADLINE_MS };
    client.ShouldRateLimit(request, options, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

// Asks about one descriptor, prints the answer, and returns whether the work may go on. `hits` is what to charge: null is
// 1, and 0 is a peek. With `refund` the hits are given back.
async function ask(client, what, key, value, { hits = null, refund = false } = {}) {
  const descriptor = { entries: [{ key, value }], is_negative_hits: refund };
  if (hits !== null) {
    descriptor.hits_addend = { value: hits };
  }
  const request = { domain: "clients", descriptors: [descriptor] };

  let answer;
  for (let attempt = 1; answer === undefined; attempt++) {
    try {
      answer = await call(client, request);
    } catch (error) {
      // weir answers UNAVAILABLE when nothing was charged. After DEADLINE_EXCEEDED a second attempt could charge twice.
      if (error.code === grpc.status.UNAVAILABLE && attempt === 1) {
        await sleep(5 + 15 * Math.random());
      } else if (error.code === grpc.status.UNAVAILABLE || error.code === grpc.status.DEADLINE_EXCEEDED) {
        // The fallback of this program: work goes on without limits while weir does not answer.
        console.log(`${what}: no answer (${grpc.status[error.code]}), attempts: ${attempt}, admitted by the fallback`);
        return true;
      } else {
        // INVALID_ARGUMENT and the like: this program is wrong.
        throw error;
      }
    }
  }

  const status = answer.statuses[0];
  if (answer.overall_code === "OVER_LIMIT") {
    console.log(`${what}: denied, try again in ${status.duration_until_reset.seconds} s`);
    return false;
  }
  console.log(`${what}: admitted, ${status.limit_remaining} left`);
  return true;
}

async function main() {
  const [address = "localhost:8081", user = "ann"] = process.argv.slice(2);
  // Share one client in a process: many requests share its connection.
  const client = new RateLimitService(address, grpc.credentials.createInsecure());

  for (let number = 1; number <= 4; number++) {
    await ask(client, `request ${number}`, "user", user);
  }
  await ask(client, "peek", "user", user, { hits: 0 });
  await ask(client, "refund", "user", user, { hits: 1, refund: true });
  await ask(client, "peek", "user", user, { hits: 0 });

  if (await ask(client, "before the work", "tokens", user, { hits: 0 })) {
    await ask(client, "report of 1200 tokens", "tokens", user, { hits: 1200 });
  }
  await ask(client, "before more work", "tokens", user, { hits: 0 });
  client.close();
}

main();
