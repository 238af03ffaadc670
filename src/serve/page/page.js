/* The page of `linnet serve`: asks the server that it came from, and shows what it answers (docs/server.md). No library, nothing from elsewhere. */
"use strict";

const $ = (id) => document.getElementById(id);
const MOST_DRAWN = 4000; // tokens that the text shows one by one

const page = {
  info: { name: "", chat: false, state: [] },
  key: sessionStorage.getItem("linnet-key") || "",
  chat: false,
  talk: [], // messages
  tokens: [], // {text, piece, id, prompt, logprob, top: [[piece, logprob]], norm: [], memory: []}
  chosen: -1,
  measure: "norm",
  recall: null, // {of, cosine, nearest, nearness} of the text's end
  row: -1, // of the numbers, that the mouse or the keyboard is at: what it recalls is marked in the text
  prompt: 0, // tokens
  heads: 0,
  run: null, // AbortController of what is being written
  version: 0, // of the text: what was asked of an older one is thrown away
};

// ---- the server -------------------------------------------------------------------------------------------------------------------------

function headers() {
  const all = { "Content-Type": "application/json" };
  if (page.key) all.Authorization = "Bearer " + page.key;
  return all;
}

async function ask(path, body, signal) {
  const response = await fetch(path, { method: body ? "POST" : "GET", headers: headers(), body: body && JSON.stringify(body), signal });
  if (response.ok) return response;
  let message = response.status + " " + response.statusText;
  try {
    message = (await response.json()).error.message;
  } catch (e) { /* no JSON: the status says it */ }
  if (response.status === 401) {
    $("key-form").hidden = false;
    $("key").focus();
  }
  throw new Error(message);
}

// The objects of a stream.
async function* events(response) {
  const reader = response.body.getReader(), text = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    rest += value ? text.decode(value, { stream: true }) : "";
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const line = rest.slice(0, end);
      rest = rest.slice(end + 2);
      if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
    }
    if (done) return;
  }
}

function say(text) { $("news").textContent = text; }
// Counting is not read aloud, its end is.
function aloud(on) { $("news").setAttribute("aria-live", on ? "polite" : "off"); }
function complain(error) { $("wrong").textContent = error ? error.message || String(error) : ""; }

async function begin() {
  try {
    page.info = await (await ask("/model_info")).json();
  } catch (error) {
    complain(error);
    return;
  }
  complain(null);
  $("key-form").hidden = !page.key;
  $("model").textContent = page.info.name;
  document.title = page.info.name + " · linnet";
  $("tabs").hidden = !page.info.chat;
  page.heads = page.info.state.reduce((n, p) => n + (p.nothing ? 0 : p.heads), 0);
  show();
}

// ---- tokens -----------------------------------------------------------------------------------------------------------------------------

// "bytes:\xe2\x80" is a token that is no whole text; the bytes of several may be one character.
function bytesOf(piece) {
  if (!/^bytes:(\\x[0-9a-f]{2})+$/.test(piece)) return new TextEncoder().encode(piece);
  return Uint8Array.from(piece.slice(6).match(/[0-9a-f]{2}/g), (h) => parseInt(h, 16));
}

// How a token is called where it stands alone.
function nameOf(piece) {
  const text = piece.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣");
  return text === "" ? "∅" : text;
}

function token(at) {
  while (page.tokens.length <= at)
    page.tokens.push({ piece: "", text: "", id: -1, prompt: false, logprob: null, top: null, norm: null, memory: null });
  return page.tokens[at];
}

function takeState(state) {
  state.ids.forEach((id, i) => {
    const t = token(state.first + i);
    t.id = id;
    t.piece = state.tokens[i];
    t.norm = state.norm[i];
    t.memory = state.memory[i];
    t.prompt = state.first + i < state.prompt;
  });
  page.prompt = state.prompt;
  if (state.recall) page.recall = state.recall;
}

// Log-probabilities of /v1/completions with echo, from token `at` on.
function takeLogprobs(said, at) {
  said.tokens.forEach((piece, i) => {
    const t = token(at + i);
    t.piece = piece;
    t.logprob = said.token_logprobs[i];
    t.top = said.top_logprobs[i] && Object.entries(said.top_logprobs[i]).sort((a, b) => b[1] - a[1]);
  });
  return at + said.tokens.length;
}

