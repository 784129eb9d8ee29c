// The chat, as its users go through it. The model says what a test tells it, when the test tells it.

import assert from "node:assert/strict";
import { basename } from "node:path";
import { after, before, test } from "node:test";
import { assertFits, launch, leads, open, picture, seriousFaults } from "./lib/browser.mjs";
import { call, Model, say, stepwise } from "./lib/model.mjs";
import { Device, Server, workspace } from "./lib/programs.mjs";
import { eventually } from "./lib/wait.mjs";

let browser;
let model;
let server;

before(async () => {
  browser = await launch();
  model = await Model.start();
  server = await Server.start({ env: { ...model.env, USER: "ann" } });
});

after(async () => {
  await browser?.close();
  await server?.finish();
  model?.stop();
});

/** The chat in a window of its own. */
async function chat(path = "/", options) {
  const window = await open(browser, server.url + path, options);
  return Object.assign(window, { turn: (number) => turn(window.page, number) });
}

const turn = (page, number) => page.locator(`#turn-${number}`);

async function ask(page, question) {
  const field = page.getByLabel("Your question");
  await field.fill(question);
  await page.getByRole("button", { name: "Send", disabled: false }).waitFor();
  await field.press("Enter");
}

/** Waits until a turn stands so. */
const stands = (page, number, words) => turn(page, number).locator(".ending .chip").filter({ hasText: words }).waitFor();

const answerOf = (page, number) => turn(page, number).locator(".markdown").innerText();

const conversationOf = (page) => decodeURIComponent(new URL(page.url()).pathname.split("/").pop());

test("a first question makes a conversation, its answer streams as Markdown, and all of it is there after a reload", async () => {
  const answer = stepwise("# Birds\n\nThere are **two**:\n\n", "- a robin\n", "- a wren\n\n| bird | size |\n|-|-|\n| wren | small |\n");
  model.willReply(answer);
  const { page, turn, close } = await chat();
  await ask(page, "Which birds are there?");
  await page.waitForURL("**/conversations/*");
  await turn(1).getByText("Which birds are there?").waitFor();
  await turn(1).locator("strong").filter({ hasText: "two" }).waitFor();
  await stands(page, 1, "running");
  await page.getByRole("complementary").getByText("running").first().waitFor();
  answer.next();
  await turn(1).getByRole("listitem").filter({ hasText: "a robin" }).waitFor();
  answer.next();
  answer.next();
  await stands(page, 1, "answered");
  await turn(1).getByRole("cell", { name: "wren" }).waitFor();
  const shown = await turn(1).innerHTML();
  await page.reload();
  assert.equal(withoutKeys(await turn(1).innerHTML()), withoutKeys(shown), "the page is what the stream made of it");
  model.willReply(say("You asked about birds."));
  await ask(page, "What did I ask?");
  await stands(page, 2, "answered");
  assert.match(JSON.stringify(model.asked.at(-1).messages), /Which birds are there/);
  await picture(page, "chat");
  await close();
});

/** What stands in it for scripts alone differs: their keys, and moments in the reader's time zone. */
const withoutKeys = (html) => html.replace(/name="key" value="[^"]*"/g, "").replace(/<time[^>]*>[^<]*<\/time>/g, "").replace(/ aria-busy="[^"]*"/g, "");

