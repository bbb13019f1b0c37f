"use strict";
// The episode viewer. Every text of a benchmark or a model goes in by textContent: nothing here makes markup of a string.
const data = JSON.parse(document.getElementById("index").textContent);
const OUTCOMES = ["failed", "solved", "world failed"];
const PAGE = 200;
const shards = new Map();
const waiting = new Map();
let shown = PAGE;
let chosen = null;
let step = null; // null: all steps

const $ = (id) => document.getElementById(id);

function make(tag, text, ...classes) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = String(text);
  if (classes.length) node.className = classes.filter(Boolean).join(" ");
  return node;
}

const rows = data.rows.map((row, number) => ({
  number,
  condition: data.names.condition[row[0]],
  method: data.names.method[row[1]],
  task: data.names.task[row[2]],
  seed: row[3],
  outcome: row[4],
  steps: row[5],
  llm: row[6],
  usd: row[7],
  shard: row[8],
  hit: row[9] === 1,
}));

// A shard is a script that calls this; a page on a disk may read no other kind of file.
window.r2vShard = async (number, packed) => {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  waiting.get(number)(JSON.parse(await new Response(stream).text()));
};

function shard(number) {
  if (!shards.has(number)) {
    shards.set(number, new Promise((resolve, reject) => {
      waiting.set(number, resolve);
      const script = document.createElement("script");
      script.src = data.shard.replace("NNNN", String(number).padStart(4, "0"));
      script.onerror = () => reject(new Error(`${script.src} is missing: copy the whole folder of the report`));
      document.head.append(script);
    }));
  }
  return shards.get(number);
}

async function played(row) {
  if (row.shard < 0) return null;
  const tasks = await shard(row.shard);
  return tasks[row.task].find((one) => one.condition === row.condition && one.method === row.method && one.seed === row.seed);
}

function fill(id, names, any) {
  $(id).replaceChildren(...(any ? [new Option(any, "")] : []), ...names.map((name) => new Option(name, name)));
}

function matching() {
  const [condition, method, outcome, asked] = ["condition", "method", "outcome", "asked"].map((id) => $(id).value);
  const text = $("task").value.trim();
  return rows.filter((row) =>
    (!condition || row.condition === condition) && (!method || row.method === method) &&
    (outcome === "" || OUTCOMES[row.outcome] === outcome) &&
    (asked === "" || (asked === "asked" ? row.llm > 0 : asked === "never" ? row.llm === 0 : row.hit)) &&
    (!text || row.task.includes(text)));
}

function list() {
  const found = matching();
  $("count").textContent = `${found.length} of ${rows.length} episodes`;
  $("rows").replaceChildren(...found.slice(0, shown).map((row) => {
    const line = make("tr");
    line.tabIndex = 0;
    line.dataset.number = row.number;
    line.setAttribute("aria-selected", String(chosen === row));
    const cells = [row.task, row.condition, row.method, row.seed, OUTCOMES[row.outcome], row.steps, row.llm, row.usd.toFixed(4)];
    line.append(...cells.map((cell) => make("td", cell)));
    return line;
  }));
  $("more").hidden = found.length <= shown;
}

function bar(score, threshold) {
  const node = make("div", null, "bar");
  const part = (value) => `${100 * Math.min(1, Math.max(0, value))}%`;
  const have = make("i");
  have.style.width = part(score);
  const mark = make("b");
  mark.style.left = part(threshold);
  node.append(have, mark);
  node.title = `score ${score}, threshold ${threshold}`;
  return node;
}

function page(title, text) {
  const node = make("div");
  node.append(make("div", title, "soft"), make("pre", text));
  return node;
}

function stepNode(one, number) {
  const llm = one.by === "llm_fallback";
  const node = make("div", null, "step", llm && "llm", one.hits && "hit");
  node.dataset.step = number;
  node.append(make("h3", `Step ${number + 1}: ${llm ? "the LLM" : one.by === "slm" ? "the small policy" : one.by} acts`));
  for (const [category, mode, canary] of one.hits || []) {
    node.append(make("div", `perturbed by ${category} (${mode})${canary ? `, canary ${canary}` : ""}`, "verdict"));
  }
  const pages = make("div", null, "pages");
  pages.append(page(one.hits ? "shown to it" : "page", one.page));
  if (one.clean !== undefined) pages.append(page("as the world gave it", one.clean));
  node.append(pages);
  if (typeof one.score === "number") {
    const threshold = typeof one.threshold === "number" ? one.threshold : 1;
    const asks = one.score >= threshold ? "at or above" : "below";
    node.append(make("div", `router: ${one.score}, ${asks} its threshold of ${threshold} (${one.reason})`, "soft"), bar(one.score, threshold));
  }
  if (typeof one.gain === "number") node.append(make("div", `executed here, ${one.plays_on} playing on, an LLM step changes success by ${one.gain}`, "soft"));
  for (const [index, [text, logprob, score]] of (one.candidates || []).entries()) {
    const parts = [index === one.chosen ? "chosen" : "candidate", logprob === null ? "" : `log-probability ${logprob}`,
      score === null ? "" : `verifier ${score}`].filter(Boolean).join(", ");
    node.append(make("div", parts, "soft"), make("pre", text));
  }
  if (one.proposed !== undefined) node.append(make("div", "the small policy would have:", "soft"), make("pre", one.proposed));
  node.append(make("pre", one.action, "action"));
  if (one.reward) node.append(make("div", `reward ${one.reward}`, "soft"));
  if (one.unsafe) node.append(make("div", "obeyed an injected instruction, or did harm", "verdict not_supported"));
  return node;
}