function takeChatLogprobs(said, at) {
  said.content.forEach((one, i) => {
    const t = token(at + i);
    t.piece = pieceOf(one);
    t.logprob = one.logprob;
    t.top = one.top_logprobs.map((o) => [pieceOf(o), o.logprob]);
  });
  return at + said.content.length;
}

function pieceOf(one) {
  const hex = (b) => "\\x" + b.toString(16).padStart(2, "0");
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(one.bytes));
  } catch (e) {
    return "bytes:" + one.bytes.map(hex).join("");
  }
}

function shade(logprob) {
  if (logprob === null) return "0";
  const p = Math.exp(logprob);
  return p > 0.5 ? "0" : p > 0.2 ? "1" : p > 0.05 ? "2" : p > 0.01 ? "3" : "4";
}

// The text as tokens; only what is new or has changed is touched.
function drawTokens() {
  const box = $("tokens"), decode = new TextDecoder();
  const below = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  const n = Math.min(page.tokens.length, MOST_DRAWN), before = box.childElementCount;
  while (box.childElementCount > n) box.lastElementChild.remove();
  const near = new Set();
  if (page.recall && page.row >= 0) for (const t of page.recall.nearest[page.row]) near.add(t);
  for (let i = 0; i < n; i++) {
    const t = page.tokens[i];
    let span = box.children[i];
    if (!span) {
      span = document.createElement("span");
      span.id = "t" + i;
      span.setAttribute("role", "option");
      box.append(span);
    }
    t.text = decode.decode(bytesOf(t.piece), { stream: true });
    const shown = t.text === "" ? "\u200b" : t.text.endsWith("\n") && t.text.trim() === "" ? "↵" + t.text : t.text;
    if (span.textContent !== shown) span.textContent = shown;
    span.dataset.p = shade(t.logprob);
    span.classList.toggle("prompt", t.prompt);
    span.classList.toggle("recalled", near.has(i));
    span.setAttribute("aria-selected", i === page.chosen);
    if (i === page.chosen) span.setAttribute("aria-label", nameOf(t.piece) + oddsOf(t));
    else span.removeAttribute("aria-label");
  }
  if (page.chosen >= 0 && page.chosen < n) box.setAttribute("aria-activedescendant", "t" + page.chosen);
  else box.removeAttribute("aria-activedescendant");
  if (below && n > before) box.scrollTop = box.scrollHeight;
}

function oddsOf(t) { return t.logprob === null ? t.prompt ? ", of the prompt" : "" : ", probability " + percent(t.logprob); }

function choose(at, scroll) {
  const n = page.tokens.length;
  page.chosen = n ? Math.max(0, Math.min(n - 1, at)) : -1;
  show();
  const span = $("tokens").children[page.chosen];
  if (scroll && span) span.scrollIntoView({ block: "nearest" });
}

// ---- the chosen token ---------------------------------------------------------------------------------------------------------------------

function percent(logprob) {
  const p = 100 * Math.exp(logprob);
  return (p >= 0.995 ? p.toFixed(p >= 99.95 ? 0 : 1) : p.toPrecision(2)) + " %";
}

function cell(row, text, kind) {
  const td = row.insertCell();
  td.textContent = text;
  if (kind) td.className = kind;
  return td;
}

function drawChoice() {
  const t = page.tokens[page.chosen], body = $("tops").tBodies[0];
  body.replaceChildren();
  if (!t) {
    $("token-title").textContent = "No token chosen";
    return;
  }
  const where = `Token ${page.chosen + 1} of ${page.tokens.length}: “${nameOf(t.piece)}”`;
  $("token-title").textContent = where + oddsOf(t);
  for (const [piece, logprob] of (t.top || []).slice(0, 6)) {
    const row = body.insertRow(), p = Math.exp(logprob);
    if (piece === t.piece) row.className = "drawn";
    cell(row, nameOf(piece));
    cell(row, percent(logprob), "n");
    const meter = document.createElement("meter");
    meter.value = p;
    meter.setAttribute("aria-label", "probability " + percent(logprob));
    cell(row, "").append(meter);
  }
}

