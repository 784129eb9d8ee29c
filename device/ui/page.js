// Shows the question that the device has open, and sends its answer; under it, in a frame, the server's
// pages. The frame is of another origin, which the device's own server makes: what the server sends cannot
// reach this page, its key, or its buttons. All text is set as text, never as markup; the device has
// escaped what a reader would not see. The key comes in the link's fragment and is kept for this tab alone.

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

function tell(id, text) {
  if (at(id).textContent !== text) at(id).textContent = text;
}

/** The line at the top: whether the server can use this computer's tools, and if not, why. */
function bar(device) {
  document.body.classList.toggle("connected", device.connected);
  tell("mark", device.connected ? "●" : "○");
  tell("words", `Local tools: ${device.words} · workspace ${device.workspace}`);
  const pages = at("pages");
  if (device.pages && !pages.src) {
    pages.src = device.pages;
    pages.hidden = false;
    at("alone").hidden = true;
  }
}

function lost(words) {
  document.body.classList.remove("connected");
  tell("mark", "○");
  tell("words", words);
  show(null, 0);
}

function show(question, waiting) {
  tell("waiting", waiting ? `${waiting} more waiting` : "");
  if (!question) {
    shown = null;
    at("question").close();
    document.title = "DevMind";
    return;
  }
  endsAt = performance.now() + question.ms_left;
  if (shown && shown.id === question.id) return;
  shown = question;
  shownAt = performance.now();
  tell("problem", "");
  tell("tool", question.tool);
  at("details").replaceChildren(
    ...question.rows.flatMap(([name, value]) => {
      const term = document.createElement("dt");
      const text = document.createElement("dd");
      term.textContent = name;
      text.textContent = value;
      return [term, text];
    }),
  );
  document.title = "Question — DevMind";
  tick();
  // Above the frame and not modal: whoever would rather stop the run reaches its button there.
  at("question").show();
  at("deny").focus();
}

async function answer(allow) {
  // A click or key that was under way when the question came up was not meant for it.
  if (!shown || performance.now() - shownAt < tooSoon) return;
  const id = shown.id;
  try {
    const reply = await ask("/api/answer", { method: "POST", body: JSON.stringify({ id, allow }) });
    if (!reply.ok) tell("problem", (await reply.json()).error.message);
  } catch {
    tell("problem", "The device cannot be reached.");
  }
}

at("deny").addEventListener("click", () => answer(false));
at("allow").addEventListener("click", () => answer(true));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && shown) {
    event.preventDefault();
    if (!event.repeat) answer(false);
  }
  // A key that is held down must not press the button again and again.
  if (event.repeat && event.target instanceof HTMLButtonElement) event.preventDefault();
});

function tick() {
  if (!shown) return;
  tell("left", `${Math.max(0, Math.ceil((endsAt - performance.now()) / 1000))} s left.`);
  const isTooSoon = performance.now() - shownAt < tooSoon;
  for (const id of ["deny", "allow"]) at(id).setAttribute("aria-disabled", String(isTooSoon));
}
setInterval(tick, 100);

async function follow() {
  let version = 0;
  for (;;) {
    try {
      const reply = await ask(`/api/questions?after=${version}`);
      if (reply.status === 401) {
        return lost("This link is no longer valid. Open the one that the device printed when it started.");
      }
      if (!reply.ok) throw new Error(String(reply.status));
      const news = await reply.json();
      version = news.version;
      tooSoon = news.too_soon_ms;
      bar(news.device);
      show(news.question, news.waiting);
    } catch {
      lost("The device program cannot be reached: start it again. Trying …");
      await new Promise((done) => setTimeout(done, 1000));
      version = 0;
    }
  }
}

if (token) follow();
else lost("Open the link that the device printed when it started: it carries the key to this page.");
