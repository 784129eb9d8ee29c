// The question at the device, on the page that only this computer's browser can open.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { assertFits, launch, open, picture, seriousFaults } from "./lib/browser.mjs";
import { Device, Server, workspace } from "./lib/programs.mjs";
import { eventually } from "./lib/wait.mjs";

let browser;
let server;
let device;
let window;

before(async () => {
  browser = await launch();
  server = await Server.start();
  device = await Device.start(server, { files: workspace({ "a.txt": "one", "b.txt": "two" }) });
  // The server's pages have a name of their own below `localhost`.
  window = await open(browser, device.link, { hosts: /^[0-9a-f]{32}\.localhost:\d+$/ });
});

after(async () => {
  await window?.close();
  await browser?.close();
  await device?.stop();
  await server?.finish();
});

/** Asks for a file; the page shows the question, and its buttons count. */
async function asked(file, question = `read ${file}`) {
  const run = await server.ask(question, { device });
  await window.page.getByRole("definition").filter({ hasText: file }).first().waitFor();
  await window.page.getByRole("button", { name: "Deny", disabled: false }).waitFor();
  return run;
}

/** The only call of a run, once it is settled. */
const settled = (run) =>
  eventually(
    "the call is settled",
    async () => (await server.api(`/api/tool-calls?run_id=${run.run_id}`))[0],
    (call) => call?.settled,
  );

const focused = () => window.page.evaluate(() => document.activeElement.textContent.trim());

test("a question comes up with the focus on Deny, and Enter denies", async () => {
  const run = await asked("README.md");
  assert.equal(await focused(), "Deny");
  await window.page.keyboard.press("Enter");
  assert.equal((await settled(run)).error_code, "CONFIRMATION_REJECTED");
  await window.page.getByRole("dialog").waitFor({ state: "hidden" });
});

test("Tab and Enter allow once, and the next question is asked again", async () => {
  const run = await asked("a.txt");
  await window.page.keyboard.press("Tab");
  assert.equal(await focused(), "Allow once");
  await window.page.keyboard.press("Enter");
  assert.equal((await settled(run)).status, "succeeded");
  const next = await asked("a.txt");
  assert.equal(await focused(), "Deny");
  await window.page.keyboard.press("Escape");
  assert.equal((await settled(next)).error_code, "CONFIRMATION_REJECTED");
});

test("the question shows everything that is asked, and counts down", async () => {
  const run = await asked("b.txt", "read b.txt please");
  const dialog = window.page.getByRole("dialog");
  for (const words of ["workspace.read_file", "read b.txt please", '"b.txt"', "3 bytes"]) {
    await dialog.getByText(words, { exact: false }).first().waitFor();
  }
  const left = async () => Number((await dialog.getByRole("timer").textContent()).match(/\d+/)[0]);
  const first = await left();
  assert.ok(first <= 60);
  await eventually("fewer seconds are left", left, (now) => now < first);
  await picture(window.page, "device-question");
  assert.deepEqual(await seriousFaults(window.page), []);
  await window.page.keyboard.press("Escape");
  await settled(run);
});

test("a question that is no longer asked goes away by itself", async () => {
  const run = await asked("a.txt");
  await server.api("/api/runs/stop", { method: "POST", body: { run_id: run.run_id } });
  await window.page.getByRole("dialog").waitFor({ state: "hidden" });
  // The wait of the server ended; what really became of it is the device's to say.
  assert.equal((await settled(run)).status, "cancelled");
});

test("the page fits a narrow and a wide window", async () => {
  const run = await asked("a.txt");
  for (const width of [360, 1600]) {
    await window.page.setViewportSize({ width, height: 800 });
    await assertFits(window.page, `the question at ${width} px`);
  }
  await picture(window.page, "device-question-1600");
  await window.page.keyboard.press("Escape");
  await settled(run);
});

test("without the key of its link the page asks for the link, and shows no question", async () => {
  const run = await asked("a.txt");
  const stranger = await open(browser, device.link.split("#")[0]);
  await stranger.page.getByText("Open the link that the device printed").waitFor();
  assert.equal(await stranger.page.getByRole("dialog").isVisible(), false);
  await stranger.close();
  await window.page.bringToFront();
  await window.page.keyboard.press("Escape");
  await settled(run);
});