function brief(x) {
  if (x === null || x === undefined) return "–";
  return x === 0 ? "0" : Math.abs(x) >= 1e5 || Math.abs(x) < 1e-3 ? x.toExponential(2) : x.toPrecision(4);
}

function drawNumbers() {
  const t = page.tokens[page.chosen], body = $("rows"), recall = page.recall && page.recall.of === page.chosen ? page.recall : null;
  body.replaceChildren();
  for (const part of page.info.state) {
    if (part.nothing) {
      const row = body.insertRow();
      cell(row, part.layer < 0 ? "–" : part.layer);
      const td = cell(row, `${part.operator}: ${part.nothing}`, "w");
      td.colSpan = 5;
      continue;
    }
    for (let h = 0; h < part.heads; h++) {
      const row = body.insertRow(), at = part.first + h;
      row.tabIndex = -1;
      row.dataset.row = at;
      cell(row, part.layer < 0 ? "–" : part.layer);
      cell(row, h);
      cell(row, t && t.norm ? brief(t.norm[at]) : "–", "n");
      cell(row, t && t.memory ? brief(t.memory[at]) : "–", "n");
      cell(row, recall && !part.no_recall ? recall.cosine[at].toFixed(3) : "–", "n");
      const last = cell(row, recall && part.no_recall ? part.no_recall : "", recall && part.no_recall ? "w" : "");
      if (recall && !part.no_recall)
        recall.nearest[at].forEach((place, i) => {
          const button = document.createElement("button"), near = page.tokens[place];
          button.className = "value";
          button.textContent = `${nameOf(near ? near.piece : "?")} ${recall.nearness[at][i].toFixed(2)}`;
          button.title = `token ${place + 1}`;
          button.addEventListener("click", () => { page.row = at; choose(place, true); $("tokens").focus(); });
          last.append(button);
        });
    }
  }
  if (!page.info.state.length) cell(body.insertRow(), "no layer of this model carries a recurrence’s state", "w").colSpan = 6;
}

// ---- the picture --------------------------------------------------------------------------------------------------------------------------

const NOTES = {
  norm: "The size (Frobenius norm) of each head’s matrix behind a token, each row up to its own largest. A prompt is read in pieces: inside one, no token " +
    "has a state of its own, and nothing is drawn.",
  memory: "How many tokens’ writes are left, by the decay alone: m = 1 + γ m with each token’s decay γ, which is 1 / (1 − γ) where γ stays the same. What a " +
    "delta rule overwrites is no decay. Logarithmic.",
  recall: "What the state at the end of the text answers to one token’s key, Sᵀk: its cosine to the value that the token itself wrote, and the " +
    "three tokens whose values are nearest to the answer. Choose a token and press the button below.",
};

function colours() {
  const style = getComputedStyle(document.documentElement), of = (name) => style.getPropertyValue(name).trim();
  const triple = (name) => of(name).split(",").map(Number);
  return { cold: triple("--cold"), hot: triple("--hot"), none: of("--none"), ink: of("--quiet"), mark: of("--mark"), line: of("--line") };
}

const valueAt = {
  norm: (t, row) => (t.norm ? t.norm[row] : null),
  memory: (t, row) => (t.memory ? t.memory[row] : null),
};

// Rows of the picture: heads, and a line for a layer that has none.
function rowsOf() {
  const rows = [];
  for (const part of page.info.state) {
    if (part.nothing) rows.push({ part, row: -1, layer: part.layer });
    else for (let h = 0; h < part.heads; h++) rows.push({ part, row: part.first + h, layer: h ? null : part.layer, head: h });
  }
  return rows;
}

// From 0 to 1 for each token of a row; null: nothing is known.
function scaled(row) {
  if (page.measure === "recall") {
    const values = page.tokens.map(() => null);
    if (page.recall && page.recall.nearest[row]) page.recall.nearest[row].forEach((t, i) => { values[t] = Math.max(0, page.recall.nearness[row][i]); });
    return values;
  }
  const values = page.tokens.map((t) => valueAt[page.measure](t, row)), most = values.reduce((m, x) => Math.max(m, x || 0), 0);
  if (page.measure === "norm") return values.map((x) => (x === null || x === undefined ? null : most ? x / most : 0));
  const end = Math.log(Math.max(2, page.tokens.length));
  return values.map((x) => (x === null || x === undefined ? null : Math.log(Math.max(1, x)) / end));
}