test("several conversations run at once, one switches between them while they run, and a fifth is told to wait", async () => {
  const answers = Array.from({ length: 4 }, (_, at) => stepwise(`begun ${at} `, `and done ${at}`));
  model.willReply(...answers);
  const { page, close } = await chat();
  const places = [];
  for (const at of answers.keys()) {
    await page.goto(server.url);
    await ask(page, `Question of conversation ${at}`);
    await page.waitForURL("**/conversations/*");
    await turn(page, 1).getByText(`begun ${at}`).waitFor();
    places.push(page.url());
  }
  const list = page.getByRole("complementary");
  await list.getByText("4 of at most 4 running").waitFor();
  await picture(page, "chat-running");
  await page.goto(server.url);
  await ask(page, "One too many");
  await page.getByRole("alert").filter({ hasText: "wait until one of them ends, or stop one" }).waitFor();
  assert.equal(await page.getByLabel("Your question").inputValue(), "One too many", "nothing that was written is lost");
  await page.getByLabel("Your question").fill("");
  for (const at of [2, 0]) {
    await list.getByRole("link", { name: `Question of conversation ${at}` }).click();
    await page.waitForURL(places[at]);
    await turn(page, 1).getByText(`begun ${at}`).waitFor();
  }
  // One is stopped, the others go on.
  await turn(page, 1).getByRole("button", { name: "Stop" }).click();
  await stands(page, 1, "stopped");
  for (const at of [1, 2, 3]) {
    answers[at].next();
    answers[at].next();
    await page.goto(places[at]);
    await stands(page, 1, "answered");
    assert.equal(await answerOf(page, 1), `begun ${at} and done ${at}`);
  }
  await page.goto(places[0]);
  assert.equal((await answerOf(page, 1)).trim(), "begun 0");
  await close();
});

test("an answer that was stopped keeps what had come, and can be continued, retried and edited", async () => {
  model.willReply(stepwise("one two three", " four"));
  const { page, turn, close } = await chat();
  await ask(page, "Count to twenty");
  await turn(1).getByText("one two three").waitFor();
  await turn(1).getByRole("button", { name: "Stop" }).click();
  await stands(page, 1, "stopped");
  assert.equal(await answerOf(page, 1), "one two three");
  model.willReply(say("four five six"));
  await turn(1).getByRole("button", { name: "Continue" }).click();
  await stands(page, 2, "answered");
  assert.match(JSON.stringify(model.asked.at(-1).messages), /one two three/);
  assert.equal(await turn(1).getByRole("button", { name: "Retry" }).count(), 0, "only the latest turn can be asked again");
  model.willReply(say("seven"));
  await turn(2).getByRole("button", { name: "Retry" }).click();
  await turn(2).getByText("seven").waitFor();
  await stands(page, 2, "answered");
  model.willReply(say("ten nine"));
  await turn(2).getByText("Edit", { exact: true }).click();
  await turn(2).getByLabel("The question").fill("Count down from ten");
  await turn(2).getByRole("button", { name: "Save and run again" }).click();
  await turn(2).getByText("ten nine").waitFor();
  await stands(page, 2, "answered");
  assert.equal(await turn(2).locator(".question .text").innerText(), "Count down from ten");
  assert.equal(await page.locator(".turn").count(), 2);
  await close();
});

test("an approval shows arguments, deadline and scope; a denied call does not run, an allowed one goes on in the same turn", async () => {
  const { page, turn, close } = await chat();
  model.willReply(call(["demo_text", {}]), say("The person said no."));
  await ask(page, "Show me the demo text");
  await stands(page, 1, "waiting for your approval");
  const card = turn(1).locator(".approval");
  for (const words of ["once, with exactly these arguments, and nothing else", "Without an answer by"]) {
    await card.getByText(words).waitFor();
  }
  await card.locator("pre").waitFor();
  await page.getByText("Answer the approval first").waitFor();
  assert.ok(await page.getByRole("button", { name: "Send" }).isDisabled());
  await picture(page, "chat-approval");
  await page.reload();
  await turn(1).getByRole("button", { name: "Deny" }).click();
  await stands(page, 1, "answered");
  await turn(1).locator(".call").getByText("refused, did not run").waitFor();
  model.willReply(call(["demo_text", {}]), say("Here it is."));
  await ask(page, "Please show it");
  await turn(2).getByRole("button", { name: "Allow once" }).click();
  await turn(2).locator(".call").getByText("done").waitFor();
  await turn(2).getByText("Here it is.").waitFor();
  await turn(2).locator(".call summary").click();
  await turn(2).locator(".call").getByRole("heading", { name: "What it gave" }).waitFor();
  assert.equal(await page.locator(".turn").count(), 2);
  await close();
});

