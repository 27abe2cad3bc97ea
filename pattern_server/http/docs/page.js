"use strict";
// Show what /openapi.json describes, and send requests. Each text enters the page as a text node, never as HTML.

const ROOT = new URL(".", location.href); // the server, also below a prefix that a proxy adds
const METHODS = ["get", "post", "put", "patch", "delete"];
const HEADERS = ["content-type", "etag", "location", "retry-after", "x-request-id"]; // shown of an answer
// The operation that lists the values of a path parameter.
const LISTS = { c: "constellations.list", a: "agents.list", f: "folders.list", t: "turns.list", label: "memory.list" };
const EVENTS_SHOWN_MAX = 1000;
const PLAIN = { credentials: "omit", cache: "no-store" }; // of every request to the API
const COLOURED_MAX = 200000; // characters of JSON

const operations = new Map(); // by operationId: { id, method, path, ...operation }
const $ = (id) => document.getElementById(id);
let api;

/** Return a new element of a `name.class`. Children that are plain objects are attributes; empty ones are left out. */
function el(kind, ...children) {
  const [name, ...classes] = kind.split(".");
  const made = document.createElement(name);
  made.className = classes.join(" ");
  for (const child of children.flat(Infinity)) {
    if (child instanceof Node || typeof child === "string") made.append(child);
    else if (typeof child === "number") made.append(String(child));
    else for (const [key, value] of Object.entries(child || {})) if (value != null) made.setAttribute(key, value);
  }
  return made;
}

/** Return a text with its `code` parts. */
function inline(text) {
  return text.split("`").map((part, index) => (index % 2 ? el("code", part) : part));
}

/** Return the paragraphs of a text. */
function prose(text) {
  return (text || "")
    .split(/\n\s*\n/)
    .filter(Boolean)
    .map((part) => el("p", inline(part)));
}

/** Return a value as indented JSON with colours. */
function json(value) {
  const text = JSON.stringify(value, null, 2);
  if (text.length > COLOURED_MAX) return [text];
  const parts = [];
  let end = 0;
  for (const found of text.matchAll(/("(?:\\.|[^"\\])*")(\s*:)?|\b(?:true|false|null)\b|-?\d[\d.eE+-]*/g)) {
    const kind = found[2] ? "key" : found[1] ? "string" : "literal";
    parts.push(text.slice(end, found.index), el(`span.${kind}`, found[1] || found[0]), found[2] || "");
    end = found.index + found[0].length;
  }
  return [...parts, text.slice(end)];
}

// Schemas

const nameOf = (schema) => schema.$ref?.split("/").pop();

/** Return what a reference names, or the schema itself. */
function resolved(part) {
  if (!part.$ref) return part;
  const [, ...keys] = part.$ref.split("/");
  return keys.reduce((found, key) => found[key], api);
}

/** Return the schemas that a value may fit, or that its items fit: without null, not resolved. */
function choices(schema) {
  const inner = schema.anyOf || schema.oneOf;
  if (inner) return inner.filter((one) => one.type !== "null").flatMap(choices);
  const { items, contentSchema, additionalProperties: other } = schema;
  const one = items || contentSchema || (other instanceof Object && other);
  return one ? choices(one) : [schema];
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
  return schema.format || schema.type || "any JSON";
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
    if (pattern) words.push(`matches \`${pattern}\``);
  }
  const { default: value } = schema;
  if (value != null && value !== "")
    words.push(`default \`${typeof value === "string" ? value : JSON.stringify(value)}\``);
  return words.join(", ");
}

