"""scripts/release, with stand-ins for what compiles, packs images and emulates: what it refuses, keeps and leaves.

    python tests/deploy/release.py

Run by scripts/check-deploy. It works in a clone, with the scripts of this tree, and compiles nothing.
"""

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).group(1)
FILES = {
    f"weir-{VERSION}-linux-amd64.tar.gz", f"weir-{VERSION}-linux-arm64.tar.gz", f"weir-{VERSION}-image.tar", f"weir-{VERSION}.spdx.json",
    f"weir-{VERSION}.tgz", "NOTES.md", "SHA256SUMS",
}

SERVER = f"""#!/bin/sh
[ "$1" = --version ] && echo 'weir {VERSION} (stand-in)' && exit
trap 'exit 0' TERM
echo ': ready store=' >&2
while :; do sleep 0.05; done
"""
TOOLS = {
    "buildah": """#!/bin/sh
[ "$1" = unshare ] && shift && exec "$@"
while [ $# -gt 0 ]; do
    case $1 in
    --digestfile) echo sha256:0123 >"$2"; shift ;;
    oci-archive:*) echo image >"${1#oci-archive:}" ;;
    esac
    shift
done
""",
    "helm": f"""#!/bin/sh
[ -e "$BROKEN_HELM" ] && exit 1
grep '^  repository: ' "$2/values.yaml" >"$4/weir-{VERSION}.tgz"
""",
    "musl-gcc": "#!/bin/sh\n",
    "rustup": "#!/bin/sh\n",
    # `--program-headers --wide FILE`: no line of it has INTERP.
    "readelf": "#!/bin/sh\n",
    "qemu-aarch64-static": '#!/bin/sh\nexec "$@"\n',
    "qemu-x86_64-static": '#!/bin/sh\nexec "$@"\n',
}


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def main():
    with tempfile.TemporaryDirectory() as folder:
        clone, tools = Path(folder) / "clone", Path(folder) / "tools"
        broken = Path(folder) / "helm-is-broken"
        environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "BROKEN_HELM": str(broken), "HELM": "helm", "WEIR_REGISTRY": "ghcr.io/Owner/Repo"}

        def run(*command):
            return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=120)

        subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", clone], check=True, timeout=120)
        for name in ("release", "sbom", "licenses", "crates.py", "release-requirements.txt"):
            shutil.copy(ROOT / "scripts" / name, clone / "scripts")
        shutil.copy(ROOT / "CHANGELOG.md", clone)
        for name, text in TOOLS.items():
            write(tools / name, text)
        # `image root DIR PROCESSOR`
        write(clone / "scripts/image", f"#!/bin/sh\nmkdir -p \"$2/bin\"\ncat >\"$2/bin/weir\" <<'END'\n{SERVER}END\nchmod +x \"$2/bin/weir\"\ncp LICENSE \"$2\"\nscripts/licenses \"$2/THIRD-PARTY-LICENSES\"\n")
        venv = clone / "target/release-venv"
        write(venv / "bin/pyspdxtools", "#!/bin/sh\n")
        shutil.copy(clone / "scripts/release-requirements.txt", venv / "weir-requirements.txt")
        out, tree = clone / f"target/release-{VERSION}", clone / "target/release-work"

        done = run("scripts/release")
        assert done.returncode == 1 and "not committed" in done.stderr and not out.exists(), f"a tree with changes: {done}"

        assert run("git", "add", "--all").returncode == 0
        assert run("git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "-m", "stand-ins").returncode == 0
        broken.touch()
        done = run("scripts/release")
        assert done.returncode != 0 and not out.exists(), f"without a chart there is no release: {done}"
        kept = {path.name for state in tree.iterdir() for path in state.iterdir() if path.is_dir() and not path.name.endswith(".new")}
        assert kept == {"binary-amd64", "archive-amd64", "binary-arm64", "archive-arm64", "sbom"}, kept

        broken.unlink()
        done = run("scripts/release")
        assert done.returncode == 0, done
        assert all(f"{name} is kept" in done.stdout for name in kept), done.stdout
        assert {path.name for path in out.iterdir()} == FILES, sorted(out.iterdir())
        assert run("sh", "-c", f"cd {out} && sha256sum --check SHA256SUMS").returncode == 0
        for architecture in ("amd64", "arm64"):
            name = f"weir-{VERSION}-linux-{architecture}"
            with tarfile.open(out / f"{name}.tar.gz") as archive:
                expected = {f"{name}/{file}" for file in ("weir", "LICENSE", "THIRD-PARTY-LICENSES", "README.md", "CHANGELOG.md")}
                files = {member.name for member in archive if member.isfile()}
                assert files == expected, files
                assert "\ntonic " in archive.extractfile(f"{name}/THIRD-PARTY-LICENSES").read().decode()
        lines = (out / "SHA256SUMS").read_text().splitlines()
        assert {line.split()[1] for line in lines} == FILES - {"SHA256SUMS"}, lines
        notes = (out / "NOTES.md").read_text()
        assert notes.strip() and "## [" not in notes, notes
        commands = done.stdout.split("These commands publish it")[1]
        assert "ghcr.io/owner/repo/weir@sha256:0123" in commands and "cosign sign-blob" in commands and f"git tag --sign v{VERSION}" in commands, commands
        [publish] = tree.glob("*/publish")
        assert publish.read_text() in commands and publish.read_text().startswith("cd target/release-"), publish.read_text()
        chart = (out / f"weir-{VERSION}.tgz").read_text()
        assert chart == "  repository: ghcr.io/owner/repo/weir\n", f"the chart of a release names its image: {chart}"
        environment["WEIR_REGISTRY"] = "other.example"
        done = run("scripts/release")
        assert done.returncode == 0 and "image is kept" not in done.stdout and "sbom is kept" in done.stdout, done
        assert (out / f"weir-{VERSION}.tgz").read_text() == "  repository: other.example/weir\n"
        assert not [path for path in (clone / "target").iterdir() if path.name.endswith((".new", ".old"))]

        assert run("git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "--allow-empty", "-m", "next").returncode == 0
        assert run("git", "tag", f"v{VERSION}", "HEAD~1").returncode == 0
        done = run("scripts/release")
        assert done.returncode == 1 and f"the tag v{VERSION} is" in done.stderr, done


main()