const GUTTER = 54;
function drawMap() {
  const canvas = $("map"), box = $("picture"), k = colours(), rows = rowsOf(), n = Math.max(1, page.tokens.length);
  const height = Math.max(6, Math.min(32, Math.floor((box.clientHeight - 8) / Math.max(1, rows.length)))), ratio = window.devicePixelRatio || 1;
  const W = box.clientWidth, H = Math.max(rows.length * height, box.clientHeight - 2), step = (W - GUTTER) / n;
  if (canvas.width !== Math.round(W * ratio) || canvas.height !== Math.round(H * ratio)) {
    canvas.width = Math.round(W * ratio);
    canvas.height = Math.round(H * ratio);
    canvas.style.height = H + "px";
  }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, W, H);
  g.font = "11px system-ui, sans-serif";
  g.textBaseline = "middle";
  let labelled = -99;
  rows.forEach((r, i) => {
    const y = i * height;
    if (r.layer !== null && y - labelled >= 11) {
      g.fillStyle = k.ink;
      g.fillText(r.layer < 0 ? "–" : "layer " + r.layer, 3, y + Math.max(6, height / 2));
      labelled = y;
    }
    if (r.row < 0) {
      g.fillStyle = k.ink;
      if (height >= 11) g.fillText(r.part.nothing, GUTTER + 4, y + height / 2);
      return;
    }
    scaled(r.row).forEach((x, t) => {
      if (x === null) return;
      const c = k.cold.map((low, j) => Math.round(low + (k.hot[j] - low) * Math.min(1, x)));
      g.fillStyle = `rgb(${c})`;
      g.fillRect(GUTTER + t * step, y, Math.max(1, step - (step > 4 ? 1 : 0)), height > 9 ? height - 1 : height);
    });
    if (r.layer !== null && i) {
      g.fillStyle = k.line;
      g.fillRect(GUTTER, y - 1, W - GUTTER, 1);
    }
  });
  if (page.chosen >= 0) {
    g.strokeStyle = k.mark;
    g.lineWidth = 2;
    g.strokeRect(GUTTER + page.chosen * step, 1, Math.max(2, step), rows.length * height - 2);
  }
  canvas.setAttribute("aria-label", `${page.measure} by layer and head, ${rows.length} rows, over ${page.tokens.length} tokens; the table below has the numbers`);
}

function drawLegend() {
  $("measure-note").textContent = NOTES[page.measure];
  const none = [...new Set(page.info.state.filter((p) => p.nothing).map((p) => `${p.operator} (${p.nothing})`))];
  const missing = page.measure === "memory" ? "no_memory" : page.measure === "recall" ? "no_recall" : null;
  const others = missing ? [...new Set(page.info.state.filter((p) => p[missing]).map((p) => `${p.operator} (${p[missing]})`))] : [];
  const left = [...none, ...others];
  const scale = { norm: "Faint: 0. Strong: the row’s largest.", memory: `Faint: 1 token. Strong: ${page.tokens.length}, the whole text.`,
                  recall: page.recall ? `Asked of token ${page.recall.of + 1}, “${nameOf(page.tokens[page.recall.of].piece)}”. Faint: cosine 0. Strong: 1.` : "Nothing asked yet." };
  $("legend").textContent = (page.heads ? scale[page.measure] : "") + (left.length ? " Not shown: " + left.join("; ") + "." : "");
}

// ---- all of it ---------------------------------------------------------------------------------------------------------------------------

let waiting = false, mapped = 0;
const MANY = 60000; // cells of the picture, beyond which it is drawn twice a second while a text is written

function show() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    drawTokens();
    drawChoice();
    drawNumbers();
    drawLegend();
    buttons();
    if (page.run && page.heads * page.tokens.length > MANY && performance.now() - mapped < 500) return;
    drawMap();
    mapped = performance.now();
  });
}

