"""Stands for a language model: answers with a stream of events, the last of which has the count of tokens.

    python3 model.py 10002

Headers say how it answers:

- x-tokens: the count of tokens, 137 without it. `none`: it gives no count. `5,137`: it gives two counts, one after the other.
- x-wait, x-seconds, x-rest, x-rest-after: the seconds before an answer, between its words, before the count, and after it.
- x-status: the status, 200 without it.
- x-end: `well`; `broken`, which closes the connection in the middle and gives no count; or `silent`, which closes it unanswered.
- x-pieces: in how many writes the counts are sent. x-after: how many bytes follow the last count.
- x-says: what its answer says.

It compresses if accept-encoding has gzip. GET /count answers with how many streams run, the most that ran at once, and how many
requests have come by their header x-case.
"""

import gzip
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EVENTS = 4
lock = threading.Lock()
running, most = 0, 0
# How many requests have come, by their header x-case.
asked_by = {}


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        global running, most
        self.rfile.read(int(self.headers.get("content-length", 0)))
        counts = self.headers.get("x-tokens", "137")
        counts = [] if counts == "none" else [int(count) for count in counts.split(",")]
        pause = self.seconds("x-seconds") / EVENTS
        self.compressed = "gzip" in self.headers.get("accept-encoding", "")
        case = self.headers.get("x-case", "")
        with lock:
            running += 1
            most = max(most, running)
            asked_by[case] = asked_by.get(case, 0) + 1
        try:
            time.sleep(self.seconds("x-wait"))
            if self.headers.get("x-end") == "silent":
                self.close_connection = True
                return
            self.send_response(int(self.headers.get("x-status", 200)))
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            if self.compressed:
                self.send_header("content-encoding", "gzip")
            self.end_headers()
            for _ in range(EVENTS):
                time.sleep(pause)
                self.event({"choices": [{"delta": {"content": self.headers.get("x-says", "a few words ")}}]})
            if self.headers.get("x-end") == "broken":
                self.close_connection = True
                return
            self.event({"choices": [{"delta": {"content": "the last words"}}]})
            time.sleep(self.seconds("x-rest"))
            for count in counts:
                self.event({"choices": [], "usage": {"total_tokens": count}}, int(self.headers.get("x-pieces", 1)))
            time.sleep(self.seconds("x-rest-after"))
            if "x-after" in self.headers:
                self.event({"choices": [], "padding": "." * int(self.headers["x-after"])})
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            # The client has left.
            self.close_connection = True
        finally:
            with lock:
                running -= 1

    def seconds(self, header):
        return float(self.headers.get(header, 0))

    def event(self, event, pieces=1):
        data = f"data: {json.dumps(event)}\n\n".encode()
        if self.compressed:
            data = gzip.compress(data)
        size = -(-len(data) // pieces)
        for at in range(0, len(data), size):
            if at > 0:
                # So that Envoy reads each by itself.
                time.sleep(0.02)
            piece = data[at : at + size]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()

    def do_GET(self):
        with lock:
            body = json.dumps({"running": running, "most": most, "asked": asked_by}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024


if __name__ == "__main__":
    server = Server(("127.0.0.1", int(sys.argv[1])), Model)
    print(server.server_address[1], flush=True)
    server.serve_forever()