test("what is allowed for the conversation is not asked again there, is listed, and asked about once it is taken back", async () => {
  const { page, turn, close } = await chat();
  model.willReply(call(["demo_text", {}]), say("Allowed from now on."));
  await ask(page, "Show the text, and again later");
  await stands(page, 1, "waiting for your approval");
  await turn(1).locator(".grant summary").click();
  const scope = turn(1).getByLabel("Without asking again");
  assert.deepEqual(await scope.locator("option").allTextContents(), ["demo_text, every call"], "the exact scope, and no wider one");
  await picture(page, "chat-grant");
  await turn(1).getByRole("button", { name: "Allow for this conversation" }).click();
  await turn(1).getByText("Allowed from now on.").waitFor();
  model.willReply(call(["demo_text", {}]), say("Not asked."));
  await ask(page, "Again");
  await turn(2).getByText("Not asked.").waitFor();
  assert.equal(await turn(2).locator(".approval").count(), 0);
  const place = page.url();
  await leads(page, () => turn(2).getByRole("link", { name: /What happened/ }).click());
  await page.locator("details.group").filter({ hasText: "Tool call" }).locator("summary").first().click();
  await page.locator("li.event").filter({ hasText: "by grant" }).first().waitFor();
  await page.goto(`${server.url}/approvals`);
  const listed = page.getByRole("listitem").filter({ hasText: "demo_text" }).filter({ hasText: "every call" });
  await listed.first().waitFor();
  await picture(page, "approvals-grants");
  assert.deepEqual(await seriousFaults(page), []);
  await listed.getByRole("button", { name: "Take back" }).first().click();
  await page.getByText("each call that needs a person is asked about").waitFor();
  await page.goto(place);
  model.willReply(call(["demo_text", {}]));
  await ask(page, "And again");
  await stands(page, 3, "waiting for your approval");
  await close();
});

test("an edit while an approval waits takes the approval back", async () => {
  const { page, turn, close } = await chat();
  model.willReply(call(["demo_text", {}]), say("Hello."));
  await ask(page, "Show the text");
  await stands(page, 1, "waiting for your approval");
  await turn(1).getByText("Edit", { exact: true }).click();
  await turn(1).getByLabel("The question").fill("Say hello");
  await turn(1).getByRole("button", { name: "Save and run again" }).click();
  await turn(1).getByText("Hello.").waitFor();
  assert.equal(await turn(1).locator(".approval").count(), 0);
  await close();
});

test("a model that fails says what to do, and retry asks it again", async () => {
  const { page, turn, close } = await chat();
  model.willReply((answer) => {
    answer.text("half");
    answer.cut();
  });
  await ask(page, "Fail, please");
  await stands(page, 1, "failed");
  await turn(1).getByText("MODEL_STREAM_CUT").waitFor();
  model.willReply(say("whole"));
  await turn(1).getByRole("button", { name: "Retry" }).click();
  await stands(page, 1, "answered");
  assert.equal(await answerOf(page, 1), "whole");
  await close();
});

test("two tabs agree: what is asked, answered, approved and renamed in one is in the other", async () => {
  const { page, tab, close } = await chat();
  model.willReply(call(["demo_text", {}]), say("Done in both."));
  await ask(page, "Do it in both");
  await stands(page, 1, "waiting for your approval");
  const other = await tab(page.url());
  await turn(other, 1).getByRole("button", { name: "Allow once" }).click();
  for (const one of [page, other]) {
    await turn(one, 1).getByText("Done in both.").waitFor();
    await stands(one, 1, "answered");
  }
  assert.equal(await answerOf(page, 1), await answerOf(other, 1));
  await other.getByText("Rename or delete").click();
  await other.getByLabel("Title").fill("Another name");
  await other.getByRole("button", { name: "Rename" }).click();
  await page.getByRole("heading", { name: "Another name" }).waitFor();
  await page.getByRole("complementary").getByText("Another name").waitFor();
  await close();
});