/** Return one field or parameter with everything that is known of it. */
function field(name, schema, mark) {
  const found = choices(schema);
  const values = found.flatMap((one) => resolved(one).enum || []);
  const nested = found.filter((one) => resolved(one).properties);
  const ofEnums = found.map((one) => one.$ref && resolved(one).enum && resolved(one).description);
  return [
    el("dt", el("code", name), " ", el("span.type", typeOf(schema)), mark && el("span.mark", mark)),
    el(
      "dd",
      [...new Set([schema.description, ...ofEnums])].map(prose),
      values.length > 0 &&
        el(
          "p.values",
          "One of ",
          values.map((one) => [el("code", one), " "]),
        ),
      el("p.bounds", inline(bounds(schema))),
      nested.map((one) => lazy("nested", nameOf(one) || "Fields", () => fields(one, {}), name === "items")),
    ),
  ];
}

/** Return the fields of an object, those within it to be opened. */
function fields(schema, { isRequest }) {
  const { properties = {}, required = [] } = resolved(schema);
  const rows = Object.entries(properties).map(([name, one]) => {
    const isRequired = required.includes(name);
    const mark = isRequest ? isRequired && "required" : !isRequired && !("default" in one) && "may be missing";
    return field(name, one, mark);
  });
  return el("dl", rows);
}

/** Return the description of a body: its type, words and fields. */
function shape(schema, options) {
  return choices(schema).map((one) => {
    const type = el("p.shape", el("span.type", typeOf(schema)));
    const words = resolved(one).description;
    return resolved(one).properties ? [type, prose(words), fields(one, options)] : type;
  });
}

/** Return details whose content is made when they are first opened. */
function lazy(kind, summary, content, isOpen = false) {
  const made = el(`details.${kind}`, el("summary", summary));
  const fill = () => made.childElementCount > 1 || made.append(...[content()].flat(Infinity));
  made.addEventListener("toggle", fill);
  if (isOpen) fill();
  made.open = isOpen;
  return made;
}

/** Return a block of text that keeps its lines. */
const block = (...parts) => el("pre", { tabindex: 0 }, parts);

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
  const url = new URL(path + `?${query}`.replace(/\?$/, ""), ROOT);
  return { url, method: operation.method.toUpperCase(), headers, body };
}

/** Return a request as a command for a shell, without the token; parameters without a value are left as `{c}`. */
function curlOf({ url, method, headers, body }) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const parts = ["curl", headers.accept?.includes("event-stream") && "-N", method !== "GET" && `-X ${method}`];
  const lines = [[...parts, quoted(url.href.replaceAll("%7B", "{").replaceAll("%7D", "}"))].filter(Boolean).join(" ")];
  for (const [name, value] of Object.entries({ ...headers, authorization: undefined })) {
    if (value) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  }
  if (headers.authorization) lines.push('-H "Authorization: Bearer $PATTERN_TOKEN"');
  if (body) lines.push(body instanceof File ? `--data-binary ${quoted(`@${body.name}`)}` : `-d ${quoted(body)}`);
  return lines.join(" \\\n  ");
}

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
  const status = el("p.status", { role: "status" }, "Waiting for the server …");
  output.replaceChildren(status);
  output.scrollIntoView({ block: "nearest" });
  const began = performance.now();
  try {
    const answer = await fetch(request.url, { ...request, ...PLAIN, signal });
    const took = Math.round(performance.now() - began);
    status.replaceChildren(el(`strong.${answer.ok ? "good" : "bad"}`, answer.status), ` after ${took} ms`);
    const shown = HEADERS.filter((name) => answer.headers.has(name));
    const lines = shown.map((name) => el("span", `${name}: ${answer.headers.get(name)}`));
    output.append(el("p.headers", lines));
    await showBody(answer, output);
    output.scrollIntoView({ block: "nearest" });
  } catch (error) {
    const words = signal.aborted ? "Stopped." : `The request failed: ${error.message}`;
    output.append(el("p.status.bad", { role: "alert" }, words));
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
    output.append(block(type.includes("json") ? json(JSON.parse(text)) : text));
  } else {
    // Saved, never opened here: a file that someone uploaded may be a page with scripts.
    const address = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
    const isImage = /^image\/(png|jpeg|gif|webp)/.test(type);
    output.append(isImage ? el("img", { src: address, alt: "The image that was answered" }) : "");
    output.append(el("p", el("a", { href: address, download: "download" }, `Save ${blob.size} bytes`)));
  }
}

