"""Shared by the programs in bench/: builds, servers, loads, and tables.

Every server listens on loopback or in a temporary directory and ends with its Stage; every load is a fixed number of
requests within a fixed time. Not here: which scenarios there are, and what they are compared with.
"""

import argparse
import dataclasses
import http.client
import http.server
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WEIR = ROOT / "target/dist/weir"
TOOLS = ROOT / "target/bench"
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
# Crates whose versions decide what an empty handler costs.
COMMON_CRATES = ["h2", "http", "hyper", "hyper-util", "mimalloc", "prost", "tokio", "tonic", "tonic-prost"]
# More keys than any run makes, so that nothing is evicted.
MAX_KEYS = 40_000_000
# The fewest requests a second that a load is given time for.
SLOWEST = 2_000
START_SECONDS = 30
TICKS = os.sysconf("SC_CLK_TCK")


def fail(reason):
    sys.exit(f"bench/{Path(sys.argv[0]).name}: {reason}")


# What is sent. Protobuf by hand.


def field(number, content):
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def body(*descriptors, receipt=None, used=None, limit=None):
    """A framed RateLimitRequest for the domain `bench`. A descriptor is a pair of key and value, or a list of pairs. With a receipt each
    settles it with the hits that were used. With a limit (requests, number of the unit) each has that limit."""
    message = field(1, b"bench")
    for pairs in descriptors:
        pairs = list(pairs) if isinstance(pairs, list) else [pairs]
        if receipt:
            pairs.append(("weir.receipt", receipt))
        content = b"".join(field(1, field(1, key.encode()) + field(2, value.encode())) for key, value in pairs)
        if limit:
            requests, unit = limit
            content += field(2, b"\x08" + varint(requests) + b"\x10" + varint(unit))
        if receipt:
            content += field(3, b"\x08" + varint(used))
        message += field(2, content)
    return b"\0" + len(message).to_bytes(4, "big") + message


# The place that bench/load counts up.
NUMBER = "0000000000"


# Processes.


def cpu_seconds(pid):
    """What all threads have used, by the scheduler's count in nanoseconds; else in ticks, which short loads have few of."""
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except FileNotFoundError:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


def rss_bytes(pid):
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024


def rss_mib(pid):
    return rss_bytes(pid) / (1 << 20)


def available_bytes():
    """What the machine can give without swapping."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024


class Server:
    """A process that is measured."""

    def __init__(self, process, address, metrics=None, redis=None, admin=None):
        self.process = process
        self.address = address
        self.metrics = metrics
        self.admin = admin
        self.redis = redis
        self.scheme = "http"

    @property
    def pid(self):
        return self.process.pid

    def counted(self):
        """weir's own count of its decisions, by how they ended. None where there is none."""
        if self.metrics is None:
            return None
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        counts = {}
        for result, count in re.findall(r'^weir_requests_total\{.*result="(\w+)"\} (\d+)$', text, re.MULTILINE):
            counts[result] = counts.get(result, 0) + int(count)
        return counts

    def is_ready(self):
        host, port = self.metrics.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=1)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