// A button that is switched off lets go of the keyboard: what is to be pressed next takes it.
function buttons() {
  const t = page.tokens[page.chosen], held = document.activeElement;
  $("write").disabled = $("clear").disabled = Boolean(page.run);
  $("stop").disabled = !page.run;
  $("more").disabled = Boolean(page.run) || page.chat || page.tokens.length === 0;
  $("more").hidden = page.chat;
  $("clear").hidden = !page.chat;
  $("write").textContent = page.chat ? "Send" : "Write";
  $("recall").disabled = Boolean(page.run) || !t || t.id < 0 || !page.info.state.some((p) => !p.nothing && !p.no_recall);
  if (page.run && [$("write"), $("more"), $("clear"), $("recall")].includes(held)) $("stop").focus();
  if (!page.run && held === $("stop")) $("write").focus();
}

function sampling() {
  const body = {};
  for (const id of ["max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"]) {
    const value = $(id).value.trim();
    if (value !== "") body[id] = Number(value);
  }
  if ($("ignore_eos").checked) body.ignore_eos = true;
  return body;
}

function fresh() {
  page.tokens = [];
  page.chosen = -1;
  page.recall = null;
  page.row = -1;
  page.prompt = 0;
  page.version++;
  $("tokens").replaceChildren();
  $("recall-news").textContent = "";
  complain(null);
}

// One answer: `take` gets its events. True: it came to an end.
async function write(path, body, take) {
  const begun = performance.now();
  let first = 0, n = 0, whole = false;
  page.run = new AbortController();
  say("reading …");
  aloud(false);
  buttons();
  try {
    const response = await ask(path, { ...body, ...sampling(), stream: true, state: true }, page.run.signal);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices[0];
      if (!choice) continue;
      if (choice.state) takeState(choice.state);
      const drawn = take(choice);
      if (drawn && !first) first = performance.now();
      n += drawn;
      whole = whole || choice.finish_reason !== null;
      say(`${n} tokens`);
      show();
    }
    const seconds = (performance.now() - first) / 1000;
    aloud(true);
    say(`${n} tokens, the first after ${((first - begun) / 1000).toFixed(2)} s${n > 1 && seconds > 0 ? `, then ${(n / seconds).toFixed(0)} a second` : ""}`);
  } catch (error) {
    if (error.name !== "AbortError") complain(error);
    aloud(true);
    say(error.name === "AbortError" ? `stopped after ${n} tokens` : "");
  }
  page.run = null;
  show();
  return whole;
}

async function writeText(prompt) {
  if (page.run) return;
  fresh();
  let at = 0;
  await write("/v1/completions", { prompt, echo: true, logprobs: 5 }, (choice) => {
    const before = at;
    if (choice.logprobs) at = takeLogprobs(choice.logprobs, at);
    return Math.max(0, at - page.prompt) - Math.max(0, before - page.prompt);
  });
}

function drawTalk() {
  const list = $("talk");
  list.replaceChildren(...page.talk.map((m) => {
    const item = document.createElement("li"), who = document.createElement("span");
    who.className = "who";
    who.textContent = m.role === "user" ? "You" : page.info.name;
    item.append(who, m.content);
    return item;
  }));
  list.scrollTop = list.scrollHeight;
}

async function send() {
  const text = $("say").value;
  if (page.run || !text.trim()) return;
  fresh();
  $("say").value = "";
  page.talk.push({ role: "user", content: text });
  const messages = page.talk.map((m) => ({ ...m })), answer = { role: "assistant", content: "" };
  page.talk.push(answer);
  drawTalk();
  let at = -1;
  await write("/v1/chat/completions", { messages, logprobs: true, top_logprobs: 5 }, (choice) => {
    if (choice.delta.content) {
      answer.content += choice.delta.content;
      drawTalk();
    }
    if (!choice.logprobs || !choice.logprobs.content.length) return 0;
    const before = at < 0 ? page.prompt : at;
    at = takeChatLogprobs(choice.logprobs, before);
    return at - before;
  });
  if (answer.content === "" && $("wrong").textContent) { // refused: as if it had not been said
    page.talk.splice(-2);
    $("say").value = text;
  }
  drawTalk();
  if ([document.body, $("stop"), $("write")].includes(document.activeElement)) $("say").focus();
}