/** Show events as they come, and above them the text that they add up to. */
async function showEvents(body, output) {
  const text = el("p.answer");
  const list = el("ol.stream");
  output.append(text, list);
  for await (const event of eventsOf(body)) {
    const { seq, turn_id, created_at, ...data } = JSON.parse(event.data);
    if (event.event === "text.delta") text.append(data.text);
    if (event.event === "step.superseded") text.replaceChildren();
    const title = `event ${seq}, ${created_at}${turn_id ? `, ${turn_id}` : ""}`;
    list.append(el("li", { title }, el("code", event.event), el("span", JSON.stringify(data))));
    if (list.childElementCount > EVENTS_SHOWN_MAX) list.firstChild.remove();
    list.scrollTop = list.scrollHeight;
    output.parentElement.scrollTop = output.offsetTop; // on a wide page the form's panel scrolls by itself
  }
  output.append(el("p.status", "The stream has ended."));
}

// Forms

/** Return the media types that an operation may answer with. */
function mediaTypes(operation) {
  const good = Object.entries(operation.responses).filter(([status]) => status < 300);
  return [...new Set(good.flatMap(([, answer]) => Object.keys(answer.content || {})))];
}

/** Return the input of a parameter. Values that a list offers are remembered, since most operations share them. */
function input(operation, one, id) {
  const name = `${one.in}.${one.name}`;
  let values = ["", ...choices(one.schema).flatMap((schema) => resolved(schema).enum || [])];
  if (choices(one.schema)[0].type === "boolean") values = ["", "true", "false"];
  if (one.name === "accept") values = mediaTypes(operation).reverse(); // events first: they show more
  if (values.length > 1)
    return el(
      "select",
      { id, name },
      values.map((value) => el("option", value)),
    );
  const made = el("input", {
    id,
    name,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: one.schema.default || "",
  });
  if (one.in !== "path") return made;
  made.required = true;
  if (!LISTS[one.name]) return made;
  made.value = sessionStorage.getItem(name);
  made.addEventListener("change", () => sessionStorage.setItem(name, made.value));
  made.setAttribute("list", `${id}.list`);
  made.addEventListener("focus", () => offer(LISTS[one.name], made));
  return [made, el("datalist", { id: `${id}.list` })];
}

/** Offer the names that the server lists as values of an input, once what comes before it in the path is filled in. */
async function offer(listing, made) {
  let { path, parameters } = operations.get(listing);
  for (const { name } of parameters.filter((one) => one.in === "path")) {
    const value = made.form.elements[`path.${name}`]?.value;
    if (value) path = path.replace(`{${name}}`, encodeURIComponent(value));
  }
  if (!sessionStorage.getItem("token") || path.includes("{")) return;
  const answer = await call(path);
  const { items = [] } = await answer.json();
  made.list.replaceChildren(...items.map((item) => el("option", { value: item.name || item.label || item.id })));
}

/** Send a GET request with the token. */
function call(path) {
  const headers = { authorization: `Bearer ${sessionStorage.getItem("token")}` };
  return fetch(new URL(path.slice(1), ROOT), { headers, ...PLAIN });
}

/** Return the labelled inputs of an operation. */
function controls(operation) {
  const labelled = (id, words, control, hint) =>
    el("div.control", el("label", { for: id }, words, hint && el("span", hint)), control);
  const made = operation.parameters.map((one) => {
    const id = `${operation.id}.${one.in}.${one.name}`;
    const hint = one.in === "header" ? "header, optional" : one.required ? "" : "optional";
    return labelled(id, one.name, input(operation, one, id), hint);
  });
  if (!operation.requestBody) return made;
  const { content, required } = operation.requestBody;
  const id = `${operation.id}.body`;
  const schema = content["application/json"]?.schema;
  if (!schema) return [made, labelled(id, "File", el("input", { id, name: "file", type: "file", required: "" }))];
  const { examples: [first = {}] = [] } = resolved(choices(schema)[0]);
  const example = JSON.stringify(first, null, 2);
  const rows = Math.min(16, example.split("\n").length);
  const area = el("textarea", { id, name: "body", spellcheck: "false", placeholder: example, rows });
  area.value = required ? example : "";
  return [made, labelled(id, "Body", area, !required && "optional")];
}

