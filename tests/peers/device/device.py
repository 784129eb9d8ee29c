"""A device of another hand: the device channel spoken with a stock WebSocket library.

    python device.py http://127.0.0.1:8787

registers, syncs its tools, is called, answers, and then breaks the rules one by one. Every line on stdout is
`ok` and what was seen to hold; the first thing that does not hold ends it with an AssertionError.
"""

import asyncio, hashlib, json, sys, urllib.request, uuid
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

BASE = sys.argv[1].rstrip("/")
READ_FILE = {"name": "workspace.read_file", "version": "1", "risk": "MEDIUM", "schema": {}, "timeout_ms": 10_000,
             "requires_confirmation": True}


def post(user, path, body):
    headers = {"X-Dev-User": user, "Content-Type": "application/json"}
    request = urllib.request.Request(BASE + path, json.dumps(body).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        return json.load(answer)


class Device:
    """One device of one user; each socket counts its own frames."""

    def __init__(self, user):
        self.user, self.id, self.journal, self.ws = user, str(uuid.uuid4()), str(uuid.uuid4()), None

    def ticket(self):
        return post(self.user, "/api/desktop/connection-ticket", {"device_id": self.id})["ticket"]

    async def open(self, ticket=None, **options):
        ticket = ticket or await asyncio.to_thread(self.ticket)
        options.setdefault("additional_headers", {"Authorization": f"Bearer {ticket}"})
        self.ws = await connect(BASE.replace("http", "ws", 1) + "/api/desktop/ws", proxy=None, **options)
        self.sequence = 0

    async def send(self, kind, **fields):
        self.sequence += 1
        frame = {"type": kind, "event_id": str(uuid.uuid4()), "sequence": self.sequence} | fields
        await self.ws.send(json.dumps(frame))

    async def register(self, **changed):
        fields = {"device_id": self.id, "instance_id": "py", "journal_id": self.journal, "journal_epoch": 1,
                  "version": "py-1", "protocol_version": 1} | changed
        await self.send("device.register", **fields)

    async def next(self):
        while True:
            frame = json.loads(await asyncio.wait_for(self.ws.recv(), 60))
            if frame["type"] != "heartbeat":
                return frame

    async def expect(self, kind):
        frame = await self.next()
        assert frame["type"] == kind, f"expected {kind}: {frame}"
        return frame

    async def online(self):
        await self.open()
        await self.register()
        registered = await self.expect("device.registered")
        await self.send("tool.registry.sync", tools=[READ_FILE])
        # An answer to a later frame says that the sync was taken.
        await self.send("no.such.type")
        await self.expect("protocol.error")
        return registered

    async def closed(self, code, reason=""):
        try:
            while True:
                await self.next()
        except ConnectionClosed as end:
            assert end.rcvd and end.rcvd.code == code and reason in end.rcvd.reason, f"expected {code}: {end!r}"


def result(request, text):
    output = {"path": "README.md", "content": text, "size": len(text), "truncated": False}
    canonical = json.dumps(output, sort_keys=True, separators=(",", ":"))  # RFC 8785, for plain ASCII
    return {"tool_call_id": request["tool_call_id"], "executed_attempt_no": request["attempt_no"],
            "status": "succeeded", "output": output, "output_sha256": hashlib.sha256(canonical.encode()).hexdigest()}


async def main():
    device = Device("py")
    registered = await device.online()
    assert registered["connection_epoch"] == 1 and registered["max_message_bytes"] == 4 << 20, registered
    print("ok registers, syncs and is told about an unknown type")

    question = {"content": "x", "device_id": device.id, "idempotency_key": str(uuid.uuid4())}
    run = (await asyncio.to_thread(post, "py", "/api/turns", question))["run_id"]
    call = {"run_id": run, "tool_name": "workspace.read_file", "arguments": {"path": "README.md"}}
    calling = asyncio.create_task(asyncio.to_thread(post, "py", "/api/desktop/dev/tool-calls", call))
    request = await device.expect("tool.call.request")
    hashed = {"tool": request["tool_name"], "version": request["tool_version"],
              "arguments": json.loads(request["arguments_json"])}
    canonical = json.dumps(hashed, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(canonical.encode()).hexdigest() == request["call_hash"], request
    await device.send("tool.call.received", tool_call_id=request["tool_call_id"], attempt_no=1, phase="reserved")
    await device.send("tool.call.result", **result(request, "read in python"))
    assert (await device.expect("tool.call.ack"))["disposition"] == "stored"
    assert (await calling)["output"]["content"] == "read in python"
    print("ok is called and its result is the answer")
    await device.send("tool.call.result", **result(request, "read in python"))
    assert (await device.expect("tool.call.ack"))["disposition"] == "duplicate"
    print("ok a result that comes twice is acknowledged twice")
    await device.send("tool.call.result", **(result(request, "x") | {"tool_call_id": "never:sent"}))
    assert (await device.expect("tool.call.ack"))["disposition"] == "unknown_call"
    print("ok a result of an unknown call is acknowledged as that")

    older = device.ws
    await device.online()
    device.ws, newer = older, device.ws
    await device.closed(4409)
    await newer.close()
    print("ok a newer socket replaces the older one: 4409")

    async def refused(what, code, reason="", after=None, **options):
        other = Device(f"py-{len(what)}")
        await other.open(**options)
        if after:
            await after(other)
        await other.closed(code, reason)
        print(f"ok {what}: {code}")

    async def leave_a_gap(other):
        await other.register()
        other.sequence += 1
        await other.send("tool.registry.sync", tools=[])

    await refused("another device's id", 4403, "DEVICE_MISMATCH", after=lambda d: d.register(device_id="another"))
    await refused("a foreign origin", 4403, "ORIGIN_DENIED", origin="https://evil.example")
    await refused("no ticket", 4401, additional_headers={})
    await refused("a gap in the sequence", 4400, "SEQUENCE", after=leave_a_gap)
    await refused("another first frame", 4400, after=lambda d: d.send("heartbeat", time="2026-01-01T00:00:00Z"))
    await refused("a message too large before registration", 1009, after=lambda d: d.register(version="x" * 5_000))
    await refused("a binary message", 1003, after=lambda d: d.ws.send(b"{}"))

    other = Device("py-twice")
    ticket = await asyncio.to_thread(other.ticket)
    await other.open(additional_headers={}, subprotocols=["devmind.v1", f"ticket.{ticket}"])
    assert other.ws.subprotocol == "devmind.v1"
    await other.register()
    await other.expect("device.registered")
    again = Device("py-twice")
    await again.open(ticket)
    await again.closed(4401)
    print("ok a ticket that was used: 4401")


asyncio.run(main())
