"""Stands for a language model: answers with a stream of events, the last of which has the count of tokens.

    python3 model.py 10002

The header x-tokens says how many tokens an answer has (137 without it), x-seconds how long it takes, and x-end how it ends: `well`,
or `broken`, which closes the connection in the middle and gives no count. GET /count answers with how many streams run, and the
most that ran at once.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EVENTS = 4
lock = threading.Lock()
running, most = 0, 0


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        global running, most
        self.rfile.read(int(self.headers.get("content-length", 0)))
        tokens = int(self.headers.get("x-tokens", 137))
        pause = float(self.headers.get("x-seconds", 0)) / EVENTS
        with lock:
            running += 1
            most = max(most, running)
        try:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for _ in range(EVENTS):
                time.sleep(pause)
                self.event({"choices": [{"delta": {"content": "a few words "}}]})
            if self.headers.get("x-end") == "broken":
                self.close_connection = True
                return
            self.event({"choices": [], "usage": {"total_tokens": tokens}})
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            # The client has left.
            self.close_connection = True
        finally:
            with lock:
                running -= 1

    def event(self, event):
        data = f"data: {json.dumps(event)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def do_GET(self):
        with lock:
            body = json.dumps({"running": running, "most": most}).encode()
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
