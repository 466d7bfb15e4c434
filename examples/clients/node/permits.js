// Runs jobs, at most two of a user at a time, and answers whose cost is known at their end: a guard takes a permit, or an estimate
// of tokens, and settles it when its work ends or fails.
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

// The user has as many jobs in flight as it may, or fewer tokens left than the estimate.
class Denied extends Error {}

function call(client, entries, hits) {
  return new Promise((resolve, reject) => {
    const hits_addend = hits === undefined ? undefined : { value: hits };
    const request = { domain: "clients", descriptors: [{ entries, hits_addend }] };
    const options = { deadline: Date.now() + DEADLINE_MS };
    client.ShouldRateLimit(request, options, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

// Runs a job while it holds a permit. Throws Denied if none is free.
async function withPermit(client, what, user, job) {
  const receipt = await take(client, what, "job", user);
  try {
    return await job();
  } finally {
    // Also when the job fails. A second settle would take out the permit of another job.
    await settle(client, what, "job", user, receipt);
  }
}

// Does work that holds an estimate of tokens. The work sets `used` of its argument to the tokens that it has used; the others go back.
// Throws Denied if fewer tokens than the estimate are left.
async function withEstimate(client, what, user, estimate, work) {
  const receipt = await take(client, what, "budget", user, estimate);
  // What the work is charged if it fails before it knows how many it has used.
  const tokens = { used: estimate };
  try {
    return await work(tokens);
  } finally {
    // Also when the work fails.
    await settle(client, what, "budget", user, receipt, tokens.used);
  }
}

// Returns a receipt; undefined if weir does not answer, since this program goes on without a limit then, or if it holds nothing.
async function take(client, what, key, user, estimate) {
  let answer;
  try {
    answer = await call(client, [{ key, value: user }], estimate);
  } catch (error) {
    console.log(`${what}: no answer (${grpc.status[error.code]}), started by the fallback`);
    return undefined;
  }
  if (answer.overall_code === "OVER_LIMIT") {
    throw new Denied(what);
  }
  const left = answer.statuses[0].limit_remaining;
  console.log(`${what}: ` + (estimate === undefined ? `started, ${left} free` : `holds ${estimate}, ${left} left`));
  return answer.dynamic_metadata?.fields["weir.clients"]?.structValue.fields.receipt?.stringValue;
}

// Settles a receipt, once. If this fails the permit or the estimate ends by itself, when its window is over.
async function settle(client, what, key, user, receipt, used) {
  if (receipt === undefined) {
    return;
  }
  try {
    const entries = [{ key, value: user }, { key: "weir.receipt", value: receipt }];
    const left = (await call(client, entries, used)).statuses[0].limit_remaining;
    console.log(`${what}: ` + (used === undefined ? `ended, ${left} free` : `used ${used}, ${left} left`));
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
  await withEstimate(client, "answer 1", user, 400, (tokens) => {
    tokens.used = 37;
  });
  await withEstimate(client, "answer 2", user, 400, (tokens) => {
    // More than the estimate is charged all the same.
    tokens.used = 500;
  });
  client.close();
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