class Redis(Server):
    """A redis-server, of which the address is its socket."""

    def call(self, *parts):
        """One command, and its answer of one line or one text."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(self.address)
            sent = [str(part).encode() for part in parts]
            connection.sendall(b"*%d\r\n" % len(sent) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in sent))
            answer = connection.makefile("rb")
            line = answer.readline()
            if line[:1] == b"-":
                fail(f"redis: {line.decode().strip()}")
            if line[:1] != b"$":
                return line[1:].strip().decode()
            return answer.read(int(line[1:])).decode()

    def used_bytes(self):
        return int(re.search(r"^used_memory:(\d+)", self.call("INFO", "memory"), re.MULTILINE)[1])


def wait_until(what, ready, pause=0.02):
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        found = ready()
        if found:
            return found
        time.sleep(pause)
    fail(f"{what} did not start within {START_SECONDS} s")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Stage:
    """Servers on free ports of loopback, their files in a temporary directory: all gone at the end."""

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="weir-bench-")
        self.folder = Path(self.directory.name)
        self.processes = []
        self.started = 0
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        self.directory.cleanup()

    def end(self, server):
        """Ends one server before the others."""
        server.process.kill()
        server.process.wait()
        self.processes.remove(server.process)

    def path(self, name):
        """A new path in the stage's folder."""
        self.started += 1
        return self.folder / f"{self.started}-{name}"

    def start(self, command, log):
        command = [str(part) for part in command]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def empty(self, cores=1):
        log = self.path("empty.log")
        process = self.start([TOOLS / "dist/empty-handler", cores], log)
        address = wait_until("the empty handler", lambda: log.read_text().endswith("\n") and log.read_text().strip())
        return Server(process, address)

    def redis(self):
        path = self.path("redis")
        path.mkdir()
        command = ["redis-server", "--port", "0", "--unixsocket", path / "socket", "--save", "", "--appendonly", "no"]
        process = self.start([*command, "--dir", path], path / "log")
        wait_until("redis-server", (path / "socket").exists)
        return Redis(process, str(path / "socket"))

    def launch(self, policies, redis=None, cores=1, settings=None, under=()):
        """Starts weir, on memory where no Redis is given, and does not wait for it; `under` a tool that runs it."""
        grpc, metrics, admin = (f"127.0.0.1:{free_port()}" for _ in range(3))
        command = [*under, WEIR, "serve", "--policies", policies, "--store", "redis" if redis else "memory"]
        command += ["--grpc", grpc, "--http", metrics, "--admin", admin]
        if redis:
            command += ["--redis-url", f"redis+unix://{redis.address}"]
        for name, value in {"runtime.cores": cores, **(settings or {})}.items():
            command += ["--set", f"{name}={value}"]
        return Server(self.start(command, self.path("weir.log")), grpc, metrics, redis, admin)

    def weir(self, policies, redis=None, cores=1, settings=None, under=()):
        usual = {"memory.max_keys": MAX_KEYS}
        if redis:
            # A full queue of a closed loop waits longer than a caller would; failures would fail the run. A denial
            # from the local cache does not ask Redis.
            usual = {"redis.timeout": "5s", "deny_cache.max_age": "0s"}
        server = self.launch(policies, redis, cores, usual | (settings or {}), under)

        def ready():
            if server.process.poll() is not None:
                fail("weir ended:\n" + "\n".join(log.read_text() for log in self.folder.glob("*weir.log")))
            return server.is_ready()

        wait_until("weir", ready)
        return server

    def collector(self):
        """Takes spans by HTTP and keeps none. Its address."""
        class Taker(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Taker)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    def tls_settings(self):
        """The settings of a gRPC listener with a certificate of its own."""
        certificate, key = self.path("weir.pem"), self.path("weir.key")
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-subj", "/CN=localhost", "-days", "2", "-out", certificate, "-keyout", key]
        subprocess.run(command, check=True, capture_output=True, timeout=30)
        return {"listen.tls.cert_file": certificate, "listen.tls.key_file": key}

    def weir_by_tls(self, policies, cores=1):
        """weir on memory, gRPC by TLS; h2load does not verify the certificate."""
        server = self.weir(policies, cores=cores, settings=self.tls_settings())
        server.scheme = "https"
        return server


def tracing(collector):
    """The settings of a weir that traces one decision in a hundred."""
    return {"tracing.exporter": "otlp", "tracing.otlp.endpoint": collector, "tracing.sample_ratio": "0.01"}


# Loads.


@dataclasses.dataclass
class Answered:
    seconds: float
    p50_us: float
    p99_us: float


def time_for(requests):
    return 30 + requests / SLOWEST


def h2load(server, sent, requests, connections, streams):
    """One body again and again, in a closed loop. `sent` is its file."""
    log = sent.with_suffix(".latencies")
    log.unlink(missing_ok=True)
    command = ["h2load", "-n", requests, "-c", connections, "-m", streams, "-t", 1, "-d", sent]
    command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    command += ["--log-file", log, f"{server.scheme}://{server.address}{METHOD}"]
    run = run_load(command, requests)
    summary = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", run.stdout)
    if run.returncode != 0 or not summary or [int(part) for part in summary.groups()] != [requests, 0, 0, 0]:
        fail(f"h2load did not get {requests} answers:\n{run.stdout}\n{run.stderr}")
    took, unit = re.search(r"finished in ([\d.]+)(ms|s)", run.stdout).groups()
    seconds = float(took) / (1000 if unit == "ms" else 1)
    latencies = sorted(int(line.split("\t")[2]) for line in log.read_text().splitlines())
    return Answered(seconds, latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100])