test("a server that is killed in the midst of a stream comes back, and the page has no gap and no repetition", async () => {
  const words = Array.from({ length: 40 }, (_, at) => `word${at} `);
  const answer = stepwise(...words);
  model.willReply(answer);
  const { page, turn, close } = await chat();
  await ask(page, "Say forty words");
  for (let at = 0; at < 10; at++) answer.next();
  await turn(1).getByText("word5").waitFor();
  await server.kill();
  await page.getByText("The connection to the server is lost").waitFor();
  await server.again();
  await stands(page, 1, "failed");
  await page.getByText("The connection to the server is lost").waitFor({ state: "hidden" });
  const shown = (await answerOf(page, 1)).trim();
  const [own] = await server.api(`/api/turns?conversation_id=${conversationOf(page)}`);
  assert.equal(shown, own.answer.trim(), "what is shown is what the log has");
  assert.equal(shown, words.slice(0, shown.split(" ").length).join("").trim(), "each word once, in order");
  assert.equal(await page.locator(".turn").count(), 1);
  await turn(1).getByText("SERVER_RESTARTED").waitFor();
  model.willReply(say("all of it"));
  await turn(1).getByRole("button", { name: "Retry" }).click();
  await turn(1).getByText("all of it").waitFor();
  await close();
});

test("a hostile answer does no harm: script, huge line, characters that turn the text, a million characters", async () => {
  const hostile = [
    "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">",
    "[click](javascript:document.title='taken') ![p](http://evil.example/p.png)",
    "a\u202egpj.exe \u2066x",
    `${"x".repeat(20_000)}`,
    "> ".repeat(3_000),
    "# a heading\n\n```html\n<b>bold</b>\n```",
    "y".repeat(1_000_000),
  ].join("\n\n");
  model.willReply(say(hostile), say("fine"));
  const { page, turn, close } = await chat("/", { width: 360 });
  await ask(page, "Be hostile");
  await stands(page, 1, "answered");
  const answer = turn(1).locator(".answer");
  await answer.getByText("<script>").waitFor();
  await answer.getByText("U+202E").waitFor();
  for (const found of ["script", "img", "iframe", "b", "[onerror]", "[style]", "a[href^=javascript]"]) {
    assert.equal(await answer.locator(found).count(), 0, found);
  }
  await answer.getByText("Cut after").waitFor();
  assert.notEqual(await page.title(), "taken");
  await assertFits(page, "the hostile answer");
  const whole = await (await page.request.get(new URL(await answer.getByRole("link", { name: "Read all of it" }).getAttribute("href"), server.url).href)).text();
  assert.ok(whole.length > 1_000_000);
  await ask(page, "<b>me</b> \u202e too");
  await stands(page, 2, "answered");
  assert.equal(await turn(2).locator(".question b").count(), 0);
  await turn(2).locator(".question").getByText("U+202E").waitFor();
  await close();
});

test("the keyboard alone asks, reaches every button, approves and stops", async () => {
  const { page, turn, close } = await chat();
  const tabTo = async (locator) => {
    await locator.waitFor();
    for (let at = 0; at < 80; at++) {
      if (await locator.evaluate((element) => element === document.activeElement)) return;
      await page.keyboard.press("Tab");
    }
    assert.fail(`the keyboard does not reach ${locator}`);
  };
  model.willReply(call(["demo_text", {}]), stepwise("going on", "and on"));
  await tabTo(page.getByLabel("Your question"));
  await page.keyboard.type("Only keys");
  await page.keyboard.press("Enter");
  await tabTo(turn(1).getByRole("button", { name: "Allow once" }));
  await page.keyboard.press("Enter");
  await turn(1).getByText("going on").waitFor();
  await tabTo(turn(1).getByRole("button", { name: "Stop" }));
  await page.keyboard.press("Enter");
  await stands(page, 1, "stopped");
  await tabTo(page.getByRole("complementary").getByRole("link", { name: "New conversation" }));
  await page.keyboard.press("Enter");
  await page.waitForURL(`${server.url}/`);
  await close();
});

test("what is being written survives news, a reload and another conversation", async () => {
  const { page, tab, close } = await chat();
  model.willReply(say("first"));
  await ask(page, "One");
  await stands(page, 1, "answered");
  const other = await tab(page.url());
  const field = page.getByLabel("Your question");
  await field.fill("half a thou");
  model.willReply(say("second"));
  await ask(other, "Two");
  await stands(page, 2, "answered");
  assert.equal(await field.inputValue(), "half a thou");
  await page.goto(server.url);
  await page.goBack();
  await page.reload();
  assert.equal(await field.inputValue(), "half a thou");
  await close();
});

