"use strict";
// Show what /openapi.json describes, and send requests. Every text enters the page as a text node, never as HTML.

const ROOT = new URL(".", location.href); // the server, also below a prefix that a proxy adds
const METHODS = ["get", "post", "put", "patch", "delete"];
const HEADERS = ["content-type", "etag", "location", "retry-after", "x-request-id"]; // shown of an answer
// Which list offers the values of a path parameter.
const LISTS = { c: "constellations.list", a: "agents.list", f: "folders.list", t: "turns.list", label: "memory.list" };
const EVENTS_SHOWN_MAX = 1000;
const COLOURED_MAX = 200000; // characters of JSON

const operations = new Map(); // by operationId: { id, method, path, ...operation }
const $ = (id) => document.getElementById(id);
let api;

/** Return a new element. Attributes that are functions become listeners; empty children are left out. */
function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child || child === 0));
  return made;
}

/** Return a text with its `code` parts. */
function inline(text) {
  return text.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));
}

/** Return the paragraphs of a text. */
function prose(text) {
  return (text || "").split(/\n\s*\n/).filter(Boolean).map((part) => el("p", {}, inline(part)));
}

/** Return a value as indented JSON with colours. */
function json(value) {
  const text = JSON.stringify(value, null, 2);
  if (text.length > COLOURED_MAX) return [text];
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(/("(?:\\.|[^"\\])*")(\s*:)?|\b(?:true|false|null)\b|-?\d[\d.eE+-]*/g)) {
    const kind = found[2] ? "key" : found[1] ? "string" : "literal";
    parts.push(text.slice(end, found.index), el("span", { class: kind }, found[1] || found[0]), found[2] || "");
    end = found.index + found[0].length;
  }
  return [...parts, text.slice(end)];
}

// Schemas

const nameOf = (schema) => schema.$ref?.split("/").pop();

/** Return what a reference names, or the schema itself. */
function resolved(part) {
  return part.$ref ? part.$ref.slice(2).split("/").reduce((found, key) => found[key], api) : part;
}

/** Return the schemas that a value may fit, or that its items fit: without null, not resolved. */
function choices(schema) {
  const inner = schema.anyOf || schema.oneOf;
  if (inner) return inner.filter((one) => one.type !== "null").flatMap(choices);
  if (schema.items) return choices(schema.items);
  if (schema.contentSchema) return choices(schema.contentSchema);
  if (schema.additionalProperties?.type || schema.additionalProperties?.$ref) return choices(schema.additionalProperties);
  return [schema];
}

/** Return the type of a value in a few words. */
function typeOf(schema) {
  if (schema.$ref) return resolved(schema).enum ? typeOf(resolved(schema)) : nameOf(schema);
  if ("const" in schema) return JSON.stringify(schema.const);
  const inner = schema.anyOf || schema.oneOf;
  if (inner) return [...new Set(inner.map(typeOf))].join(" or ");
  if (schema.items) return `array of ${typeOf(schema.items)}`;
  if (schema.contentSchema) return `${typeOf(schema.contentSchema)} as JSON text`;
  if (Array.isArray(schema.type)) return schema.type.join(" or ");
  return schema.type || "any JSON";
}

/** Return the bounds and the default of a value in a few words. */
function bounds(schema) {
  const words = [];
  for (const one of choices(schema)) {
    const { minimum: low, maximum: high, minLength: short = 0, maxLength: long, pattern } = one;
    if (low != null && high != null) words.push(`${low} to ${high}`);
    else if (low != null) words.push(`at least ${low}`);
    else if (high != null) words.push(`at most ${high}`);
    if (long != null) words.push(`${short} to ${long} characters`);
    if (pattern) words.push("matches `" + pattern + "`");
  }
  const value = schema.default;
  if (value != null && value !== "") words.push("default `" + (typeof value === "string" ? value : JSON.stringify(value)) + "`");
  return words.join(", ");
}