/** Return the form that tries an operation, with its command for a shell and a place for the answer. */
function trial(operation) {
  const curl = el("pre.curl", { tabindex: 0 });
  const output = el("div.output");
  const stop = el("button", { type: "button", disabled: "" }, "Stop");
  const copy = el("button", { type: "button" }, "Copy as curl");
  const buttons = el("div.row", el("button.main", "Send"), stop, copy);
  const form = el("form", { "aria-label": `Try ${operation.id}` }, el("h4", "Try it"), controls(operation), buttons);
  const refresh = () => curl.replaceChildren(curlOf(requestOf(operation, form)));
  let running;
  stop.addEventListener("click", () => running.abort());
  copy.addEventListener("click", async () => {
    // Browsers let a page write to the clipboard on this machine and over HTTPS; elsewhere the text is only selected.
    getSelection().selectAllChildren(curl);
    await navigator.clipboard?.writeText(curl.textContent);
    copy.textContent = navigator.clipboard ? "Copied" : "Selected";
    setTimeout(() => copy.replaceChildren("Copy as curl"), 2000);
  });
  form.addEventListener("input", refresh);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const request = requestOf(operation, form);
    if (operation.method === "delete" && !confirm(`Send DELETE ${request.url.pathname}?`)) return;
    running?.abort();
    const { signal } = (running = new AbortController());
    stop.disabled = false;
    await send(request, output, signal);
    stop.disabled = signal === running.signal;
  });
  addEventListener("token", refresh);
  refresh();
  return el("div.try", { id: `${operation.id}.try` }, form, curl, output);
}

// The page

/** Return what is known of an operation, with the form that tries it. */
function body(operation) {
  const { id, summary, description, parameters, requestBody, responses, security } = operation;
  const answers = Object.entries(responses).map(([status, answer]) => [status, resolved(answer)]);
  const problems = answers.filter(([status]) => !(status < 400));
  const statuses = problems.map(([status]) => status.replace("default", "others")).join(" ");
  const scopes = (security || []).flatMap((one) => Object.values(one).flat());
  const docs = el(
    "div.docs",
    description !== `${summary}.` && prose(description),
    el(
      "p.facts",
      el("a", { href: `#${id}` }, `#${id}`),
      el("a.jump", { href: `#${id}.try` }, "Try it"),
      el("span", scopes.length ? ["Scope ", scopes.map((one) => el("code", one))] : "No token needed"),
    ),
    parameters.length > 0 && el("h4", "Parameters"),
    el(
      "dl",
      parameters.map((one) => field(one.name, { ...one.schema, description: one.description }, placeOf(one))),
    ),
    Object.entries(requestBody?.content || {}).map(([type, { schema }]) => [
      el("h4", "Request ", el("span", type)),
      shape(schema, { isRequest: true }),
    ]),
    answersOf(answers.filter(([status]) => status < 400)),
    lazy("nested", `Problems: ${statuses}`, () => problemList(problems)),
  );
  return el("div.body", docs, trial(operation));
}

const placeOf = (parameter) => parameter.in + (parameter.required ? ", required" : "");

/** Return the descriptions of successful answers, those with the same body once. */
function answersOf(answers) {
  const key = ([, answer]) => JSON.stringify(answer.content);
  return answers.map((one) => {
    const [status, { description, content = {} }] = one;
    const [first] = answers.find((other) => key(other) === key(one));
    const parts = Object.entries(content).map(([type, { schema }]) => contentOf(type, schema));
    const title = el("h4", `Response ${status} `, el("span", description));
    return [title, first === status ? parts : el("p", `The body is that of response ${first}.`)];
  });
}

