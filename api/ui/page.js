// What every page adds where scripts run: the sheet of shortcuts, keys that lead elsewhere, buttons that copy,
// moments in the reader's time zone. Nothing here is needed to read a page.

/** Says something to screen readers. */
export function announce(text) {
  const place = document.getElementById("announcer");
  place.textContent = "";
  requestAnimationFrame(() => { place.textContent = text; });
}

const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hourCycle: "h23" });

/** Improves markup that came with the page or later: its moments and its copy buttons. */
export function improve(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    time.textContent = (time.classList.contains("clock") ? clock : day).format(moment);
    time.title = time.dateTime;
  }
  for (const button of root.querySelectorAll("button.copy")) button.hidden = !navigator.clipboard;
}

/** Whether a key is meant for what is being written in. */
export const writing = (event) =>
  event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, [contenteditable]");

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(await whatToCopy(button.dataset));
    announce("Copied");
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1200);
  } catch {
    announce("The browser did not allow copying");
  }
});

async function whatToCopy({ copy, copyOf, copyFrom }) {
  if (copyOf) return document.getElementById(copyOf).textContent;
  if (copyFrom) return (await fetch(copyFrom)).text();
  return copy;
}

const places = { c: "/", a: "/approvals", l: "/log", b: "/bundles", o: "/operations" };
let before = "";

document.addEventListener("keydown", (event) => {
  if (writing(event) || document.querySelector("dialog[open]")) return;
  if (event.key === "?") {
    event.preventDefault();
    showSheet();
  } else if (before === "g" && places[event.key]) {
    location.assign(places[event.key]);
  }
  before = event.key;
});

/** The page of shortcuts as a sheet over this one. */
async function showSheet() {
  let dialog = document.getElementById("shortcut-dialog");
  if (!dialog) {
    const reply = await fetch("/shortcuts");
    if (!reply.ok) return location.assign("/shortcuts");
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    dialog = document.createElement("dialog");
    dialog.id = "shortcut-dialog";
    dialog.setAttribute("aria-labelledby", "shortcuts-title");
    dialog.append(document.adoptNode(page.getElementById("shortcut-sheet")));
    const close = document.createElement("form");
    close.method = "dialog";
    const button = document.createElement("button");
    button.className = "quiet";
    button.textContent = "Close";
    close.append(button);
    dialog.append(close);
    document.body.append(dialog);
  }
  dialog.showModal();
}

improve(document);
