// A model's endpoint on the loopback address, in OpenAI's dialect, that says what a test tells it, when the
// test tells it.

import { createServer } from "node:http";

/** Replies are used up in order; after the last one it says "done". A reply is a function of what writes it. */
export class Model {
  static async start(...replies) {
    const model = new Model();
    model.replies = replies;
    model.asked = [];
    model.server = createServer(async (request, response) => {
      let body = "";
      for await (const piece of request.setEncoding("utf8")) body += piece;
      model.asked.push(JSON.parse(body));
      response.writeHead(200, { "content-type": "text/event-stream" });
      const reply = model.replies.shift() ?? say("done");
      await reply(new Answer(response));
    });
    await new Promise((done) => model.server.listen(0, "127.0.0.1", done));
    // Nothing of it keeps the test's process alive.
    model.server.unref();
    return model;
  }

  /** What a server is told of it. */
  get env() {
    const url = `http://127.0.0.1:${this.server.address().port}/v1`;
    return { MODEL_BASE_URL: url, MODEL_NAME: "scripted", MODEL_API_KEY: "a-key-of-the-tests" };
  }

  willReply(...replies) {
    this.replies.push(...replies);
  }

  stop() {
    this.server.closeAllConnections();
    this.server.close();
  }
}

class Answer {
  constructor(response) {
    this.response = response;
  }

  chunk(delta, finish_reason = null) {
    const chunk = { id: "a", object: "chat.completion.chunk", created: 1, model: "scripted" };
    this.response.write(`data: ${JSON.stringify({ ...chunk, choices: [{ index: 0, delta, finish_reason }] })}\n\n`);
  }

  text(content) {
    this.chunk({ role: "assistant", content });
  }

  call(name, args, index = 0) {
    const call = { index, id: `call_${name}_${index}`, type: "function" };
    this.chunk({ tool_calls: [{ ...call, function: { name, arguments: JSON.stringify(args) } }] });
  }

  /** Loses the connection, after what was said has left. */
  cut() {
    this.response.write(":\n\n", () => this.response.destroy());
  }

  end(reason = "stop") {
    this.chunk({}, reason);
    this.response.end("data: [DONE]\n\n");
  }
}

/** A whole answer. */
export const say = (text) => (answer) => {
  answer.text(text);
  answer.end();
};

/** Calls of tools: [name, arguments] each. */
export const call = (...calls) => (answer) => {
  calls.forEach(([name, args], index) => answer.call(name, args, index));
  answer.end("tool_calls");
};

/** Says the first part, and each further one when `next()` is called; `next()` after the last ends it. */
export function stepwise(...parts) {
  const steps = [];
  const opened = parts.map(() => new Promise((open) => steps.push(open)));
  const reply = async (answer) => {
    for (const [at, part] of parts.entries()) {
      answer.text(part);
      await opened[at];
    }
    answer.end();
  };
  reply.next = () => steps.shift()?.();
  return reply;
}
