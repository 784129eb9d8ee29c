// The program's surroundings. What it needs of the built-ins is taken before the program can change them.
(source, call, print) => {
  const { parse, stringify } = JSON;
  const text = String;
  const AsyncFunction = (async () => {}).constructor;
  const tool = (name) => (parameters = {}) => {
    const answer = parse(call(name, stringify(parameters) ?? "null"));
    if ("value" in answer) return answer.value;
    const error = new Error(answer.error.message);
    error.code = answer.error.code;
    throw error;
  };
  // `then` would make an awaited `tools` look like a promise.
  const get = (_, name) => (typeof name === "symbol" || name === "then" ? undefined : tool(name));
  globalThis.tools = new Proxy(Object.freeze({}), { get });
  const shown = (value) => (typeof value === "string" ? value : stringify(value) ?? text(value));
  const log = (...values) => print(values.map(shown).join(" "));
  globalThis.console = { log, info: log, warn: log, error: log };
  return new AsyncFunction(source)().then((value) => stringify(value) ?? "null");
}
