"""Reads OTLP/JSON lines with OpenTelemetry's own messages, and receives OTLP/HTTP.

`otlp.py FILE` reads a file; `otlp.py --receive N` prints its address, receives N requests (the first one is answered
503, which the protocol says to send again) and ends. Both fail on a field that the protocol does not know, on an
attribute `gen_ai.*` that the semantic conventions do not know, and on a parent or time that makes no sense; and print
what they got, one JSON object a span.
"""

import base64
import http.server
import json
import sys

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

KNOWN = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
# In the conventions, and newer than the package.
KNOWN |= {
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.call.result",
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.reasoning.output_tokens",
}


def with_base64_ids(value):
    """OTLP writes ids as hex where protobuf's JSON mapping has base64."""
    if isinstance(value, dict):
        return {
            key: base64.b64encode(bytes.fromhex(inner)).decode()
            if key in ("traceId", "spanId", "parentSpanId")
            else with_base64_ids(inner)
            for key, inner in value.items()
        }
    return [with_base64_ids(inner) for inner in value] if isinstance(value, list) else value


def plain(value):
    kind = value.WhichOneof("value")
    inner = getattr(value, kind)
    return [plain(item) for item in inner.values] if kind == "array_value" else inner


def read(text):
    request = json_format.ParseDict(with_base64_ids(json.loads(text)), ExportTraceServiceRequest())
    spans = [span for of in request.resource_spans for scope in of.scope_spans for span in scope.spans]
    assert spans, "a request without spans"
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans), "two spans have one id"
    for span in spans:
        assert len(span.trace_id) == 16 and len(span.span_id) == 8, span
        assert span is spans[0] or span.parent_span_id in ids, f"{span.name} hangs in the air"
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano, span
        attributes = {pair.key: plain(pair.value) for pair in span.attributes}
        unknown = [key for key in attributes if key.startswith("gen_ai.") and key not in KNOWN]
        assert not unknown, f"the conventions do not know {unknown}"
        print(json.dumps({
            "name": span.name, "kind": span.kind, "trace_id": span.trace_id.hex(), "span_id": span.span_id.hex(),
            "status": span.status.code, "attributes": attributes, "events": [event.name for event in span.events],
            "links": [link.span_id.hex() for link in span.links],
        }), flush=True)


def receive(wanted):
    class Handler(http.server.BaseHTTPRequestHandler):
        refused = received = 0

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
            assert self.headers["x-key"] == "secret"
            if not Handler.refused:
                Handler.refused = 1
                return self.answer(503, b"")
            read(body)
            Handler.received += 1
            self.answer(200, b"{}")

        def answer(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    while Handler.received < wanted:
        server.handle_request()


if sys.argv[1] == "--receive":
    receive(int(sys.argv[2]))
else:
    for line in open(sys.argv[1], encoding="utf-8"):
        read(line)