/** Return one field or parameter with everything that is known of it. */
function field(name, schema, { description, mark, open }) {
  const values = choices(schema).flatMap((one) => resolved(one).enum || []);
  const nested = choices(schema).filter((one) => resolved(one).properties);
  const words = [...new Set([description, ...choices(schema).map((one) => one.$ref && resolved(one).enum && resolved(one).description)])];
  const limits = bounds(schema);
  return [
    el("dt", {}, el("code", {}, name), " ", el("span", { class: "type" }, typeOf(schema)), mark && el("span", { class: "mark" }, mark)),
    el(
      "dd",
      {},
      words.filter(Boolean).flatMap(prose),
      values.length ? el("p", { class: "values" }, "One of ", values.flatMap((one) => [el("code", {}, one), " "])) : null,
      limits && el("p", { class: "bounds" }, inline(limits)),
      nested.map((one) => lazy({ class: "nested", open }, nameOf(one) || "Fields", () => fields(one, {}))),
    ),
  ];
}

/** Return the fields of an object, those within it to be opened. */
function fields(schema, { isRequest }) {
  const { properties = {}, required = [] } = resolved(schema);
  const rows = Object.entries(properties).map(([name, one]) => {
    const isRequired = required.includes(name);
    const mark = isRequest ? isRequired && "required" : !isRequired && !("default" in one) && "may be missing";
    return field(name, one, { description: one.description, mark, open: name === "items" });
  });
  return el("dl", {}, rows);
}

/** Return the description of a body: its type, words and fields. */
function shape(schema, options) {
  return choices(schema).map((one) => {
    const type = el("p", { class: "shape" }, el("span", { class: "type" }, typeOf(schema)));
    const words = resolved(one).description;
    return resolved(one).properties ? [type, prose(words), fields(one, options)] : type;
  });
}

/** Return details whose content is made when they are first opened. */
function lazy(attributes, summary, content) {
  const made = el("details", { ...attributes, open: false }, el("summary", {}, summary));
  const fill = () => made.childElementCount === 1 && made.append(...[content()].flat());
  made.addEventListener("toggle", fill);
  if (attributes.open) {
    fill();
    made.open = true;
  }
  return made;
}

// Requests

/** Return the request that a form describes. */
function requestOf(operation, form) {
  let path = operation.path.slice(1);
  const query = new URLSearchParams();
  const headers = {};
  for (const one of operation.parameters) {
    const value = form.elements[one.in + "." + one.name].value.trim();
    if (one.in === "path") path = path.replace(`{${one.name}}`, value ? encodeURIComponent(value) : `{${one.name}}`);
    else if (value && one.in === "query") query.set(one.name, value);
    else if (value) headers[one.name] = value;
  }
  const token = sessionStorage.getItem("token");
  if (operation.security && token) headers.authorization = `Bearer ${token}`;
  const file = form.elements.file?.files[0];
  const body = file || form.elements.body?.value.trim() || undefined;
  if (body) headers["content-type"] = file ? file.type || "application/octet-stream" : "application/json";
  const url = new URL(path + (query.size ? `?${query}` : ""), ROOT);
  return { url, method: operation.method.toUpperCase(), headers, body };
}

/** Return a request as a command for a shell. The token stays out of it. */
function curlOf({ url, method, headers, body }) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const lines = [`curl ${headers.accept?.includes("event-stream") ? "-N " : ""}-X ${method} ${quoted(decodeBraces(url.href))}`];
  for (const [name, value] of Object.entries(headers)) {
    lines.push(name === "authorization" ? '-H "Authorization: Bearer $PATTERN_TOKEN"' : `-H ${quoted(`${name}: ${value}`)}`);
  }
  if (body instanceof File) lines.push(`--data-binary ${quoted("@" + body.name)}`);
  else if (body) lines.push(`-d ${quoted(body)}`);
  return lines.join(" \\\n  ");
}

/** Return an address with its unfilled parameters as `{c}`. */
const decodeBraces = (text) => text.replaceAll("%7B", "{").replaceAll("%7D", "}");