def counted_load(server, sent, requests, connections, streams, keys, first=0, stride=1, rate=0, may_deny=False):
    """One body whose number is counted up; in a closed loop, or at a rate. See bench/load."""
    command = [TOOLS / "dist/load", server.address, sent, connections, streams, requests, first, keys, stride, rate]
    run = run_load(command, requests)
    if run.returncode != 0:
        fail(f"the load failed: {run.stderr}")
    answers = json.loads(run.stdout)
    if answers["ok"] + answers["over_limit"] != requests or (answers["over_limit"] and not may_deny):
        fail(f"of {requests} requests {answers['ok']} were answered OK, {answers['over_limit']} OVER_LIMIT")
    return Answered(answers["seconds"], answers["p50_us"], answers["p99_us"])


def run_load(command, requests):
    command = [str(part) for part in command]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=time_for(requests))
    except subprocess.TimeoutExpired:
        fail(f"{requests} requests were not answered within {time_for(requests):.0f} s: {' '.join(command)}")


# What is built, and out of what.


def require(*tools):
    for tool in tools:
        if not shutil.which(tool):
            fail(f"{tool} is not installed")


def build(*names):
    """Builds weir and the helpers of these names with the profile of the image. Returns the versions of the crates that they share."""
    crates = check_same_build()
    build_one("Cargo.toml", ROOT / "target", "--bin", "weir")
    for name in names:
        build_one(f"bench/{name}/Cargo.toml", TOOLS)
    return crates


def build_one(manifest, target, *arguments):
    command = ["cargo", "build", "--profile", "dist", "--locked", "--quiet", "--target-dir", target]
    if subprocess.run([*command, "--manifest-path", ROOT / manifest, *arguments]).returncode != 0:
        fail(f"cannot build {manifest}")


def versions(lock):
    packages = tomllib.loads(lock.read_text())["package"]
    return {package["name"]: package["version"] for package in packages if package["name"] in COMMON_CRATES}


def check_same_build():
    """The empty handler is a yardstick only as long as it is built as weir is."""
    ours, theirs = versions(ROOT / "Cargo.lock"), versions(ROOT / "bench/empty-handler/Cargo.lock")
    if ours != theirs:
        differ = sorted(set(ours.items()) ^ set(theirs.items()))
        fail(f"weir and the empty handler have different crates, make their Cargo.lock agree: {differ}")
    profiles = []
    for manifest in ("Cargo.toml", "bench/empty-handler/Cargo.toml"):
        profiles.append(tomllib.loads((ROOT / manifest).read_text())["profile"]["dist"])
    if profiles[0] != profiles[1]:
        fail(f"weir and the empty handler have different profiles `dist`: {profiles}")
    return ours


# Figures.


def print_table(rows):
    """Markdown: the first row is the head, the first column is text, the others are numbers."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rows = [rows[0], ["-" * widths[0]] + ["-" * (width - 1) + ":" for width in widths[1:]], *rows[1:]]
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("| " + " | ".join(cells) + " |")
    sys.stdout.flush()


def describe(crates, load):
    """What a table was measured with."""
    first = lambda command: subprocess.run(command, capture_output=True, text=True).stdout.strip().splitlines()[0]
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    print(f"date        {time.strftime('%Y-%m-%d')}")
    print(f"machine     {os.cpu_count()} x {model[1] if model else platform.machine()}, {memory:.0f} GiB, "
          f"Linux {platform.release()}")
    print(f"weir        {first([WEIR, '--version'])}, {first(['rustc', '--version'])}")
    print("crates      " + ", ".join(f"{name} {version}" for name, version in sorted(crates.items())))
    print(f"redis       {first(['redis-server', '--version'])}")
    if shutil.which("h2load"):
        print(f"h2load      {first(['h2load', '--version'])}")
    print(f"load        {load}\n")
    sys.stdout.flush()


def number(low, high):
    """A whole number as an argument."""

    def read(text):
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text}: {low} to {high}")
        return int(text)

    return read


def parser(doc):
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