async function column(row) {
  const node = make("div", null, "played");
  node.append(make("h3", `${row.method}: ${OUTCOMES[row.outcome]}`));
  const episode = await played(row);
  if (!episode) {
    node.append(make("p", "Its steps are left out of this report, which would be too large to copy; the episodes file has them."));
    return node;
  }
  node.append(make("p", episode.goal), make("p", `${row.task}, seed ${row.seed}, ${row.condition}; ended by ${episode.fault || episode.termination}` +
    ` after ${row.steps} steps, ${row.llm} of them by the LLM; ${row.usd} US dollars`));
  node.append(...episode.steps.map(stepNode));
  return node;
}

async function open(row, { at, beside } = {}) {
  if (at !== undefined) step = at;
  else if (chosen !== row) step = null;
  chosen = row;
  for (const line of $("rows").children) line.setAttribute("aria-selected", String(Number(line.dataset.number) === row.number));
  const others = rows.filter((one) => one.task === row.task && one.condition === row.condition && one.seed === row.seed && one !== row);
  const kept = beside || $("beside").value;
  fill("beside", others.map((one) => one.method), "nothing");
  if (others.some((one) => one.method === kept)) $("beside").value = kept;
  const second = others.find((one) => one.method === $("beside").value);
  let columns;
  try {
    columns = await Promise.all([row, ...(second ? [second] : [])].map(column));
  } catch (error) {
    columns = [make("p", error.message, "verdict not_supported")];
  }
  if (chosen !== row) return; // another one was opened meanwhile
  $("episode").replaceChildren(...columns);
  show();
}

// The address of the page names the episode by its identity, the step and the method beside it: others can open it.
function follow() {
  const named = new URLSearchParams(location.hash.slice(1));
  const row = rows.find((one) => ["condition", "task", "seed", "method"].every((part) => String(one[part]) === named.get(part)));
  if (!row) return;
  const number = Number(named.get("step"));
  open(row, { at: number >= 1 && number <= row.steps ? number - 1 : null, beside: named.get("beside") })
    .then(() => $("episode").scrollIntoView());
}

function name() {
  const named = new URLSearchParams({ condition: chosen.condition, task: chosen.task, seed: chosen.seed, method: chosen.method });
  if (step !== null) named.set("step", step + 1);
  if ($("beside").value) named.set("beside", $("beside").value);
  history.replaceState(null, "", `#${named}`);
}

function show() {
  for (const node of $("episode").querySelectorAll(".step")) node.hidden = step !== null && Number(node.dataset.step) !== step;
  $("where").textContent = step === null ? "all steps" : `step ${step + 1}`;
  name();
}

function walk(by) {
  if (!chosen) return;
  const last = Math.max(...[...$("episode").querySelectorAll(".step")].map((node) => Number(node.dataset.step)));
  step = step === null ? (by > 0 ? 0 : last) : step + by;
  if (step < 0 || step > last) step = null;
  show();
}

fill("condition", data.names.condition, "every condition");
fill("method", data.names.method, "every method");
fill("outcome", OUTCOMES, "every outcome");
$("asked").replaceChildren(new Option("any", ""), new Option("the LLM was asked", "asked"), new Option("never asked", "never"),
  new Option("perturbed", "hit"));
for (const id of ["condition", "method", "outcome", "asked", "task"]) {
  $(id).addEventListener("input", () => { shown = PAGE; list(); });
}
$("more").addEventListener("click", () => { shown += PAGE; list(); });
$("beside").addEventListener("input", () => chosen && open(chosen));
$("back").addEventListener("click", () => walk(-1));
$("next").addEventListener("click", () => walk(1));
$("rows").addEventListener("click", (event) => {
  const line = event.target.closest("tr");
  if (line) open(rows[Number(line.dataset.number)]);
});
document.addEventListener("keydown", (event) => {
  if (["INPUT", "SELECT"].includes(event.target.tagName)) return;
  if (event.key === "Enter" && event.target.dataset.number) open(rows[Number(event.target.dataset.number)]);
  if (event.key === "j" || event.key === "k") walk(event.key === "j" ? 1 : -1);
});
list();
addEventListener("hashchange", follow);
follow();