/** Return the description of an answer's body. */
function contentOf(type, schema) {
  const name = el("span.type", type);
  if (resolved(schema).discriminator) return el("p", name, ": see ", el("a", { href: "#events" }, "Events"), ".");
  const { examples = [] } = resolved(schema);
  return [
    type !== "application/json" && el("p", name),
    shape(schema, {}),
    examples.map((one) => lazy("nested", "Example", () => block(json(one)))),
  ];
}

/** Return problem documents with their codes, by status. */
function problemList(problems) {
  return el(
    "dl",
    problems.map(([status, one]) => [el("dt", el("code", status)), el("dd", prose(one.description))]),
  );
}

/** Return one row of a list that opens. `words` are what the filter looks through. */
function row(id, summary, words, content) {
  const made = lazy("item", summary, content);
  made.id = id;
  made.dataset.words = words.join(" ").toLowerCase();
  made.addEventListener("toggle", () => made.open && history.replaceState(null, "", `#${id}`));
  return made;
}

/** Add a section to the page and to the groups. */
function addSection(id, description, content, count = content.length) {
  $("groups").append(el("li", el("a", { href: `#${id}` }, id, " ", el("span", count))));
  const heading = el("h2", { id: `${id}-title` }, id);
  $("main").append(el("section", { id, "aria-labelledby": heading.id }, heading, prose(description), content));
}

function operationRow(operation) {
  const { id, method, path, summary, description, parameters } = operation;
  const words = [id, method, path, summary, description, ...parameters.map((one) => one.name)];
  const parts = path.split(/(\{\w+\})/).map((part) => (part.startsWith("{") ? el("b", part) : part));
  const line = [el(`span.method.${method}`, method.toUpperCase()), el("h3", inline(summary)), el("code.path", parts)];
  return row(id, line, words, () => body(operation));
}

function eventRow([name, reference]) {
  const { description, properties } = resolved({ $ref: reference });
  const data = properties.data.contentSchema;
  const line = [el("h3", el("code", name)), el("span.path", inline(description))];
  const content = () =>
    el(
      "div.body",
      fields(data, {}),
      resolved(data).examples.map((one) => block(json(one))),
    );
  return row(`event.${name}`, line, [name, description], content);
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
    addSection(name, description, found.map(operationRow));
  }
  const { Event: events, Problem: problem } = api.components.schemas;
  const common = "All data has `seq`, `turn_id` and `created_at`.";
  addSection("events", `${events.description} ${common}`, Object.entries(events.discriminator.mapping).map(eventRow));
  const problems = Object.entries(api.components.responses).map(([name, one]) => [name.slice(7) || "other", one]);
  const members = lazy("nested", "Problem", () => fields(problem, {}));
  addSection("errors", problem.description, el("div.docs", problemList(problems), members), problems.length);
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
    const link = document.querySelector(`#groups a[href="#${part.id}"]`);
    link.parentElement.hidden = part.hidden;
    if (items.length) link.lastChild.textContent = items.filter((item) => !item.hidden).length;
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
  dispatchEvent(new Event("token"));
  const show = (text, kind) => {
    $("caller").textContent = text;
    $("caller").className = kind;
  };
  if (!sessionStorage.getItem("token")) return show("No token: only requests that need none are answered.", "");
  try {
    const answer = await call(operations.get("constellations.me").path);
    const found = await answer.json();
    if (answer.ok) show(`${found.username}: ${found.scopes.join(", ")}`, "good");
    else show(`${found.title}: ${found.detail}`, "bad");
  } catch (error) {
    show(`The server cannot be asked: ${error.message}`, "bad");
  }
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
    $("main").append(
      el("p.bad", { role: "alert" }, `The description did not load (${error.message}). Reload the page.`),
    );
    return;
  }
  show();
  if (sessionStorage.getItem("token")) identify();
}

start();
