// What an auditor goes through: the log, timelines, the past, what changed, verification, bundles, operations.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { assertFits, launch, leads, open, picture, seriousFaults } from "./lib/browser.mjs";
import { Server } from "./lib/programs.mjs";
import { eventually } from "./lib/wait.mjs";

let browser;
let server;
let asked;
let waiting;

before(async () => {
  browser = await launch();
  server = await Server.start({ env: { USER: "ann" } });
  asked = await server.ask("add 1 and 2, what time is it?");
  await asked.ended;
  waiting = await server.ask("the demo text, please <b>\u202egnp.exe</b>");
  await waiting.ended;
});

after(async () => {
  await browser?.close();
  await server?.finish();
});

/** Becomes somebody else by the form, as a person does. */
async function as(page, name, role) {
  await page.goto(`${server.url}/sign-in`);
  await page.getByLabel("Name").fill(name);
  await page.getByLabel("Role").selectOption(role);
  await leads(page, () => page.getByRole("button", { name: "Go on as this person" }).click());
  await page.getByText(`You are ${name}`).waitFor({ state: "attached" });
}

const lines = (page) => page.locator("#events > li");

test("the log is followed live, stops at a pause with a count of what is new, and goes on without gap or repeat", async () => {
  const { page, close } = await open(browser, `${server.url}/log?type=TurnPrepared`);
  const before = await lines(page).count();
  await page.getByRole("button", { name: "Follow live" }).click();
  await (await server.ask("first while following")).ended;
  await page.getByText("first while following").waitFor();
  await page.getByRole("button", { name: "Pause" }).click();
  await (await server.ask("second, while paused")).ended;
  await (await server.ask("third, while paused")).ended;
  const news = page.getByRole("button", { name: "2 new" });
  await news.waitFor();
  assert.equal(await lines(page).count(), before + 1, "a pause shows nothing new");
  await page.getByRole("button", { name: "Go on" }).click();
  await page.getByText("third, while paused").waitFor();
  const positions = await page.locator("#events .position").evaluateAll((all) => all.map((one) => Number(one.textContent.match(/\d+/)[0])));
  assert.deepEqual(positions, [...new Set(positions)].sort((a, b) => a - b));
  assert.equal(positions.length, before + 3);
  await news.waitFor({ state: "hidden" });
  await close();
});

test("the keyboard alone reads the log, opens an event, travels through time and shows its own sheet", async () => {
  const { page, close } = await open(browser, `${server.url}/`);
  await page.locator("h1").first().waitFor();
  await page.locator("body").press("g");
  await page.keyboard.press("l");
  await page.waitForURL("**/log");
  await page.keyboard.press("?");
  const sheet = page.getByRole("dialog", { name: "Keyboard shortcuts" });
  await sheet.waitFor();
  await page.keyboard.press("Escape");
  await sheet.waitFor({ state: "hidden" });
  await page.keyboard.press("f");
  await page.keyboard.type("TurnPrepared");
  await page.keyboard.press("Enter");
  await page.waitForURL("**/log?type=TurnPrepared*");
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  await page.keyboard.press("k");
  assert.equal(await page.evaluate(() => document.activeElement.closest("li")?.matches(":first-child")), true);
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/log\/\d+$/);
  const at = Number(page.url().split("/").pop());
  await page.keyboard.press("]");
  await page.waitForURL(`**/log/${at + 1}`);
  await page.keyboard.press("[");
  await page.waitForURL(`**/log/${at}`);
  await page.goto(`${server.url}/history/${asked.conversation_id}`);
  await leads(page, () => page.keyboard.press("["));
  await page.getByText("You see the past").waitFor();
  await page.keyboard.press("n");
  await page.getByText("You see the past").waitFor({ state: "detached" });
  await close();
});