test("without scripts the chat works as documents and forms", async () => {
  const { page, turn, close } = await chat("/", { javaScriptEnabled: false });
  model.willReply(call(["demo_text", {}]), say("It works."));
  await page.getByLabel("Your question").fill("Without scripts");
  await leads(page, () => page.getByRole("button", { name: "Send" }).click());
  assert.match(page.url(), /\/conversations\/[^/]+$/);
  const reloaded = async (words) => {
    await page.reload();
    return (await turn(1).innerText()).includes(words);
  };
  await eventually("it waits for the approval", () => reloaded("waiting for your approval"));
  await leads(page, () => turn(1).getByRole("button", { name: "Allow once" }).click());
  await eventually("it is answered", () => reloaded("It works."));
  await close();
});

test("the chat has no serious fault for assistive technology, light and dark, and fits 360 and 1600 pixels", async () => {
  model.willReply(say("## A heading\n\nText with `code`, a [link](https://example.org) and\n\n1. a list\n2. of two\n"), call(["demo_text", {}]));
  const { page, close } = await chat();
  await ask(page, "Everything at once");
  await stands(page, 1, "answered");
  await ask(page, "And an approval, which waits");
  await stands(page, 2, "waiting for your approval");
  const place = page.url();
  await close();
  for (const dark of [false, true]) {
    for (const width of [360, 1600]) {
      for (const [name, path] of [["new", "/"], ["conversation", new URL(place).pathname]]) {
        const look = `chat-${name}-${width}${dark ? "-dark" : ""}`;
        const { page, close } = await chat(path, { width, dark });
        await assertFits(page, look);
        assert.deepEqual(await seriousFaults(page), [], look);
        await picture(page, look);
        await close();
      }
    }
  }
});

test("a question that was prepared and never started can be started from the page", async () => {
  const body = { content: "Prepared and cut off", idempotency_key: crypto.randomUUID() };
  const asked = await server.api("/api/turns", { method: "POST", body });
  const { page, turn, close } = await chat(`/conversations/${asked.conversation_id}`);
  await stands(page, 1, "waiting to start");
  model.willReply(say("Started after all."));
  await turn(1).getByRole("button", { name: "Start now" }).click();
  await turn(1).getByText("Started after all.").waitFor();
  await close();
});

test("a seventh window that follows says why it does not, and goes on when another is closed", async () => {
  const windows = [];
  for (let at = 0; at < 6; at++) {
    const window = await chat();
    await eventually("it follows", () => window.page.evaluate(() => document.getElementById("chat").dataset.follows));
    windows.push(window);
  }
  const { page, close } = await chat();
  await page.getByText("close one, and this one goes on").waitFor();
  await windows.pop().close();
  await page.getByText("close one, and this one goes on").waitFor({ state: "hidden" });
  for (const window of windows) await window.close();
  await close();
});

test("a conversation that is deleted leaves the lists, and its page says that it is gone", async () => {
  const { page, tab, close } = await chat();
  model.willReply(say("soon gone"));
  await ask(page, "To be deleted");
  await stands(page, 1, "answered");
  const place = page.url();
  const other = await tab(place);
  await page.getByText("Rename or delete").click();
  await page.getByRole("button", { name: "Delete this conversation" }).click();
  await page.waitForURL(`${server.url}/`);
  assert.equal(await page.getByRole("complementary").getByText("To be deleted").count(), 0);
  await other.getByText("CONVERSATION_NOT_FOUND").waitFor();
  await close();
});

test("the line about local tools says connected, and when they are not, why and what to do", async () => {
  const { page, close } = await chat();
  const line = page.locator("#chat-device");
  await line.getByText("no device of ann has connected").waitFor();
  const device = await Device.start(server, { files: workspace(), confirm: "deny" });
  await line.getByText("Local tools: connected").waitFor();
  await line.getByText(basename(device.files)).waitFor();
  await page.getByLabel("Tools of").getByRole("option", { name: basename(device.files) }).waitFor({ state: "attached" });
  assert.ok(!(await page.content()).includes(device.files), "the workspace's name is told, not where it is");
  await device.stop();
  await line.getByText("not connected").first().waitFor();
  await line.getByText("Start it again with").waitFor();
  await close();
});
