"""Which crates are compiled into weir, for scripts/sbom and scripts/licenses."""

import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLATFORMS = ("x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl")
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"


def run(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def resolved():
    """The root's id, all packages by id, and the edges (from, to, whether it is for the build) that lead away from the root."""
    packages, edges, root = {}, set(), None
    for platform in PLATFORMS:
        metadata = json.loads(run("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", platform))
        packages |= {package["id"]: package for package in metadata["packages"]}
        root = metadata["resolve"]["root"]
        nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
        waiting, seen = [root], {root}
        while waiting:
            node = waiting.pop()
            for dependency in nodes[node]["deps"]:
                kinds = {kind["kind"] for kind in dependency["dep_kinds"]} - {"dev"}
                if not kinds:
                    continue
                edges.add((node, dependency["pkg"], kinds == {"build"}))
                if dependency["pkg"] not in seen:
                    seen.add(dependency["pkg"])
                    waiting.append(dependency["pkg"])
    return root, packages, edges
