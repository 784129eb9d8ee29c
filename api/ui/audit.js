// What audit pages add where scripts run: following the log live, with a pause and a count of what is new; keys
// through lists and through time; the progress of a verification.
import { announce, improve, writing } from "./page.js";

const KEPT_LINES = 1000; // lines that a page holds while it follows; older ones go, the log has them
const list = document.getElementById("events");

// ---- Following live.
const follow = document.getElementById("follow");
if (follow && list?.dataset.live) {
  const more = document.getElementById("show-new");
  const waiting = [];
  let source = null;
  let paused = false;
  follow.closest(".live").hidden = false;

  const show = () => {
    const arrived = waiting.splice(0);
    if (!arrived.length) return;
    for (const old of list.querySelectorAll(".new")) old.classList.remove("new");
    for (const html of arrived) {
      const line = document.createElement("template");
      line.innerHTML = html; // made by the server, by the function that made the lines above
      line.content.firstElementChild.classList.add("new");
      improve(line.content);
      list.append(line.content);
    }
    while (list.children.length > KEPT_LINES) list.firstElementChild.remove();
    count();
  };
  const count = () => {
    more.hidden = waiting.length === 0;
    more.textContent = `${waiting.length} new`;
  };
  const say = () => {
    follow.textContent = source ? (paused ? "Go on" : "Pause") : "Follow live";
    follow.setAttribute("aria-pressed", String(Boolean(source) && !paused));
  };
  const begin = () => {
    source = new EventSource(list.dataset.live);
    source.addEventListener("message", (event) => {
      waiting.push(event.data);
      if (waiting.length > KEPT_LINES) waiting.shift();
      if (paused) count();
      else show();
    });
    source.addEventListener("refused", (event) => {
      source.close();
      source = null;
      announce(JSON.parse(event.data).error.message);
      say();
    });
    source.addEventListener("error", () => announce("The connection broke off. Trying again."));
    announce("Following live");
  };
  follow.addEventListener("click", () => {
    if (!source) begin();
    else {
      paused = !paused;
      announce(paused ? "Paused" : "Going on");
      if (!paused) show();
    }
    say();
  });
  more.addEventListener("click", () => {
    show();
    list.lastElementChild?.scrollIntoView({ block: "nearest" });
  });
}

// ---- Keys: lists and time.
const lines = () => [...document.querySelectorAll("#events > li")].map((li) => li.querySelector("summary, a.position")).filter(Boolean);

function step(by) {
  const all = lines();
  const at = all.indexOf(document.activeElement);
  const next = all[Math.min(Math.max(at + by, 0), all.length - 1)];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (writing(event) || document.querySelector("dialog[open]")) return;
  const travel = { "[": "back", "]": "on", n: "now" }[event.key];
  if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "p") follow?.click();
  else if (event.key === "f") {
    const filters = document.querySelector(".filters");
    if (!filters) return;
    filters.open = true;
    filters.querySelector("input").focus();
    event.preventDefault();
  } else if (travel) document.querySelector(`a[data-travel="${travel}"]`)?.click();
});

// A link to a line within a group opens the group.
function open() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  target.scrollIntoView({ block: "center" });
}
addEventListener("hashchange", open);
open();

// ---- The progress of a verification.
const verification = document.getElementById("verification");
if (verification && verification.hasAttribute("data-running")) {
  const look = async () => {
    const reply = await fetch("/verify").catch(() => null);
    if (reply?.ok) {
      const page = new DOMParser().parseFromString(await reply.text(), "text/html");
      const now = page.getElementById("verification");
      if (now && !now.hasAttribute("data-running")) return location.reload();
      if (now) verification.replaceChildren(...now.childNodes);
      improve(verification);
    }
    setTimeout(look, 700);
  };
  setTimeout(look, 300);
}
