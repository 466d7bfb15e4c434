"use strict";
// The live page of the admin listener. It only reads. What comes from the server is text and never markup: it enters the page by
// textContent alone.

const EVERY_MS = 2000;
// The time between two looks of this page. What is older is an average since somebody last looked, and no rate of now.
const LOOK_MAX_MS = 3 * EVERY_MS;
const TIMEOUT_MS = 5000;
const SHARED_MS = 1500;
const SERIES_MAX = 6;
const POINTS_MAX = 150;
const RULES_MAX = 2000;
// The page of the runbook that says what to do if a store does not decide.
const RUNBOOK = "docs/operations.md#redis-does-not-answer";
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);
const requests = [];
const limits = new Map();
let shownGeneration = "";
let timer = 0;
let paused = false;
let running = false;
let again = false;
// Sent with each request, and stored nowhere.
let token = "";
// Whether weir asks for a token. Until there is one, the page asks weir for nothing.
let needsToken = false;
// When the server made the first report for this page, less the age to which it shares one.
let firstLookMs = 0;

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function row(cells, numbersFrom) {
  const made = element("tr");
  cells.forEach((cell, at) => made.append(element("td", String(cell), at >= numbersFrom ? "number" : "")));
  return made;
}

function shorten(number) {
  if (number >= 1000000) return (number / 1000000).toFixed(1) + "M";
  if (number >= 10000) return (number / 1000).toFixed(1) + "k";
  return number >= 100 || Number.isInteger(number) ? String(Math.round(number)) : number.toFixed(1);
}

function clock(ms) {
  return new Date(ms).toLocaleTimeString([], { hour12: false });
}

// Lines over time; `series` is [{name, values}], all of one length.
function plot(into, series, label, oldest) {
  const width = Math.max(300, into.clientWidth - 14), height = 176, left = 48, bottom = 22, top = 8;
  const count = Math.max(2, ...series.map((one) => one.values.length));
  const most = Math.max(1, ...series.flatMap((one) => one.values));
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const y = (value) => height - bottom - (value / most) * (height - bottom - top);
  for (const part of [0, 0.5, 1]) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width, y1: y(most * part), y2: y(most * part) }));
    svg.append(drawn("text", { x: 2, y: y(most * part) + 4 }, shorten(most * part)));
  }
  svg.append(drawn("text", { x: left, y: height - 4 }, oldest));
  svg.append(drawn("text", { x: width - 30, y: height - 4 }, "now"));
  series.forEach((one, at) => {
    const shift = count - one.values.length;
    const x = (position) => left + ((position + shift) / (count - 1)) * (width - left);
    const points = one.values.map((value, position) => `${x(position).toFixed(1)},${y(value).toFixed(1)}`);
    svg.append(drawn("polyline", { class: "s" + at, points: points.join(" ") }));
  });
  into.replaceChildren(svg);
}

function legend(into, names) {
  into.replaceChildren(...names.map((name, at) => {
    const item = element("li");
    const mark = drawn("svg", { viewBox: "0 0 32 8", "aria-hidden": "true" });
    mark.append(drawn("line", { class: "s" + at, x1: 0, x2: 32, y1: 4, y2: 4 }));
    item.append(mark, document.createTextNode(name));
    return item;
  }));
}

function state(id, text, isGood) {
  const shown = byId(id);
  shown.textContent = text;
  shown.className = isGood ? "good" : "bad";
}

function showHealth(top, ready) {
  const { name, version } = top.instance;
  byId("instance").textContent = name || "unnamed";
  byId("version").textContent = version;
  document.title = name ? `weir ${name}` : "weir";
  state("phase", ready.ready ? "ready" : ready.phase, ready.ready);
  state("store", top.store.name + (top.store.answered ? " answers" : " does not answer"), top.store.answered);
  state("circuit", top.store.circuit, top.store.circuit === "closed");
  byId("queue").textContent = shorten(top.store.queue);
  const { rules, domains, problem_count: count, unmet_overlay_count: unmetCount } = ready.policies;
  // Only a token for all domains gets the texts.
  const { problems = [], unmet_overlays: unmet = [] } = ready.policies;
  byId("rules").textContent = `${rules} in ${domains} ${domains === 1 ? "domain" : "domains"}`;
  state("problem-count", String(count), count === 0);
  byId("problems-section").hidden = problems.length === 0;
  byId("problems").replaceChildren(...problems.map((problem) => element("li", problem)));
  byId("overlays").hidden = unmetCount === 0;
  byId("overlays").textContent = `Overlays that meet no limit: ${unmetCount}${unmet.length ? `, such as ${unmet[0]}` : ""}.`;
}

