// What of a file failed, and nothing else: of a long log only the end may be kept, and there it must stand.

import { basename } from "node:path";

/** The longest account of one failure (lines, characters of each). */
const [LINES, WIDTH] = [25, 300];

const short = (text) => text.trimEnd().split("\n").slice(0, LINES).map((line) => `    ${line.slice(0, WIDTH)}\n`).join("");

/** Where in the file's own code it failed. */
const place = (error, file) => {
  const own = error?.stack?.split("\n").find((line) => line.includes(basename(file)));
  return own ? `    ${own.trim()}\n` : "";
};

/** A reporter of `node --test`: each failure, what the file said on stderr where it failed as a whole, how many passed. */
export default async function* failures(events) {
  let passed = 0;
  let begun = "nothing";
  let said = "";
  for await (const { type, data } of events) {
    const isFile = data.name === data.file;
    if (type === "test:stderr") said += data.message;
    if (type === "test:dequeue" && !isFile) begun = data.name;
    if (type === "test:pass" && !isFile && data.skip === undefined) passed += 1;
    // Begins the sums at the end; the stream itself may not be read to its end.
    if (type === "test:diagnostic" && data.message.startsWith("tests ")) yield `passed: ${passed}\n`;
    if (type !== "test:fail") continue;
    const { error } = data.details;
    // That a test within it failed is told by that one.
    if (error?.failureType === "subtestsFailed") continue;
    const cause = error?.cause ?? error;
    yield `FAILED: ${isFile ? `${basename(data.file)}, at "${begun}"` : data.name}\n${short(String(cause?.message ?? cause))}`;
    yield isFile ? short(said) : place(cause, data.file);
  }
}