test("a timeline folds into groups, opens, shows every event and JSON, and leads from a bar to its event", async () => {
  const { page, close } = await open(browser, `${server.url}/runs/${asked.run_id}`);
  const call = page.locator("details.group").filter({ hasText: "Tool call" }).first();
  await call.locator("summary").click();
  await call.getByText("attempt 1 succeeded").waitFor();
  await picture(page, "audit-timeline", { fullPage: true });
  await page.locator(".lanes svg a").nth(1).click();
  await page.waitForURL(/view=events.*#p\d+$/);
  assert.equal(await page.locator("li:target").count(), 1);
  await leads(page, () => page.getByRole("link", { name: "JSON", exact: true }).click());
  const shown = await page.locator("#json").innerText();
  assert.ok(JSON.parse(shown).length > 10);
  await close();
});

test("the past has a banner, and nothing on it acts", async () => {
  const { page, close } = await open(browser, `${server.url}/history/${waiting.conversation_id}`);
  const [claimed] = (await server.events("RunClaimed")).filter(({ metadata }) => metadata.correlation_id === waiting.run_id);
  await page.getByLabel("As of event or time").fill(String(claimed.position));
  await leads(page, () => page.getByRole("button", { name: "Go", exact: true }).click());
  await page.getByText(`as it was after event ${claimed.position}`).waitFor();
  await page.locator(".chip").filter({ hasText: "running" }).waitFor();
  assert.equal(await page.locator('form[method="post"], button.danger').count(), 0);
  await picture(page, "audit-past");
  await leads(page, () => page.getByRole("link", { name: "What changed" }).click());
  await page.getByLabel("From event or time").fill(String(claimed.position));
  await page.getByLabel("to", { exact: true }).fill("");
  await page.locator("#to").evaluate((to) => to.removeAttribute("required"));
  await page.getByRole("button", { name: "Compare" }).click();
  await page.locator("ins").filter({ hasText: "interrupted" }).first().waitFor();
  await close();
});

test("an auditor verifies the log from the page and sees it through", async () => {
  const { page, close } = await open(browser, `${server.url}/sign-in`);
  await as(page, "carol", "auditor");
  await page.goto(`${server.url}/verify`);
  await page.getByRole("button", { name: "Verify now" }).click();
  await page.getByText("everything holds").waitFor();
  await picture(page, "audit-verify");
  await page.goto(`${server.url}/runs/${asked.run_id}`);
  await page.getByRole("heading", { name: "Run timeline" }).waitFor();
  const reads = await server.events("ConversationRead");
  assert.ok(reads.some(({ payload }) => payload.by === "carol" && payload.what === "run_timeline"), "the look is recorded");
  await close();
});

test("a bundle is downloaded, checked and shown, and the log stays as it was", async () => {
  const { page, close } = await open(browser, `${server.url}/history/${asked.conversation_id}`);
  const download = page.waitForEvent("download");
  await page.getByRole("link", { name: "Take it along as a bundle" }).click();
  const file = await (await download).path();
  const before = (await server.api("/api/ledger/events?limit=1")).position;
  await page.goto(`${server.url}/bundles`);
  await page.getByLabel("A bundle of this or another ledger").setInputFiles(file);
  await leads(page, () => page.getByRole("button", { name: "Check and show" }).click());
  await page.getByText("everything holds").waitFor();
  await page.getByText("nothing of it is in this log").waitFor();
  await picture(page, "audit-bundle");
  await leads(page, () => page.getByRole("link", { name: "add 1 and 2, what time is it?" }).click());
  await page.getByText("You look at a bundle").waitFor();
  await page.locator(".lanes svg").first().waitFor();
  await page.locator("details.group").filter({ hasText: "Tool call" }).first().waitFor();
  await assertFits(page, "a run of a bundle");
  assert.deepEqual(await seriousFaults(page), []);
  await picture(page, "audit-bundle-run");
  assert.equal((await server.api("/api/ledger/events?limit=1")).position, before);
  await close();
});

test("what can be copied is copied: the id, the curl line, the JSON", async () => {
  const { page, context, close } = await open(browser, `${server.url}/runs/${asked.run_id}`);
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const copied = () => page.evaluate(() => navigator.clipboard.readText());
  await page.getByRole("button", { name: "Copy", exact: true }).first().click();
  await eventually("the id is copied", copied, (text) => text === asked.run_id);
  await page.getByText("For programs").click();
  await page.locator(".along button.copy").nth(0).click();
  const json = await eventually("JSON is copied", copied, (text) => text.startsWith("["));
  assert.ok(JSON.parse(json).length > 10);
  await page.locator(".along button.copy").nth(1).click();
  await eventually("curl is copied", copied, (text) => text.startsWith("curl -s -H 'X-Dev-User: ann'") && text.includes(asked.run_id));
  await close();
});

test("without scripts the pages are the same documents: filters, groups, time travel, the sheet of shortcuts", async () => {
  const { page, close } = await open(browser, `${server.url}/log`, { javaScriptEnabled: false });
  await page.getByText("Filters").click();
  await page.getByLabel("Type").fill("RunClaimed");
  await leads(page, () => page.getByRole("button", { name: "Show" }).click());
  assert.match(page.url(), /type=RunClaimed/);
  const types = await page.locator("#events .by").allInnerTexts();
  assert.ok(types.length >= 2 && types.every((text) => text.endsWith("RunClaimed")), types.join());
  await page.goto(`${server.url}/runs/${asked.run_id}`);
  const group = page.locator("details.group").first();
  await group.locator("summary").click();
  await group.locator("li.event").first().waitFor();
  await leads(page, () => page.getByRole("link", { name: "One event back" }).click());
  await page.getByText("You see the past").waitFor();
  await leads(page, () => page.getByRole("link", { name: /Keyboard shortcuts/ }).click());
  await page.getByRole("heading", { name: "Keyboard shortcuts" }).waitFor();
  await close();
});

test("every audit page fits 360 and 1600 pixels, light and dark, and axe finds no serious fault", async () => {
  const [turn] = await server.events("TurnPrepared");
  const pages = {
    log: "/log",
    filters: "/log?type=TurnPrepared",
    event: `/log/${turn.position}?proof=1`,
    run: `/runs/${asked.run_id}`,
    events: `/runs/${asked.run_id}?view=events`,
    history: `/history/${asked.conversation_id}?at=${turn.position + 6}`,
    changes: `/history/${asked.conversation_id}/changes?from=${turn.position}`,
    approvals: "/approvals",
    operations: "/operations",
    verify: "/verify",
    bundles: "/bundles",
    shortcuts: "/shortcuts",
    "sign-in": "/sign-in",
    error: "/nothing",
  };
  for (const [width, dark] of [[360, false], [1600, true]]) {
    const { page, close } = await open(browser, `${server.url}/sign-in`, { width, dark });
    await as(page, "ann", "operator");
    for (const [name, path] of Object.entries(pages)) {
      await page.goto(server.url + path);
      await assertFits(page, `${name} at ${width} px`);
      await page.evaluate(() => { for (const details of document.querySelectorAll("details")) details.open = true; });
      await assertFits(page, `${name} at ${width} px, opened`);
      assert.deepEqual(await seriousFaults(page), [], `${name} at ${width} px`);
      await picture(page, `audit-${name}-${width}-${dark ? "dark" : "light"}`, { fullPage: true });
    }
    await close();
  }
});
