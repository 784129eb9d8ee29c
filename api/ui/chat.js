// The chat follows by itself: parts of the page that changed come as a stream and are put in place; forms are sent
// without leaving the page. What is being written, what is selected, what has the focus and what was opened stays.

import { announce, improve } from "./page.js";

const chat = document.getElementById("chat");
const { conversation = "" } = chat.dataset;
const say = (id, text) => {
  const place = document.getElementById(id);
  place.hidden = !text;
  if (place.textContent !== text) place.textContent = text;
};

/** Makes `old` what `fresh` is, changing no more than what differs. */
function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.data = fresh.data;
    return;
  }
  // Somebody writes or reads there.
  if (old.hasAttribute("data-kept")) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  // A choice that was made stays, as long as there is such a choice.
  const chosen = old.nodeName === "SELECT" ? old.value : undefined;
  const known = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
  let at = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const same = child.id ? known.get(child.id) : undefined;
    if (same) {
      if (same === at) at = at.nextSibling;
      else old.insertBefore(same, at);
      morph(same, child);
    } else if (at && !at.id && !child.id && at.nodeName === child.nodeName) {
      const next = at.nextSibling;
      morph(at, child);
      at = next;
    } else {
      old.insertBefore(child, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
  if (chosen !== undefined && [...old.options].some((option) => option.value === chosen)) old.value = chosen;
}

const newest = () => [...document.querySelectorAll(".turn")].at(-1);
/** Whether the end of the newest turn is in sight: then it is followed. */
const nearEnd = () => (newest()?.getBoundingClientRect().bottom ?? 0) < innerHeight + 40;
const toEnd = () => newest()?.scrollIntoView({ block: "end" });

function put({ part, html }) {
  const made = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
  const follows = nearEnd();
  const old = document.getElementById(part);
  const before = old?.dataset.status;
  if (old) {
    morph(old, made);
  } else if (made.dataset.number) {
    const turns = document.getElementById("turns");
    turns.querySelector(".empty")?.remove();
    const after = [...turns.querySelectorAll(".turn")].find((turn) => +turn.dataset.number > +made.dataset.number);
    turns.insertBefore(made, after ?? null);
  }
  const now = document.getElementById(part);
  if (!now) return;
  improve(now);
  const { status } = now.dataset;
  if (status && status !== before) announce(`${now.querySelector("h2").textContent}: ${now.querySelector(".ending .chip").textContent}`);
  if (follows && made.dataset.number) toEnd();
}

// The stream. A window that nobody sees holds none: browsers open only so many to one server.
let last = chat.dataset.position;
let source;
let again;

function follow() {
  clearTimeout(again);
  source?.close();
  source = undefined;
  // A page of earlier turns stays as it is.
  if (document.hidden || "still" in chat.dataset) return;
  const own = new EventSource(`/chat/stream?${new URLSearchParams({ ...(conversation && { c: conversation }), at: last })}`);
  source = own;
  own.addEventListener("open", () => {
    chat.dataset.follows = "yes";
    say("connection", "");
  });
  own.addEventListener("part", (event) => put(JSON.parse(event.data)));
  own.addEventListener("shown", (event) => {
    last = event.lastEventId;
  });
  own.addEventListener("gone", (event) => {
    own.close();
    const { error } = JSON.parse(event.data);
    say("connection", `${error.message} (${error.code})`);
    if (error.retriable) again = setTimeout(follow, 2000);
  });
  own.addEventListener("error", async () => {
    const refused = own.readyState === EventSource.CLOSED;
    own.close();
    again = setTimeout(follow, 1000);
    say("connection", (refused && await refusal(own.url)) || "The connection to the server is lost. Trying again …");
  });
}

/** Why a stream was refused, which the browser tells no script. */
async function refusal(url) {
  const enough = new AbortController();
  try {
    const reply = await fetch(url, { signal: enough.signal });
    return reply.ok ? "" : (await reply.json()).error.message;
  } catch {
    return "";
  } finally {
    enough.abort();
  }
}
document.addEventListener("visibilitychange", follow);
addEventListener("pagehide", () => source?.close());
addEventListener("pageshow", (event) => { if (event.persisted) follow(); });
follow();

// Forms. Each click has a key of its own; sent again after a failure it is the same request.
function newKey() {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const tried = new WeakMap();

async function send(form) {
  if (form.dataset.sending) return;
  const fields = new URLSearchParams(new FormData(form));
  const key = form.elements.namedItem("key");
  if (key) {
    fields.delete("key");
    const what = fields.toString();
    if (tried.get(form)?.what !== what) tried.set(form, { what, key: newKey() });
    fields.set("key", tried.get(form).key);
  }
  form.dataset.sending = "yes";
  say("problem", "");
  try {
    const reply = await fetch(form.action, { method: "POST", body: fields, headers: { accept: "application/json" } });
    const came = await reply.json();
    if (!reply.ok) {
      const { message, hint, code } = came.error;
      say("problem", `${message}${hint && hint !== message ? `: ${hint}` : ""} (${code})`);
      return;
    }
    tried.delete(form);
    if ("clears" in form.dataset) {
      const field = form.elements.namedItem("content");
      field.value = "";
      remember(field);
    }
    form.closest("details")?.removeAttribute("open");
    if (new URL(came.place, location.href).pathname !== location.pathname) location.assign(came.place);
  } catch {
    say("problem", "The server cannot be reached. Nothing is lost: send it again when the connection is back.");
  } finally {
    delete form.dataset.sending;
  }
}

document.addEventListener("submit", (event) => {
  if (!("act" in event.target.dataset)) return;
  event.preventDefault();
  send(event.target);
});

// What is being written survives a reload.
const draft = `draft:${conversation}`;
const field = document.getElementById("content");
const remember = (of) => {
  try {
    if (of.value) sessionStorage.setItem(draft, of.value);
    else sessionStorage.removeItem(draft);
  } catch { /* A browser that keeps nothing. */ }
};
try {
  if (field && !field.value) field.value = sessionStorage.getItem(draft) ?? "";
} catch { /* The same. */ }
field?.addEventListener("input", () => remember(field));
field?.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  const button = field.form.querySelector("button[type=submit]");
  if (!button.disabled && field.form.reportValidity()) send(field.form);
});

// What a call was asked and what it gave comes when it is wanted.
document.addEventListener("toggle", async (event) => {
  const { target } = event;
  if (!target.open || !target.dataset?.fetch) return;
  const place = target.querySelector("[data-kept]");
  const reply = await fetch(target.dataset.fetch).catch(() => undefined);
  if (!reply?.ok) return;
  const page = new DOMParser().parseFromString(await reply.text(), "text/html");
  const found = page.getElementById("call-details");
  if (!found) return;
  found.removeAttribute("id");
  place.replaceChildren(document.adoptNode(found));
  improve(place);
}, true);

// The newest turn is what somebody comes for.
toEnd();