/** Yield the events of a stream of server-sent events, as they come. */
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const blocks = (text + part.value).split(/\r?\n\r?\n/);
    text = blocks.pop();
    for (const block of blocks) {
      const event = {};
      for (const line of block.split(/\r?\n/)) {
        const [, name, value] = line.match(/^(\w+): ?(.*)$/) || [];
        if (name) event[name] = event[name] === undefined ? value : `${event[name]}\n${value}`;
      }
      if (event.data !== undefined) yield event;
    }
  }
}

/** Send a request and show its answer in `output`. */
async function send(request, output, signal) {
  const status = el("p", { class: "status", role: "status" }, "Waiting for the server …");
  output.replaceChildren(status);
  const began = performance.now();
  try {
    const answer = await fetch(request.url, { ...request, signal, credentials: "omit", cache: "no-store" });
    const took = Math.round(performance.now() - began);
    status.replaceChildren(el("strong", { class: answer.ok ? "good" : "bad" }, answer.status), ` after ${took} ms`);
    const shown = HEADERS.filter((name) => answer.headers.has(name));
    output.append(el("p", { class: "headers" }, shown.map((name) => el("span", {}, `${name}: ${answer.headers.get(name)}`))));
    await showBody(answer, output);
  } catch (error) {
    const words = signal.aborted ? "Stopped." : `The request failed: ${error.message}`;
    output.append(el("p", { class: "status bad", role: "alert" }, words));
  }
}

/** Show the body of an answer: events as they come, JSON, an image, text, or a file to save. */
async function showBody(answer, output) {
  const type = answer.headers.get("content-type") || "";
  if (type.startsWith("text/event-stream")) return showEvents(answer.body, output);
  const blob = await answer.blob();
  if (!blob.size) return;
  if (/^(text\/|application\/(problem\+)?json)/.test(type)) {
    const text = await blob.text();
    let shown = [text];
    if (type.includes("json")) shown = json(JSON.parse(text));
    output.append(el("pre", { tabindex: "0" }, shown));
  } else {
    // Saved, never opened here: a file that someone uploaded may be a page with scripts.
    const address = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
    if (/^image\/(png|jpeg|gif|webp)/.test(type)) output.append(el("img", { src: address, alt: "The image of the answer" }));
    output.append(el("p", {}, el("a", { href: address, download: "download" }, `Save ${blob.size} bytes`)));
  }
}

/** Show events as they come, and above them the text that they add up to. */
async function showEvents(body, output) {
  const text = el("p", { class: "answer", hidden: true });
  const list = el("ol", { class: "stream" });
  output.append(text, list);
  for await (const event of eventsOf(body)) {
    const { seq, turn_id, created_at, ...data } = JSON.parse(event.data);
    if (event.event === "text.delta") {
      text.hidden = false;
      text.append(data.text);
    } else if (event.event === "step.superseded") text.replaceChildren();
    const title = `event ${seq}, ${created_at}${turn_id ? `, ${turn_id}` : ""}`;
    list.append(el("li", { title }, el("code", {}, event.event), el("span", {}, JSON.stringify(data))));
    if (list.childElementCount > EVENTS_SHOWN_MAX) list.firstChild.remove();
    list.scrollTop = list.scrollHeight;
  }
  output.append(el("p", { class: "status" }, "The stream has ended."));
}

// Forms

/** Return the input of a parameter. Values of path parameters are remembered, since most operations share them. */
function input(operation, one, id) {
  const name = `${one.in}.${one.name}`;
  const kept = one.in === "path" ? sessionStorage.getItem(name) : null;
  const types = Object.entries(operation.responses).flatMap(([status, answer]) => (status < 300 ? Object.keys(answer.content || {}) : []));
  let values = choices(one.schema).flatMap((schema) => resolved(schema).enum || []);
  if (typeOf(one.schema).startsWith("boolean")) values = ["true", "false"];
  if (one.name === "accept") values = [...new Set(types)].reverse(); // events first: they show more
  if (values.length) {
    const empty = one.name === "accept" ? [] : [el("option", { value: "" }, "")];
    return el("select", { id, name }, empty, values.map((value) => el("option", {}, value)));
  }
  const made = el("input", { id, name, required: one.required, autocomplete: "off", spellcheck: "false", value: kept });
  made.setAttribute("placeholder", one.schema.default ? `${one.schema.default}` : "");
  if (one.in === "path") {
    made.addEventListener("change", () => sessionStorage.setItem(name, made.value));
    if (LISTS[one.name] && operation.id !== LISTS[one.name]) {
      made.setAttribute("list", `${id}.list`);
      made.addEventListener("focus", () => offer(LISTS[one.name], made));
    }
  }
  return made;
}