async function askRecall() {
  const of = page.chosen, version = page.version, prompt = page.tokens.filter((t) => t.id >= 0).map((t) => t.id);
  if ($("recall").disabled) return;
  $("recall-news").textContent = "reading the text again …";
  try {
    const answer = await (await ask("/v1/completions", { prompt, max_tokens: 0, state: { recall: of } })).json();
    if (version !== page.version) return;
    page.recall = answer.choices[0].state.recall;
    page.row = -1;
    $("recall-news").textContent = "";
    $("measures").querySelector("[value=recall]").checked = true;
    page.measure = "recall";
  } catch (error) {
    $("recall-news").textContent = error.message;
  }
  show();
}

function turnTo(chat) {
  if (page.run || page.chat === chat) return;
  page.chat = chat;
  for (const [name, on] of [["text", !chat], ["chat", chat]]) {
    $("tab-" + name).setAttribute("aria-selected", on);
    $("tab-" + name).tabIndex = on ? 0 : -1;
    $("panel-" + name).hidden = !on;
  }
  fresh();
  say("");
  show();
}

// ---- hands ----------------------------------------------------------------------------------------------------------------------------------

$("tab-text").addEventListener("click", () => turnTo(false));
$("tab-chat").addEventListener("click", () => turnTo(true));
$("tabs").addEventListener("keydown", (e) => {
  if (e.key !== "ArrowLeft" && e.key !== "ArrowRight") return;
  turnTo(!page.chat);
  $(page.chat ? "tab-chat" : "tab-text").focus();
});
$("write").addEventListener("click", () => (page.chat ? send() : writeText($("prompt").value)));
$("more").addEventListener("click", () => {
  $("prompt").value = new TextDecoder().decode(Uint8Array.from(page.tokens.flatMap((t) => [...bytesOf(t.piece)])));
  writeText($("prompt").value);
});
$("stop").addEventListener("click", () => page.run && page.run.abort());
$("clear").addEventListener("click", () => { page.talk = []; fresh(); drawTalk(); say(""); show(); $("say").focus(); });
$("recall").addEventListener("click", askRecall);
$("say").addEventListener("keydown", (e) => { if (e.key === "Enter" && !e.shiftKey && !e.ctrlKey && !e.metaKey && !e.isComposing) { e.preventDefault(); send(); } });
document.addEventListener("keydown", (e) => {
  if (e.key === "Enter" && (e.ctrlKey || e.metaKey) && !page.run) {
    e.preventDefault();
    if (page.chat) send(); else writeText($("prompt").value);
  }
  if (e.key !== "Escape") return;
  if (page.run) page.run.abort();
  else if ($("settings").open && $("settings").contains(e.target)) {
    $("settings").open = false;
    $("settings-title").focus();
  }
});
$("tokens").addEventListener("click", (e) => { if (e.target.id.startsWith("t") && e.target.id !== "tokens") choose(Number(e.target.id.slice(1))); });
$("tokens").addEventListener("focus", () => { if (page.chosen < 0 && page.tokens.length) choose(0); });
$("tokens").addEventListener("keydown", (e) => {
  const far = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10, PageUp: -50, PageDown: 50, Home: -1e9, End: 1e9 }[e.key];
  if ((e.key === "r" || e.key === "R") && !e.ctrlKey && !e.metaKey && !e.altKey) askRecall();
  if (far === undefined || e.ctrlKey || e.altKey || e.metaKey) return;
  e.preventDefault();
  choose(page.chosen + far, true);
});
$("map").addEventListener("click", (e) => {
  const x = e.offsetX - GUTTER, step = (e.target.clientWidth - GUTTER) / Math.max(1, page.tokens.length);
  if (x >= 0 && page.tokens.length) choose(Math.floor(x / step), true);
});
$("measures").addEventListener("change", (e) => { page.measure = e.target.value; show(); });
for (const comes of ["mouseover", "focusin"])
  $("rows").addEventListener(comes, (e) => {
    const row = e.target.closest("tr"), at = row && row.dataset.row !== undefined ? Number(row.dataset.row) : -1;
    if (at !== page.row) { page.row = at; drawTokens(); }
  });
$("key-form").addEventListener("submit", (e) => {
  e.preventDefault();
  page.key = $("key").value;
  sessionStorage.setItem("linnet-key", page.key);
  begin();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
new ResizeObserver(show).observe($("picture"));

$("key").value = page.key;
show();
begin();
