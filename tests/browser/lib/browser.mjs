// Debian's Chromium, and pages that are watched: a request to another host, an error of a script, and
// something that the content security policy refused fail the test, whatever it is about.

import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { DEADLINE } from "./wait.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** Where pictures of the pages go; not committed. */
export const pictures = process.env.DEVMIND_SCREENSHOTS ?? join(here, "../../../target/screenshots");

const places = [process.env.DEVMIND_CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/** Debian's Chromium, or the one that DEVMIND_CHROMIUM names. */
export const launch = () =>
  chromium.launch({
    executablePath: places.find((place) => place && existsSync(place)),
    // Tests run as root in containers, whose shared memory is small.
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--force-prefers-reduced-motion"],
  });

/** A window of its own, with nothing remembered. `hosts` (a pattern) may be asked beside the first one that is opened. */
export async function open(browser, url, { width = 1280, height = 900, dark = false, hosts, ...more } = {}) {
  const context = await browser.newContext({
    viewport: { width, height },
    colorScheme: dark ? "dark" : "light",
    ...more,
  });
  context.setDefaultTimeout(DEADLINE);
  const isAllowed = (host) => host === new URL(url).host || hosts?.test(host);
  const wrong = [];
  context.on("request", (request) => {
    const { protocol, host } = new URL(request.url());
    if (!["data:", "blob:", "about:"].includes(protocol) && !isAllowed(host)) wrong.push(`asked ${request.url()}`);
  });
  context.on("weberror", (error) => wrong.push(`a script failed: ${error.error().stack}`));
  context.on("console", (message) => {
    // What the server refuses, or does not answer while it is down, is an "error" of the console, too.
    const isNetwork = /Failed to load resource|ERR_|net::/.test(message.text());
    if (message.type() === "error" && !isNetwork) wrong.push(`the console says ${message.text()}`);
  });
  const window = {
    context,
    wrong,
    /** Another tab of the same window. */
    async tab(at = url) {
      const page = await context.newPage();
      await page.goto(at);
      return page;
    },
    /** Fails when anything went wrong that a test did not look for. */
    async close() {
      await context.close();
      assert.deepEqual(wrong, []);
    },
  };
  window.page = await window.tab();
  return window;
}

/**
 * Does what leads to another page, and waits until that page is there, its scripts too. A click alone may be over before
 * the browser has set out: what is looked at or pressed next would meet the old page, and a reload would take the place of
 * the form that was on its way.
 */
export const leads = (page, act) => Promise.all([page.waitForEvent("load"), act()]);

/** What axe-core finds that is serious or critical. */
export async function seriousFaults(page) {
  // Evaluated by the debugger: the page's own policy stays as it is.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const told = (node) => `${node.target.join(" ")}: ${node.failureSummary}`;
  return violations
    .filter(({ impact }) => ["serious", "critical"].includes(impact))
    .map(({ id, nodes }) => `${id}: ${nodes.map(told).join("; ")}`);
}

/** Fails when the page is wider than its window. */
export async function assertFits(page, what) {
  const wide = await page.evaluate(() => {
    const limit = document.documentElement.clientWidth;
    const tooWide = (element) => element.getBoundingClientRect().right > limit + 1;
    const told = (element) => `${element.tagName}.${element.className} ${element.textContent.trim().slice(0, 40)}`;
    const scrolls = document.documentElement.scrollWidth > limit;
    return scrolls ? [...document.querySelectorAll("body *")].filter(tooWide).map(told) : [];
  });
  assert.deepEqual(wide, [], `${what} scrolls sideways`);
}

/** Takes a picture of the page. */
export async function picture(page, name, options = {}) {
  mkdirSync(pictures, { recursive: true });
  await page.screenshot({ path: join(pictures, `${name}.png`), ...options });
}