/** Offer the names that the server lists as values of an input, once what comes before it in the path is filled in. */
async function offer(listing, made) {
  const operation = operations.get(listing);
  const needed = operation.parameters.filter((one) => one.in === "path").map((one) => one.name);
  const values = needed.map((name) => made.form.elements[`path.${name}`]?.value);
  if (!sessionStorage.getItem("token") || !values.every(Boolean)) return;
  const path = needed.reduce((found, name, index) => found.replace(`{${name}}`, encodeURIComponent(values[index])), operation.path);
  const answer = await call(path);
  if (!answer.ok) return;
  const names = (await answer.json()).items.map((item) => item.name || item.label || item.id);
  made.list.replaceChildren(...names.map((name) => el("option", { value: name })));
}

/** Send a GET request with the token. */
function call(path) {
  const headers = { authorization: `Bearer ${sessionStorage.getItem("token")}` };
  return fetch(new URL(path.slice(1), ROOT), { headers, credentials: "omit", cache: "no-store" });
}

/** Return the form that tries an operation, with its command for a shell and a place for the answer. */
function trial(operation) {
  const labelled = (id, words, control, hint) =>
    el("div", { class: "control" }, el("label", { for: id }, words, hint && el("span", {}, hint)), control);
  const content = operation.requestBody?.content || {};
  const schema = content["application/json"]?.schema;
  const example = schema && resolved(choices(schema)[0]).examples?.[0];
  const isRequired = operation.requestBody?.required;
  const curl = el("pre", { class: "curl", tabindex: "0" });
  const output = el("div", { class: "output" });
  const stop = el("button", { type: "button", disabled: true }, "Stop");
  const copy = el("button", { type: "button" }, "Copy as curl");
  const form = el(
    "form",
    { class: "trial", "aria-label": `Try ${operation.id}` },
    el("h4", {}, "Try it"),
    operation.parameters.map((one) => {
      const id = `${operation.id}.${one.in}.${one.name}`;
      const control = [input(operation, one, id), LISTS[one.name] && one.in === "path" ? el("datalist", { id: `${id}.list` }) : null];
      return labelled(id, one.name, control, one.required ? null : one.in === "header" ? "header, optional" : "optional");
    }),
    schema
      ? labelled(
          `${operation.id}.body`,
          "Body",
          el("textarea", { id: `${operation.id}.body`, name: "body", spellcheck: "false", rows: "5" }, isRequired ? JSON.stringify(example, null, 2) : ""),
          isRequired ? null : "optional",
        )
      : null,
    operation.requestBody && !schema
      ? labelled(`${operation.id}.file`, "File", el("input", { type: "file", id: `${operation.id}.file`, name: "file", required: true }))
      : null,
    el("div", { class: "row" }, el("button", { class: "main" }, "Send"), stop, copy),
  );
  const refresh = () => curl.replaceChildren(curlOf(requestOf(operation, form)));
  for (const area of form.querySelectorAll("textarea")) area.rows = Math.min(16, Math.max(3, area.value.split("\n").length));
  let running;
  stop.addEventListener("click", () => running.abort());
  copy.addEventListener("click", async () => {
    refresh();
    getSelection().selectAllChildren(curl);
    // Only pages from this machine or over HTTPS may write to the clipboard; elsewhere the text is selected to be copied.
    const done = await navigator.clipboard?.writeText(curl.textContent).then(() => true, () => false);
    copy.textContent = done ? "Copied" : "Selected: press Ctrl+C";
    setTimeout(() => (copy.textContent = "Copy as curl"), 2000);
  });
  form.addEventListener("input", refresh);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const request = requestOf(operation, form);
    if (operation.method === "delete" && !confirm(`Send DELETE ${request.url.pathname}?`)) return;
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    stop.disabled = false;
    await send(request, output, signal);
    if (signal === running.signal) stop.disabled = true;
  });
  addEventListener("token", refresh);
  refresh();
  return el("div", { class: "try", id: `${operation.id}.try` }, form, curl, output);
}

