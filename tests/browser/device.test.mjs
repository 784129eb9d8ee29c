// The question at the device, on the page that only this computer's browser can open.

import assert from "node:assert/strict";
import { basename } from "node:path";
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
  server = await Server.start({ env: { USER: "ann" } });
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

/** Asks for a file; the page shows the question, and its buttons count. An earlier question has gone before. */
async function asked(file, question = `read ${file}`) {
  await window.page.getByRole("dialog").waitFor({ state: "hidden" });
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

/** The server's pages, in the frame of the device's page. */
const framed = () => window.page.frames().find((frame) => frame.url().includes(".localhost:"));

/** Asks in that frame. */
async function askInFrame(question) {
  const [inner, frame] = [framed(), window.page.frameLocator("#pages")];
  await Promise.all([
    window.page.waitForEvent("framenavigated", (one) => one === inner),
    frame.getByRole("link", { name: "New conversation" }).click(),
  ]);
  await inner.waitForLoadState();
  await frame.locator(".empty").filter({ hasText: "What would you like to know?" }).waitFor();
  await frame.getByLabel("Your question").fill(question);
  await frame.getByRole("button", { name: "Send" }).click();
  return frame;
}

const question = (file) => window.page.getByRole("dialog").getByRole("definition").filter({ hasText: file }).first();

test("one window has it all: the chat under the question, with the call's phase as it changes", async () => {
  await window.page.getByText("Local tools: connected as ann").waitFor();
  await window.page.getByText(`workspace ${device.files}`).waitFor();
  const pages = window.page.frameLocator("#pages");
  await pages.locator("#chat-device").getByText("this computer").waitFor();
  await pages.locator("#chat-device").getByText(basename(device.files)).waitFor();
  assert.equal(await pages.getByRole("banner").getByRole("link", { name: "ann" }).count(), 0, "nobody signs in here");
  const frame = await askInFrame("list the files of my workspace root, then read README.md");
  const card = (tool) => frame.locator(".call").filter({ hasText: tool });
  await card("workspace.list_files").getByText("done").waitFor();
  await card("workspace.read_file").getByText("waiting for your confirmation at the device").waitFor();
  await question("README.md").waitFor();
  await picture(window.page, "device-window");
  await window.page.getByRole("button", { name: "Allow once", disabled: false }).click();
  await card("workspace.read_file").getByText("done").waitFor();
  await frame.locator(".ending").getByText("answered").waitFor();
  await frame.getByText("Hello from the workspace.").first().waitFor();
  // A listing is read by a person, not by a program.
  await card("workspace.list_files").getByText("Details").click();
  await card("workspace.list_files").getByText(/README\.md\s+\d+ bytes/).waitFor();
  assert.deepEqual(await seriousFaults(window.page), []);
});

test("Stop in the chat closes the question that is open", async () => {
  const frame = await askInFrame("read a.txt");
  await question("a.txt").waitFor();
  await frame.getByRole("button", { name: "Stop" }).click();
  await window.page.getByRole("dialog").waitFor({ state: "hidden" });
  await frame.locator(".ending").getByText("stopped").waitFor();
  await frame.locator(".call").getByText("taken back, did not run").waitFor();
});

test("a call whose server was killed is unknown, and reconciled when the device reports it", async () => {
  const frame = await askInFrame("read b.txt");
  await question("b.txt").waitFor();
  await server.kill();
  await window.page.getByText("the server cannot be reached").waitFor();
  await server.again();
  await frame.locator(".call").getByText("outcome unknown").waitFor();
  await frame.locator(".ending").getByText("failed").waitFor();
  await window.page.getByRole("button", { name: "Allow once", disabled: false }).click();
  await frame.locator(".call").getByText("done, reconciled later").waitFor();
});

test("the pages in the frame reach neither the key nor the buttons of the question", async () => {
  const inner = framed();
  const tried = await inner.evaluate(() => {
    const outcome = (attempt) => {
      try {
        attempt();
        return "reached";
      } catch (error) {
        return error.name;
      }
    };
    return [
      outcome(() => parent.document.body),
      outcome(() => parent.sessionStorage),
      outcome(() => { top.location = "about:blank"; }),
    ];
  });
  assert.deepEqual(tried, ["SecurityError", "SecurityError", "SecurityError"]);
  const origin = new URL(device.link).origin;
  const answer = await inner.evaluate((url) => fetch(`${url}/api/questions`).then((reply) => reply.status, (error) => error.name), origin);
  assert.equal(answer, "TypeError", "the policy of the pages lets them ask their own origin alone");
  // The refused request is an error of the console, as it must be; so is the refused navigation.
  const expected = window.wrong.splice(0).filter((told) => !/Content Security Policy|Refused to connect|Unsafe attempt to initiate navigation/.test(told));
  assert.deepEqual(expected, []);
});

test("the page fits a narrow and a wide window", async () => {
  const run = await asked("a.txt");
  for (const width of [360, 1600]) {
    await window.page.setViewportSize({ width, height: 800 });
    await assertFits(window.page, `the question at ${width} px`);
    await picture(window.page, `device-question-${width}`);
  }
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