// Who decides now, and how fast. Rates are shown if they are of the time since this page looked.
function showDecider(top) {
  const { interval_ms: ms, on_error: by, p50_us: p50, p99_us: p99 } = top.busiest;
  const parts = top.store.answered ? ["store"] : [];
  for (const [name, count] of [["local", by.local], ["nobody", by.error + by.allow + by.deny]]) {
    if (hasRates(top) && count > 0) parts.push(`${name} ${shorten((count * 1000) / ms)}/s`);
  }
  if (parts.length === 0) parts.push("nobody");
  const isGood = parts.length === 1 && top.store.answered;
  state("decides", parts.join(", ") + (isGood ? "" : ": see " + RUNBOOK), isGood);
  const time = (us) => (us === null || !hasRates(top) ? "\u2013" : us < 1000 ? `${us} us` : `${us / 1000} ms`);
  byId("times").textContent = `${time(p50)}, ${time(p99)}`;
  const minutes = Math.floor(top.uptime_s / 60), hours = Math.floor(minutes / 60);
  byId("uptime").textContent = hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

function showDenials(top) {
  const most = top.limits.slice(0, SERIES_MAX);
  const perSecond = (count) => (count * 1000) / top.step_ms;
  const series = most.map((limit) => ({ name: nameOf(limit), values: limit.history.slice(0, -1).map(perSecond) }));
  plot(byId("denials-plot"), series, "Denials a second by limit; the list below has the numbers", `${top.minutes} min ago`);
  legend(byId("denials-legend"), series.map((one, at) => `${one.name}: ${shorten(most[at].denials)}`));
}

function nameOf(limit) {
  return `${limit.domain} ${limit.rule} (${limit.limit})`;
}

// Whether this page has looked when the time began that the rates are of.
function hasRates(top) {
  const ms = top.busiest.interval_ms;
  return ms > 0 && ms <= LOOK_MAX_MS && top.now_ms - ms >= firstLookMs;
}

function showRequests(top) {
  const { interval_ms: ms, requests: by } = top.busiest;
  if (hasRates(top)) {
    requests.push([by.ok, by.over_limit, by.store_failed].map((count) => (count * 1000) / ms));
    if (requests.length > POINTS_MAX) requests.shift();
  }
  const names = ["ok", "over limit", "failed"];
  const series = names.map((name, at) => ({ name, values: requests.map((point) => point[at]) }));
  plot(byId("requests-plot"), series, "Requests a second by result", "");
  const last = requests[requests.length - 1];
  legend(byId("requests-legend"), names.map((name, at) => `${name}: ${last ? shorten(last[at]) : "\u2013"}/s`));
}

// One entry for each limit. It stays open, and keeps the focus, while its numbers change.
function entryOf(limit) {
  const id = JSON.stringify([limit.domain, limit.rule, limit.limit]);
  let entry = limits.get(id);
  if (!entry) {
    const details = element("details");
    const summary = element("summary");
    const table = element("table");
    const head = element("tr");
    for (const name of ["who", "first", "last", "denials"]) head.append(element("th", name, name === "denials" ? "number" : ""));
    const top = element("thead");
    top.append(head);
    const body = element("tbody");
    table.append(top, body);
    details.append(summary, table);
    details.open = limits.size < 3;
    entry = { details, summary, body };
    limits.set(id, entry);
  }
  return entry;
}

function showLimits(top) {
  byId("nobody").hidden = top.limits.length > 0;
  const kept = new Set();
  const wanted = top.limits.map((limit) => {
    const entry = entryOf(limit);
    kept.add(entry);
    const watches = limit.role === "shadow" ? " (shadow)" : "";
    entry.summary.replaceChildren(
      element("span", shorten(limit.denials), "count"),
      document.createTextNode(` denials by ${nameOf(limit)}${watches} `),
    );
    entry.body.replaceChildren(...limit.keys.map((key) => {
      const count = key.denials_min === key.denials_max ? `${key.denials_min}` : `${key.denials_min} to ${key.denials_max}`;
      const who = key.row === null ? key.descriptor : `${key.descriptor} (${key.row})`;
      return row([who, clock(key.first_ms), clock(key.last_ms), count], 3);
    }));
    return entry.details;
  });
  for (const [id, entry] of limits) {
    if (!kept.has(entry)) {
      entry.details.remove();
      limits.delete(id);
    }
  }
  const into = byId("limited");
  wanted.forEach((details, at) => {
    if (into.children[at] !== details) into.insertBefore(details, into.children[at] || null);
  });
  const leftOut = top.limits_left_out;
  byId("left-out").hidden = leftOut === 0 && top.denials_left_out === 0;
  byId("left-out").textContent = `${leftOut} more limits and ${shorten(top.denials_left_out)} denials of others are not shown.`;
}

// Hits in the unit in which people read them: exactly, with at least two decimals.
function hitsOf(count, amount) {
  if (!amount) return `${count}`;
  const decimals = `${amount.scale}`.length - 1;
  const digits = `${count}`.padStart(decimals + 1, "0");
  const at = digits.length - decimals;
  return `${digits.slice(0, at)}.${digits.slice(at).replace(/0+$/, "").padEnd(2, "0")} ${amount.in}`;
}

function showBusiest(top) {
  const { interval_ms: ms, limits: busy } = top.busiest;
  const perSecond = (count, amount) => {
    if (!hasRates(top)) return "\u2013";
    const rate = (count * 1000) / ms;
    return amount ? hitsOf(Math.round(rate), amount) : shorten(rate);
  };
  byId("busiest").replaceChildren(...busy.map((limit) =>
    row([limit.domain, limit.rule, limit.limit, perSecond(limit.hits, limit.amount), perSecond(limit.over_limit_hits, limit.amount)], 3)));
}

async function get(path) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { cache: "no-store", headers, signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (answer.status === 401) {
    needsToken = true;
    throw new Error(token ? "that is none of weir's tokens" : "weir asks for a token");
  }
  // /readyz is answered by 503 and the reason while weir is not ready.
  if (!answer.ok && answer.status !== 503) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function showPolicies(ready) {
  const count = ready.policies.rules;
  if (!byId("policies-details").open) return;
  if (count > RULES_MAX) {
    byId("policies-note").textContent = `${count} rules are too many for this page: see /policies.`;
    byId("policies").replaceChildren();
    return;
  }
  const policies = await get("policies");
  const generation = JSON.stringify(policies);
  if (generation === shownGeneration) return;
  shownGeneration = generation;
  const amount = (limit) => limit.algorithm === "concurrency" ? "in flight" : `per ${limit.window_us / 1000000} s`;
  const text = (limit) => `${hitsOf(limit.requests, limit.amount)} ${amount(limit)} ${limit.algorithm}${limit.name ? " " + limit.name : ""}`;
  byId("policies").replaceChildren(...policies.domains.flatMap((domain) => domain.rules.map((rule) => row([
    domain.domain,
    rule.descriptor,
    rule.unlimited ? "unlimited" : rule.limits.map(text).join("; "),
    rule.role,
    rule.on_error ? rule.on_error.action : "",
    rule.place,
  ], 6))));
}

async function refresh() {
  window.clearTimeout(timer);
  // One at a time: another look follows at once.
  again = running;
  if (running) return;
  running = true;
  if (!paused && !document.hidden && !needsToken) {
    try {
      const [top, ready] = await Promise.all([get(`top?minutes=${byId("minutes").value}`), get("readyz")]);
      firstLookMs = firstLookMs || top.now_ms - SHARED_MS;
      showHealth(top, ready);
      showDecider(top);
      showDenials(top);
      showRequests(top);
      showLimits(top);
      showBusiest(top);
      await showPolicies(ready);
      byId("updated").textContent = `as of ${clock(top.now_ms)}`;
      byId("updated").className = "";
      document.body.dataset.state = "shown";
    } catch (error) {
      byId("updated").textContent = needsToken ? error.message : `no answer from weir: ${error.message}`;
      byId("updated").className = "bad";
      document.body.dataset.state = needsToken ? "token" : "failed";
      byId("token-form").hidden = !needsToken;
    }
  }
  running = false;
  timer = window.setTimeout(refresh, again ? 0 : EVERY_MS);
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  byId("pause").textContent = paused ? "Go on" : "Pause";
  if (!paused) refresh();
});
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  byId("token").value = "";
  needsToken = false;
  byId("token-form").hidden = true;
  refresh();
});
byId("minutes").addEventListener("change", refresh);
byId("policies-details").addEventListener("toggle", refresh);
document.addEventListener("visibilitychange", refresh);
refresh();