// The page

/** Return what is known of an operation, with the form that tries it. */
function body(operation) {
  const answers = Object.entries(operation.responses).map(([status, answer]) => [status, resolved(answer)]);
  const good = answers.filter(([status]) => status < 400);
  const problems = answers.filter(([status]) => !(status < 400));
  const scopes = (operation.security || []).flatMap((one) => Object.values(one).flat());
  const request = Object.entries(operation.requestBody?.content || {});
  const docs = el(
    "div",
    { class: "docs" },
    prose(operation.description === operation.summary + "." ? "" : operation.description),
    el(
      "p",
      { class: "facts" },
      el("a", { href: `#${operation.id}` }, `#${operation.id}`),
      el("a", { class: "jump", href: `#${operation.id}.try` }, "Try it"),
      el("span", {}, scopes.length ? ["Scope ", scopes.map((one) => el("code", {}, one))] : "No token needed"),
    ),
    operation.parameters.length
      ? [
          el("h4", {}, "Parameters"),
          el("dl", {}, operation.parameters.map((one) => field(one.name, one.schema, { description: one.description, mark: one.in + (one.required ? ", required" : "") }))),
        ]
      : null,
    request.map(([type, one]) => [
      el("h4", {}, "Request ", el("span", {}, type)),
      shape(one.schema, { isRequest: true }),
    ]),
    good.map(([status, answer]) => [
      el("h4", {}, `Response ${status} `, el("span", {}, answer.description)),
      Object.entries(answer.content || {}).map(([type, one]) => responseOf(type, one.schema)),
    ]),
    lazy({ class: "nested" }, `Problems: ${problems.map(([status]) => status).join(" ").replace("default", "others")}`, () => problemList(problems)),
  );
  return el("div", { class: "body" }, docs, trial(operation));
}

/** Return the description of one kind of answer. */
function responseOf(type, schema) {
  if (resolved(schema).discriminator) return el("p", {}, el("span", { class: "type" }, type), ": see ", el("a", { href: "#events" }, "Events"), ".");
  const examples = resolved(schema).examples || [];
  return [
    type === "application/json" ? null : el("p", {}, el("span", { class: "type" }, type)),
    shape(schema, {}),
    examples.map((one) => lazy({ class: "nested" }, "Example", () => el("pre", { tabindex: "0" }, json(one)))),
  ];
}

/** Return problem documents with their codes, by status. */
function problemList(problems) {
  return el("dl", {}, problems.map(([status, answer]) => [el("dt", {}, el("code", {}, status)), el("dd", {}, prose(answer.description))]));
}

/** Return one row of a list that opens. `words` are what the filter looks through. */
function row(id, summary, words, content) {
  const made = lazy({ class: "item", id }, summary, content);
  made.dataset.words = words.join(" ").toLowerCase();
  made.addEventListener("toggle", () => made.open && history.replaceState(null, "", `#${id}`));
  return made;
}

/** Return a section of the page, and add it to the groups. */
function section(id, title, description, content) {
  const count = el("span", {}, content.length);
  $("groups").append(el("li", {}, el("a", { href: `#${id}` }, title, " ", count)));
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), prose(description), content);
}

/** Return a path whose parameters stand out. */
function pathOf(path) {
  return el("code", { class: "path" }, path.split(/(\{\w+\})/).map((part) => (part.startsWith("{") ? el("b", {}, part) : part)));
}

function operationRow(operation) {
  const { id, method, path, summary, description, parameters } = operation;
  const names = parameters.map((one) => one.name);
  const line = [el("span", { class: `method ${method}` }, method.toUpperCase()), el("h3", {}, inline(summary)), pathOf(path)];
  return row(id, line, [id, method, path, summary, description, ...names], () => body(operation));
}

