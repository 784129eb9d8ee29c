// Waiting for facts: nothing here lets time pass.

import { setTimeout as pause } from "node:timers/promises";

/** A fact that has not come by then will not come (milliseconds). */
export const DEADLINE = Number(process.env.DEVMIND_BROWSER_DEADLINE ?? 60_000);

/** Looks until what is seen is enough; answers it, or fails with what was seen last. */
export async function eventually(what, look, isEnough = Boolean) {
  const deadline = Date.now() + DEADLINE;
  for (;;) {
    const seen = await look();
    if (isEnough(seen)) return seen;
    if (Date.now() > deadline) throw new Error(`${what}: not within ${DEADLINE} ms; seen: ${JSON.stringify(seen)}`);
    await pause(20);
  }
}
