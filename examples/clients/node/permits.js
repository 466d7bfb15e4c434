// Runs jobs, at most two of a user at a time: a guard takes a permit, and gives it back when its job ends or fails.
//
//     node permits.js [ADDRESS [USER]]
"use strict";

const path = require("node:path");
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

// The user has as many jobs in flight as it may.
class Denied extends Error {}

function call(client, entries) {
  return new Promise((resolve, reject) => {
    const request = { domain: "clients", descriptors: [{ entries }] };
    const options = { deadline: Date.now() + DEADLINE_MS };
    client.ShouldRateLimit(request, options, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

// Runs a job while it holds a permit. Throws Denied if none is free.
async function withPermit(client, what, user, job) {
  const receipt = await take(client, what, user);
  try {
    return await job();
  } finally {
    // Also when the job fails. A second settle would take out the permit of another job.
    await settle(client, what, user, receipt);
  }
}

// Returns the receipt of a permit; undefined if weir does not answer, since this program goes on without a limit then.
async function take(client, what, user) {
  let answer;
  try {
    answer = await call(client, [{ key: "job", value: user }]);
  } catch (error) {
    console.log(`${what}: no answer (${grpc.status[error.code]}), started by the fallback`);
    return undefined;
  }
  if (answer.overall_code === "OVER_LIMIT") {
    throw new Denied(what);
  }
  console.log(`${what}: started, ${answer.statuses[0].limit_remaining} free`);
  return answer.dynamic_metadata.fields["weir.clients"].structValue.fields.receipt.stringValue;
}

// Gives a permit back, once. If this fails the permit ends by itself, when its window is over.
async function settle(client, what, user, receipt) {
  if (receipt === undefined) {
    return;
  }
  try {
    const entries = [{ key: "job", value: user }, { key: "weir.receipt", value: receipt }];
    const answer = await call(client, entries);
    console.log(`${what}: ended, ${answer.statuses[0].limit_remaining} free`);
  } catch (error) {
    console.log(`${what}: ended, but not settled (${grpc.status[error.code]})`);
  }
}

async function main() {
  const [address = "localhost:8081", user = "ann"] = process.argv.slice(2);
  const client = new RateLimitService(address, grpc.credentials.createInsecure());
  await withPermit(client, "job 1", user, async () => {
    try {
      await withPermit(client, "job 2", user, () => withPermit(client, "job 3", user, () => {}));
    } catch (error) {
      if (!(error instanceof Denied)) {
        throw error;
      }
      // The error leaves job 2, whose guard gives its permit back.
      console.log(`${error.message}: denied, try again later`);
    }
    await withPermit(client, "job 4", user, () => {});
  });
  client.close();
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
