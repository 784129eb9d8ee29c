// A workflow with one step, which lists a folder: `POST /list` with a path as JSON runs it to its end and answers the
// names. The settings are DBOS's own; PORT and DBOS_SYSTEM_DATABASE_URL say where.
import { DBOS } from "@dbos-inc/dbos-sdk";
import { readdir } from "node:fs/promises";
import { createServer } from "node:http";
import { json } from "node:stream/consumers";

const list = DBOS.registerWorkflow((path) => DBOS.runStep(() => readdir(path), { name: "list" }), { name: "list" });

DBOS.setConfig({ name: "dbos-peer", systemDatabaseUrl: process.env.DBOS_SYSTEM_DATABASE_URL });
await DBOS.launch();

createServer(async (request, response) => {
  try {
    const names = await list(await json(request));
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(names));
  } catch (error) {
    response.writeHead(500).end(String(error));
  }
}).listen(Number(process.env.PORT), "127.0.0.1");
