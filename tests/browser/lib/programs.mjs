// The built programs in processes of their own, over temporary folders: started, read, killed, stopped in
// order. A server that is finished is judged as in the other tests: it stopped with success, its log
// verifies, and its views equal what the log gives.

import { spawn } from "node:child_process";
import { randomInt } from "node:crypto";
import { mkdtempSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { eventually } from "./wait.mjs";

const here = dirname(fileURLToPath(import.meta.url));
/** Where cargo puts the programs; the integration tests say it, by hand it is the debug build. */
const programs = process.env.DEVMIND_PROGRAMS ?? join(here, "../../../target/debug");

/** The database of the file's one server, where the suite runs on PostgreSQL. */
const database = process.env.DEVMIND_BROWSER_DATABASE;
const stored = database ? { DATABASE_URL: database } : {};

/** A folder that goes when the process ends. */
export function folder(name = "devmind") {
  const made = mkdtempSync(join(tmpdir(), `${name}-`));
  process.on("exit", () => rmSync(made, { recursive: true, force: true }));
  return made;
}

/** A workspace with a README.md, and other files by name. */
export function workspace(files = {}) {
  const made = folder("workspace");
  for (const [name, text] of Object.entries({ "README.md": "# A project\n\nHello from the workspace.\n", ...files })) {
    mkdirSync(dirname(join(made, name)), { recursive: true });
    writeFileSync(join(made, name), text);
  }
  return made;
}

/** The environment without this process's own settings of ours. */
function environment(more) {
  const own = Object.entries(process.env).filter(
    ([name]) => !/^(DEVMIND_|MODEL_)/.test(name) && !["RUST_LOG", "DATABASE_URL"].includes(name),
  );
  return { ...Object.fromEntries(own), NO_COLOR: "1", XDG_CONFIG_HOME: folder("config"), ...more };
}

/** An address that nobody listens on, and that systems give to nobody by themselves while its server is down. */
async function ownAddress() {
  for (;;) {
    const port = randomInt(10_000, 32_000);
    const isFree = await new Promise((told) => {
      const probe = createServer().once("error", () => told(false));
      probe.listen(port, "127.0.0.1", () => probe.close(() => told(true)));
    });
    if (isFree) return `127.0.0.1:${port}`;
  }
}

class Program {
  constructor(name, args, env = {}, cwd = folder()) {
    this.name = name;
    this.said = "";
    this.child = spawn(join(programs, name), args, { cwd, env: environment(env), stdio: ["ignore", "pipe", "pipe"] });
    process.on("exit", () => this.child.kill("SIGKILL"));
    this.ended = new Promise((done) => this.child.on("close", (code, signal) => done({ code, signal })));
    for (const out of [this.child.stdout, this.child.stderr]) {
      out.setEncoding("utf8").on("data", (text) => (this.said += text));
    }
  }

  /** Waits for words on stdout or stderr; what they captured. */
  line(words) {
    return eventually(`${this.name} says ${words}`, () => {
      const found = this.said.match(words);
      if (!found && this.child.exitCode !== null) throw new Error(`${this.name} ended: ${this.said}`);
      return found ?? this.said;
    }, (found) => typeof found === "object");
  }

  async kill() {
    this.child.kill("SIGKILL");
    await this.ended;
    this.mustNotPanic();
  }

  async stop() {
    this.child.kill("SIGTERM");
    const { code } = await this.ended;
    this.mustNotPanic();
    if (code !== 0) throw new Error(`${this.name} ended with ${code}: ${this.said}`);
  }

  mustNotPanic() {
    if (this.said.includes("panicked at")) throw new Error(`${this.name} panicked: ${this.said}`);
  }
}

/** A server, by default with the demo model and for everybody on this computer. */
export class Server {
  static async start({ env = {}, args = [], data = folder("data"), listen } = {}) {
    const server = new Server();
    listen ??= await ownAddress();
    Object.assign(server, { env, args, data });
    server.program = new Program("devmind", ["--listen", listen, "--data", data, "--node-id", "browser", ...args], { ...stored, ...env });
    [, server.address] = await server.program.line(/listening on http:\/\/(\S+)\s/);
    server.url = `http://${server.address}`;
    return server;
  }

  kill() {
    return this.program.kill();
  }

  /** Starts again over the same files at the same address. */
  async again() {
    const { env, args, data, address: listen } = this;
    return Object.assign(this, await Server.start({ env, args, data, listen }));
  }

  /** Asks the JSON API as a user. */
  async api(path, { user = "ann", method = "GET", body } = {}) {
    const headers = { "x-dev-user": user, "content-type": "application/json" };
    const reply = await fetch(this.url + path, { method, headers, body: body && JSON.stringify(body) });
    const text = await reply.text();
    if (!reply.ok) throw new Error(`${method} ${path}: ${reply.status} ${text}`);
    return JSON.parse(text);
  }

  /** Asks a question without a page; `ended` is its stream's text, once the run is over. */
  async ask(content, { user = "ann", device, conversation } = {}) {
    const body = { content, idempotency_key: crypto.randomUUID(), device_id: device?.id, conversation_id: conversation };
    const asked = await this.api("/api/turns", { user, method: "POST", body });
    const input = {
      threadId: asked.conversation_id,
      runId: asked.run_id,
      messages: [{ id: asked.user_message_id, role: "user", content: "" }],
    };
    const headers = { "x-dev-user": user, "content-type": "application/json" };
    const stream = await fetch(`${this.url}/api/agent`, { method: "POST", headers, body: JSON.stringify(input) });
    return { ...asked, ended: stream.text() };
  }

  /** What the log has, of one type. */
  async events(type) {
    return (await this.api(`/api/ledger/events?limit=1000&type=${type}`)).events;
  }

  async finish() {
    await eventually("the views catch up", async () => (await fetch(`${this.url}/readyz`)).status, (is) => is === 200);
    await this.program.stop();
    for (const check of [["verify"], ["rebuild", "--check"]]) {
      const replay = new Program("devmind-replay", [...(database ? [] : ["--data", this.data]), ...check], stored);
      const { code } = await replay.ended;
      if (code !== 0) throw new Error(`devmind-replay ${check.join(" ")} ended with ${code}: ${replay.said}`);
    }
  }
}

/** A device program that asks on its page; `link` opens it. */
export class Device {
  static async start(server, { user = "ann", files = workspace(), confirm = "page", state = folder("state") } = {}) {
    const device = new Device();
    const args = ["--server", server.url, "--user", user, "--workspace", files, "--state", join(state, "device")];
    device.program = new Program("devmind-device", [...args, "--confirm", confirm]);
    Object.assign(device, { user, files, state });
    [, device.id] = await device.program.line(/device (\S+), workspace/);
    await device.program.line(/connected as/);
    await eventually(
      "the server shows the device",
      () => server.api("/api/devices", { user }),
      (devices) => devices.some((own) => own.device_id === device.id && own.online),
    );
    return device;
  }

  get link() {
    return readFileSync(join(this.state, "device/page-link"), "utf8").trim();
  }

  kill() {
    return this.program.kill();
  }

  stop() {
    return this.program.stop();
  }
}