function eventRow([name, reference]) {
  const event = resolved({ $ref: reference });
  const data = event.properties.data.contentSchema;
  const line = [el("h3", {}, el("code", {}, name)), el("span", { class: "path" }, inline(event.description))];
  return row(`event.${name}`, line, [name, event.description], () =>
    el("div", { class: "body" }, fields(data, {}), resolved(data).examples.map((one) => el("pre", { tabindex: "0" }, json(one)))),
  );
}

/** Show the whole description. */
function show() {
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const method of METHODS.filter((one) => one in methods)) {
      const operation = methods[method];
      const place = (one) => (one.in === "path" ? path.indexOf(`{${one.name}}`) : path.length);
      const parameters = (operation.parameters || []).sort((one, other) => place(one) - place(other));
      operations.set(operation.operationId, { ...operation, parameters, id: operation.operationId, method, path });
    }
  }
  $("tagline").textContent = api.info.summary;
  for (const { name, description } of api.tags) {
    const found = [...operations.values()].filter((one) => one.tags.includes(name));
    $("main").append(section(name, name, description, found.map(operationRow)));
  }
  const { Event: events, Problem: problem } = api.components.schemas;
  const words = "What a stream sends, as `id`, `event` and `data`. `Last-Event-ID` resumes a stream after an event. All data has `seq`, `turn_id` and `created_at`.";
  $("main").append(section("events", "events", words, Object.entries(events.discriminator.mapping).map(eventRow)));
  const answers = Object.entries(api.components.responses).map(([name, one]) => [name.slice(7) || "other", one]);
  const errors = [el("div", { class: "docs" }, problemList(answers), lazy({ class: "nested" }, "Problem", () => fields(problem, {})))];
  $("main").append(section("errors", "errors", problem.description, errors));
  $("groups").lastChild.querySelector("span").textContent = answers.length;
  filter();
  follow();
}

/** Hide what does not have every word of the filter. */
function filter() {
  const words = $("filter").value.toLowerCase().split(/\s+/);
  for (const part of document.querySelectorAll("main section")) {
    const items = [...part.querySelectorAll(".item")];
    for (const item of items) item.hidden = !words.every((word) => item.dataset.words.includes(word));
    const text = part.textContent.toLowerCase();
    part.hidden = items.length ? items.every((item) => item.hidden) : !words.every((word) => text.includes(word));
    document.querySelector(`#groups a[href="#${part.id}"]`).parentElement.hidden = part.hidden;
  }
  const shown = document.querySelectorAll(".item:not([hidden])").length;
  const all = document.querySelectorAll(".item").length;
  $("count").textContent = shown === all ? `${operations.size} operations` : `${shown} of ${all} shown`;
}

/** Open and show what the address names. */
function follow() {
  const named = $(decodeURIComponent(location.hash.slice(1)));
  if (!named) return;
  if (named.hidden) {
    $("filter").value = "";
    filter();
  }
  if (named.matches("details")) named.open = true;
  named.scrollIntoView();
}

/** Show who the token belongs to. */
async function identify() {
  const token = sessionStorage.getItem("token");
  dispatchEvent(new Event("token"));
  if (!token) return;
  const answer = await call(operations.get("constellations.me").path);
  const found = await answer.json();
  $("caller").textContent = answer.ok ? `${found.username}: ${found.scopes.join(", ")}` : `${found.title}: ${found.detail}`;
  $("caller").className = answer.ok ? "good" : "bad";
}

async function start() {
  $("token").value = sessionStorage.getItem("token") || "";
  $("login").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("token", $("token").value.trim());
    identify();
  });
  $("filter").addEventListener("input", filter);
  addEventListener("hashchange", follow);
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input, textarea, select")) return;
    event.preventDefault();
    $("filter").focus();
  });
  try {
    api = await (await fetch(new URL("openapi.json", ROOT))).json();
  } catch (error) {
    $("main").append(el("p", { class: "bad", role: "alert" }, `The description did not load (${error.message}). Reload the page.`));
    return;
  }
  show();
  await identify();
}

start();
