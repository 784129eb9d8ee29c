"use strict";
// Shows the question that the device has open, and sends its answer. All text is set as text, never as
// markup; the device has escaped what a reader would not see. The token comes in the link's fragment
// and is kept for this tab alone.

const at = (id) => document.getElementById(id);
const fromLink = location.hash.slice(1);
if (fromLink) {
  sessionStorage.setItem("token", fromLink);
  history.replaceState(null, "", location.pathname);
}
const token = sessionStorage.getItem("token");

let shown = null; // the question on the page
let shownAt = 0;
let endsAt = 0;
let tooSoon = 500;

const ask = (path, options = {}) =>
  fetch(path, {
    ...options,
    cache: "no-store",
    headers: { authorization: `Bearer ${token}`, ...(options.body ? { "content-type": "application/json" } : {}) },
  });

const say = (text) => {
  if (at("state").textContent !== text) at("state").textContent = text;
};

function show(question, waiting) {
  at("waiting").textContent = waiting ? `${waiting} more waiting` : "";
  if (!question) {
    shown = null;
    at("question").hidden = true;
    document.title = "DevMind device";
    say("Nothing to decide. Keep this page open: questions appear here.");
    return;
  }
  endsAt = performance.now() + question.ms_left;
  if (shown && shown.id === question.id) return;
  shown = question;
  shownAt = performance.now();
  at("tool").textContent = question.tool;
  at("details").replaceChildren(
    ...question.rows.flatMap(([name, value]) => {
      const term = document.createElement("dt");
      const text = document.createElement("dd");
      term.textContent = name;
      text.textContent = value;
      return [term, text];
    }),
  );
  at("question").hidden = false;
  document.title = "Question — DevMind device";
  say("Please decide.");
  at("deny").focus();
}

async function answer(allow) {
  // A click or key that was under way when the question came up was not meant for it.
  if (!shown || performance.now() - shownAt < tooSoon) return;
  const id = shown.id;
  try {
    const reply = await ask("/api/answer", { method: "POST", body: JSON.stringify({ id, allow }) });
    if (!reply.ok) say((await reply.json()).error.message);
  } catch {
    say("The device cannot be reached.");
  }
}

at("deny").addEventListener("click", () => answer(false));
at("allow").addEventListener("click", () => answer(true));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.repeat) answer(false);
  // A key that is held down must not press the button again and again.
  if (event.repeat && event.target instanceof HTMLButtonElement) event.preventDefault();
});

setInterval(() => {
  if (!shown) return;
  at("left").textContent = `${Math.max(0, Math.ceil((endsAt - performance.now()) / 1000))} s left.`;
  const isTooSoon = performance.now() - shownAt < tooSoon;
  for (const id of ["deny", "allow"]) at(id).setAttribute("aria-disabled", String(isTooSoon));
}, 100);

async function follow() {
  let version = 0;
  for (;;) {
    try {
      const reply = await ask(`/api/questions?after=${version}`);
      if (reply.status === 401) {
        show(null, 0);
        return say("This link is no longer valid. Open the one that the device printed when it started.");
      }
      if (!reply.ok) throw new Error(String(reply.status));
      const news = await reply.json();
      version = news.version;
      tooSoon = news.too_soon_ms;
      show(news.question, news.waiting);
    } catch {
      show(null, 0);
      say("The device cannot be reached. Trying again …");
      await new Promise((done) => setTimeout(done, 1000));
      version = 0;
    }
  }
}

if (token) follow();
else say("Open the link that the device printed when it started: it carries the key to this page.");
