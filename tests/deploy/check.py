"""Checks of deploy/ that need no cluster: what the chart renders, and that alerts and documentation agree.

    python tests/deploy/check.py charts    renders the chart; needs helm (its path in HELM)
    python tests/deploy/check.py starts    starts weir (its path in WEIR) with what the chart renders; needs helm and openssl
    python tests/deploy/check.py files     everything else, without helm

Run by scripts/check-deploy. Each problem is a line; the exit status is 1 if there is one.
"""

import base64
import copy
import functools
import importlib.machinery
import importlib.util
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kubernetes_validate
import yaml
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/weir"
HELM = os.environ.get("HELM", "helm")
# The oldest and the newest Kubernetes that manifests are checked against; the chart asks for the oldest at least.
KUBERNETES = ["1.27", "1.37"]
# Kinds of the Prometheus operator and of Istio, whose schemas are not among those of Kubernetes.
FOREIGN = {"ServiceMonitor", "PrometheusRule", "EnvoyFilter"}

# Values for which the chart must render, and weir must start.
SAMPLES = [*sorted((CHART / "ci").glob("*.yaml")), ROOT / "deploy/istio/values.yaml", ROOT / "deploy/envoy-ai-gateway/values.yaml"]
# How long weir may take to listen, and `weir check` to end.
START_SECONDS = 60

# Maps that the chart passes on as they are: one change within is enough to see that it does.
PASSED_ON = {"livenessProbe", "readinessProbe", "startupProbe", "strategy", "podSecurityContext", "securityContext", "resources"}

problems = []
valid = set()


def check(holds, problem):
    if not holds:
        problems.append(problem)


def read(path):
    return (ROOT / path).read_text()


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def helm(*values, expect_failure=False, hooks=False, chart=CHART):
    """The objects of a release, with hooks its hooks too, or with expect_failure the message of the chart's refusal. Values are files or dicts."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [HELM, "template", "weir", str(chart), "--namespace", "edge", "--kube-version", "1.32.0"]
        if not hooks:
            arguments.append("--no-hooks")
        for number, value in enumerate(values):
            if isinstance(value, dict):
                file = Path(folder) / f"{number}.yaml"
                file.write_text(json.dumps(value))
                value = file
            arguments += ["--values", str(value)]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    if expect_failure:
        return done.stderr if done.returncode else ""
    if done.returncode:
        raise SystemExit(f"helm template {[str(value) for value in values]}: {done.stderr}")
    return documents(done.stdout)


def one(objects, kind, name=None):
    found = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    return found[0] if len(found) == 1 else {}


def at(node, path):
    """What stands at a path such as `spec.ports.0.name`; None where there is nothing."""
    for part in path.split("."):
        if isinstance(node, list):
            node = node[int(part)] if part.isdigit() and int(part) < len(node) else None
        elif isinstance(node, dict):
            node = node.get(part)
        else:
            return None
    return node


def pod(objects):
    return at(one(objects, "Deployment"), "spec.template.spec") or {}


def weir(objects):
    return pod(objects)["containers"][0]


def env(objects):
    return {variable["name"]: variable.get("value") for variable in weir(objects)["env"]}


def leaves(node, path=()):
    """Each value that is no map, and each empty map, with its path."""
    if isinstance(node, dict) and node:
        for key, child in node.items():
            yield from leaves(child, (*path, key))
    else:
        yield path, node


def validate(objects, where):
    for document in objects:
        text = json.dumps(document, sort_keys=True)
        if document["kind"] in FOREIGN or text in valid:
            continue
        valid.add(text)
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                problems.append(f"{where}: {document['kind']} by the schema of {version}: {error.message} at {list(error.path)}")


def check_security(objects, where):
    """What must hold with the default values, whatever else is set."""
    spec, container = pod(objects), weir(objects)
    for path, expected in {
        "automountServiceAccountToken": False,
        "securityContext.runAsNonRoot": True,
        "securityContext.runAsUser": 65532,
        "securityContext.runAsGroup": 65532,
        "securityContext.seccompProfile.type": "RuntimeDefault",
    }.items():
        check(at(spec, path) == expected, f"{where}: {path} of the pod is {at(spec, path)} and not {expected}")
    for path, expected in {
        "securityContext.allowPrivilegeEscalation": False,
        "securityContext.readOnlyRootFilesystem": True,
        "securityContext.capabilities": {"drop": ["ALL"]},
    }.items():
        check(at(container, path) == expected, f"{where}: {path} of weir is {at(container, path)} and not {expected}")
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        check(not spec.get(key), f"{where}: {key} is set")


def check_references(objects, where):
    """Volumes exist where they are mounted, selectors select the pods, named ports exist."""
    spec, container = pod(objects), weir(objects)
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        check(mount["name"] in volumes, f"{where}: no volume {mount['name']}")
    check(len(volumes) == len(spec.get("volumes", [])), f"{where}: a volume twice")
    labels = at(one(objects, "Deployment"), "spec.template.metadata.labels")
    for kind, path in {
        "Deployment": "spec.selector.matchLabels",
        "Service": "spec.selector",
        "PodDisruptionBudget": "spec.selector.matchLabels",
        "NetworkPolicy": "spec.podSelector.matchLabels",
    }.items():
        selector = at(one(objects, kind), path)
        if selector is not None:
            check(selector.items() <= labels.items(), f"{where}: {kind} selects {selector}, and pods have {labels}")
    monitored = at(one(objects, "ServiceMonitor"), "spec.selector.matchLabels") or {}
    check(monitored.items() <= at(one(objects, "Service"), "metadata.labels").items(), f"{where}: the ServiceMonitor selects no Service")
    ports = {port["name"] for port in container["ports"]}
    for port in one(objects, "Service")["spec"]["ports"]:
        check(port["targetPort"] in ports, f"{where}: the container has no port {port['targetPort']}")
    for endpoint in at(one(objects, "ServiceMonitor"), "spec.endpoints") or []:
        names = {port["name"] for port in one(objects, "Service")["spec"]["ports"]}
        check(endpoint["port"] in names, f"{where}: the Service has no port {endpoint['port']}")
    names = [variable["name"] for variable in container["env"]]
    check(len(names) == len(set(names)), f"{where}: a variable twice among {names}")
    page = read("docs/configuration.md")
    for name in names:
        if name.startswith("WEIR__"):
            check(f"`{name}`" in page, f"{where}: docs/configuration.md has no {name}")


def check_hooks(objects, where):
    """The pods of hooks have their volumes and the same confinement, and no Service, budget or policy selects them."""
    selector = at(one(objects, "Service"), "spec.selector")
    for hook in (o for o in objects if o["kind"] in ("Job", "Pod")):
        template = hook["spec"]["template"] if hook["kind"] == "Job" else hook
        name = f"{where}: {hook['kind']} {hook['metadata']['name']}"
        check(not selector.items() <= template["metadata"]["labels"].items(), f"{name}: the Service selects it")
        check(template["spec"]["automountServiceAccountToken"] is False, f"{name}: it has a token of the API")
        container = template["spec"]["containers"][0]
        check(container["image"] == weir(objects)["image"], f"{name}: another image than weir")
        check(container["securityContext"] == weir(objects)["securityContext"], f"{name}: another securityContext than weir")
        volumes = {volume["name"] for volume in template["spec"].get("volumes") or []}
        mounts = {mount["name"] for mount in container.get("volumeMounts") or []}
        check(mounts <= volumes, f"{name}: no volume {mounts - volumes}")


def check_every_value_has_an_effect(everything):
    """Each value is tried with something else than its default, and what everything-values.yaml sets is seen in the output."""
    defaults = dict(leaves(yaml.safe_load(read("deploy/helm/weir/values.yaml"))))
    tried = [yaml.safe_load(file.read_text()) for file in sorted((CHART / "ci").glob("*.yaml"))]
    tried += [values for values, _, _ in PROMISES + HOOKS]
    for path, default in defaults.items():
        if path[0] in PASSED_ON:
            changed = any(path[0] in values for values in tried)
        else:
            changed = any(has(values, path) and value_at(values, path) != default for values in tried)
        check(changed, f"values.yaml: neither ci/ nor PROMISES changes {'.'.join(path)}")
    output = json.dumps(everything)
    invisible = {"enabled", "create", "headless", "podAnnotations", "automountServiceAccountToken", "runAsNonRoot"}
    set_there = yaml.safe_load(read("deploy/helm/weir/ci/everything-values.yaml"))
    shutdown = set_there["shutdown"]
    computed = {("shutdown", "marginSeconds"): str(sum(shutdown.values())), ("replicaCount",): None}
    for path, value in leaves(set_there):
        for scalar in scalars(value):
            if path[-1] in invisible or isinstance(scalar, bool) or scalar is None or path[:1] == ("extraObjects",):
                continue
            text = computed.get(path, str(scalar))
            if text is None or path == ("policies", "files", "text.yaml"):
                continue
            check(json.dumps(text)[1:-1] in output, f"ci/everything-values.yaml: {'.'.join(path)} = {scalar} is nowhere in the output")


def has(node, path):
    for part in path:
        if not isinstance(node, dict):
            return True
        if part not in node:
            return False
        node = node[part]
    return True


def value_at(node, path):
    for part in path:
        if not isinstance(node, dict):
            return node
        node = node[part]
    return node


def scalars(value):
    if isinstance(value, list):
        for item in value:
            yield from scalars(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from scalars(item)
    else:
        yield value


# What the comments of values.yaml promise beyond "this value stands there": values, and what must hold of the output.
# Each entry is (values, what, expected); `what` takes the objects.
POLICIES = {"policies": {"existingConfigMap": "mine"}}
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}


def setting(name):
    return lambda objects: env(objects).get(name)


def container(path):
    return lambda objects: at(weir(objects), path)


def spec(path):
    return lambda objects: at(pod(objects), path)


def of(kind, path):
    return lambda objects: at(one(objects, kind), path)


def kinds(objects):
    return sorted({o["kind"] for o in objects})


def volume(name):
    return lambda objects: next((v for v in pod(objects).get("volumes", []) if v["name"] == name), None)


def variables(**values):
    return [{"name": name, **({"valueFrom": value} if isinstance(value, dict) else {"value": value})} for name, value in values.items()]


PROMISES = [
    # Defaults are what the documentation recommends.
    ({}, setting("WEIR__STORE"), "redis"),
    ({}, setting("WEIR__ON_ERROR"), "local"),
    ({}, setting("WEIR__REDIS__URL"), "redis://redis:6379"),
    ({}, setting("WEIR__LOG__FORMAT"), "json"),
    ({}, setting("WEIR__RUNTIME__CORES"), "1"),
    ({}, setting("WEIR__CHARGING"), None),
    ({}, setting("WEIR__DENY_CACHE__MAX_AGE"), None),
    ({}, setting("WEIR__DENY_CACHE__MAX_KEYS"), None),
    ({}, setting("WEIR__LISTEN__METRICS"), None),
    ({}, setting("WEIR__LISTEN__ADMIN"), None),
    ({}, container("args"), ["serve"]),
    ({}, container("image"), "weir:0.1.0"),
    ({}, kinds, ["Deployment", "PodDisruptionBudget", "Service", "ServiceAccount"]),
    ({}, of("Service", "spec.clusterIP"), "None"),
    ({}, of("Service", "spec.ports.0.appProtocol"), "kubernetes.io/h2c"),
    ({}, of("Deployment", "spec.replicas"), 2),
    ({}, of("Deployment", "metadata.name"), "weir"),
    ({}, container("resources.limits"), {"memory": "512Mi"}),
    ({}, volume("policies"), {"name": "policies", "configMap": {"name": "mine"}}),
    ({}, spec("terminationGracePeriodSeconds"), 35),
    ({}, setting("WEIR__SHUTDOWN__PAUSE"), "10s"),
    ({}, spec("topologySpreadConstraints.1.labelSelector.matchLabels"), {"app.kubernetes.io/name": "weir", "app.kubernetes.io/instance": "weir"}),
    ({}, spec("topologySpreadConstraints.1.matchLabelKeys"), ["pod-template-hash"]),
    # Names.
    ({"nameOverride": "limiter"}, of("Service", "metadata.name"), "weir-limiter"),
    ({"fullnameOverride": "whole"}, of("Service", "metadata.name"), "whole"),
    # Labels of every object and of the pods, and annotations of every object and not of the pods.
    ({"commonLabels": {"a": "b"}}, lambda o: {x["metadata"]["labels"].get("a") for x in o}, {"b"}),
    ({"commonLabels": {"a": "b"}}, of("Deployment", "spec.template.metadata.labels.a"), "b"),
    ({"commonAnnotations": {"a": "b"}}, lambda o: {x["metadata"]["annotations"].get("a") for x in o}, {"b"}),
    ({"commonAnnotations": {"a": "b"}}, of("Deployment", "spec.template.metadata.annotations"), None),
    # The image.
    ({"image": {"digest": "sha256:" + "a" * 64, "tag": "x"}}, container("image"), "weir@sha256:" + "a" * 64),
    # Modes.
    ({"mode": "ratelimit"}, container("args"), ["ratelimit"]),
    ({"mode": "ratelimit"}, setting("WEIR__CHARGING"), None),
    # Policies.
    ({"policies": {"enabled": False}, "config": {"policies": {"directory": "/volume"}}}, volume("policies"), None),
    ({"policies": {"enabled": False}, "config": {"policies": {"directory": "/volume"}}}, setting("WEIR__POLICIES__DIRECTORY"), None),
    ({"policies": {"files": {"a.yaml": {"domain": "a"}}}}, of("ConfigMap", "data"), {"a.yaml": "domain: a\n"}),
    ({"policies": {"files": {"a.yaml": "# text\ndomain: a\n"}}}, of("ConfigMap", "data"), {"a.yaml": "# text\ndomain: a\n"}),
    # Stores.
    ({"store": "memory"}, setting("WEIR__STORE"), "memory"),
    ({"store": "memory"}, setting("WEIR__REDIS__URL"), None),
    ({"store": "memory"}, setting("WEIR__ON_ERROR"), None),
    ({"store": ""}, setting("WEIR__STORE"), None),
    ({"store": ""}, setting("WEIR__REDIS__URL"), None),
    ({"store": "", "redis": {"auth": {"existingSecret": "s"}}}, volume("redis-auth"), None),
    ({}, setting("WEIR__MEMORY__MAX_KEYS"), None),
    ({"memory": {"maxKeys": 1048576}}, setting("WEIR__MEMORY__MAX_KEYS"), "1048576"),
    ({"memory": {"maxKeys": 2097152}, "resources": {"limits": {"memory": "1Gi"}}}, setting("WEIR__MEMORY__MAX_KEYS"), "2097152"),
    ({"memory": {"maxKeys": 2097152}, "resources": {"limits": {"memory": None}}}, setting("WEIR__MEMORY__MAX_KEYS"), "2097152"),
    ({"redis": {"auth": {"existingSecret": "s"}}}, setting("WEIR__REDIS__PASSWORD_FILE"), "/etc/weir/redis-auth/password"),
    ({"redis": {"url": "rediss://r", "tls": {"existingSecret": "s"}}}, setting("WEIR__REDIS__TLS__CA_FILE"), "/etc/weir/redis-tls/ca.crt"),
    ({"redis": {"url": "rediss://r", "tls": {"existingSecret": "s"}}}, setting("WEIR__REDIS__TLS__CERT_FILE"), None),
    ({"redis": {"url": "rediss://r", "tls": {"existingSecret": "s", "caKey": ""}}}, setting("WEIR__REDIS__TLS__CA_FILE"), None),
    ({"redis": {"tls": {"caKey": "x"}}}, setting("WEIR__REDIS__TLS__CA_FILE"), None),
    ({"redis": {"perSecond": {"url": ""}}}, setting("WEIR__REDIS__PER_SECOND__URL"), None),
    ({"denyCache": {"maxAge": "0s"}}, setting("WEIR__DENY_CACHE__MAX_AGE"), "0s"),
    # Settings.
    ({"existingConfig": {"name": "mine", "key": "other.yaml"}}, container("args"), ["serve", "--config", "/etc/weir/config/other.yaml"]),
    ({"existingConfig": {"name": "mine"}}, volume("config"), {"name": "config", "configMap": {"name": "mine"}}),
    ({"config": {"grpc": {"held_bytes": 67108864}, "shadow_mode": True}}, of("ConfigMap", "data"), {"weir.yaml": "grpc:\n  held_bytes: 67108864\nshadow_mode: on\n"}),
    ({"config": {"shadow_mode": False}}, of("ConfigMap", "data"), {"weir.yaml": "shadow_mode: off\n"}),
    ({"cores": 0}, setting("WEIR__RUNTIME__CORES"), "0"),
    # Values that weir takes, in each way to give them. Kubernetes fills some in later.
    ({"log": {"level": "WARN,weir_app::policies=debug,h2=3", "format": "json_at"}}, setting("WEIR__LOG__LEVEL"), "WARN,weir_app::policies=debug,h2=3"),
    ({"extraArgs": ["--set=redis.timeout=1m30s", "--set", "near_limit_ratio=0.75", "--charging=independent", "--admin", "[::1]:6070", "--config", "--odd"]}, lambda o: len(weir(o)["args"]), 9),
    ({"env": variables(WEIR__REDIS__TIMEOUT="$(TIMEOUT)", WEIR__REDIS__POOL_SIZE="64", WEIR__SHADOW_MODE="Yes")}, lambda o: env(o).get("WEIR__SHADOW_MODE"), "Yes"),
    ({"env": variables(WEIR__REDIS__TIMEOUT=SECRET)}, lambda o: "WEIR__REDIS__TIMEOUT" in env(o), True),
    ({"mode": "ratelimit", "extraArgs": ["--ignored"]}, container("args"), ["ratelimit", "--ignored"]),
    ({"shutdown": {"pauseSeconds": 60, "graceSeconds": 120}}, spec("terminationGracePeriodSeconds"), 195),
    # Settings that exist, however the file writes them, and a group without a setting.
    ({"config": {"redis": None, "tracing": {}, "shadow_mode": True}}, lambda o: "shadow_mode: on" in one(o, "ConfigMap")["data"]["weir.yaml"], True),
    ({"config": {"redis.timeout": "15ms", "statsd": {"mogrifiers": '[{"pattern": "a", "name": "b", "tags": {"c": "d"}}]'}}}, volume("config"), {"name": "config", "configMap": {"name": "weir-config"}}),
    ({"listenAddress": "::", "ports": {"grpc": 1}}, setting("WEIR__LISTEN__GRPC"), "[::]:1"),
    # TLS of callers.
    ({"tls": {"enabled": True, "existingSecret": "s"}}, setting("WEIR__LISTEN__TLS__KEY_FILE"), "/etc/weir/tls/tls.key"),
    ({"tls": {"enabled": True, "existingSecret": "s"}}, setting("WEIR__LISTEN__TLS__CLIENT_CA_FILE"), None),
    ({"tls": {"enabled": True, "existingSecret": "s"}}, of("Service", "spec.ports.0.appProtocol"), "https"),
    ({"tls": {"enabled": False, "existingSecret": "s"}}, volume("tls"), None),
    # The Service.
    ({"service": {"headless": False}}, of("Service", "spec.clusterIP"), None),
    ({"service": {"grpcPortName": "ratelimit"}}, of("Service", "spec.ports.0.name"), "ratelimit"),
    ({"service": {"httpPort": None}}, lambda o: [p["name"] for p in one(o, "Service")["spec"]["ports"]], ["grpc"]),
    # Watching.
    ({"metrics": {"podAnnotations": True}}, of("Deployment", "spec.template.metadata.annotations"), {"prometheus.io/scrape": "true", "prometheus.io/port": "8080", "prometheus.io/path": "/metrics"}),
    ({"serviceMonitor": {"enabled": True}}, of("ServiceMonitor", "spec.endpoints.0.port"), "http"),
    ({"serviceMonitor": {"enabled": True}}, of("ServiceMonitor", "spec.namespaceSelector.matchNames"), ["edge"]),
    ({"metrics": {"port": 9090}, "serviceMonitor": {"enabled": True}}, of("ServiceMonitor", "spec.endpoints.0.port"), "metrics"),
    # Probes.
    ({"livenessProbe": None}, container("livenessProbe"), None),
    ({"readinessProbe": None}, container("readinessProbe"), None),
    ({"startupProbe": None}, container("startupProbe"), None),
    ({}, container("livenessProbe.httpGet"), {"path": "/healthz", "port": "http"}),
    ({}, container("readinessProbe.httpGet"), {"path": "/readyz", "port": "http"}),
    ({}, container("startupProbe"), {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": 60}),
    # A handler of the values was merged with the default one, and Kubernetes refuses two.
    ({"livenessProbe": {"grpc": {"port": 8081}}}, container("livenessProbe"), {"grpc": {"port": 8081}, "periodSeconds": 10, "timeoutSeconds": 2}),
    ({"readinessProbe": {"httpGet": None, "tcpSocket": {"port": 1}}}, container("readinessProbe"), {"tcpSocket": {"port": 1}, "periodSeconds": 2, "timeoutSeconds": 2}),
    ({"readinessProbe": {"httpGet": {"path": "/other"}}}, container("readinessProbe.httpGet"), {"path": "/other", "port": "http"}),
    # How many, and where.
    ({"autoscaling": {"enabled": True}}, of("Deployment", "spec.replicas"), None),
    ({"autoscaling": {"enabled": True}}, lambda o: len(one(o, "HorizontalPodAutoscaler")["spec"]["metrics"]), 1),
    ({"podDisruptionBudget": {"enabled": False}}, lambda o: "PodDisruptionBudget" in kinds(o), False),
    ({"podDisruptionBudget": {"maxUnavailable": None, "minAvailable": 0}}, of("PodDisruptionBudget", "spec.minAvailable"), 0),
    ({"podDisruptionBudget": {"minAvailable": 1}}, lambda o: {k: v for k, v in one(o, "PodDisruptionBudget")["spec"].items() if k != "selector"}, {"minAvailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow"}),
    ({"podDisruptionBudget": {"minAvailable": "50%"}}, of("PodDisruptionBudget", "spec.minAvailable"), "50%"),
    ({"podDisruptionBudget": {"minAvailable": 1}, "replicaCount": 0}, of("PodDisruptionBudget", "spec.minAvailable"), 1),
    ({"podDisruptionBudget": {"minAvailable": 2}, "replicaCount": 1, "autoscaling": {"enabled": True, "minReplicas": 3}}, of("PodDisruptionBudget", "spec.minAvailable"), 2),
    ({"replicaCount": 1}, of("PodDisruptionBudget", "spec.maxUnavailable"), 1),
    ({}, of("PodDisruptionBudget", "spec.unhealthyPodEvictionPolicy"), "AlwaysAllow"),
    ({"podDisruptionBudget": {"unhealthyPodEvictionPolicy": ""}}, of("PodDisruptionBudget", "spec.unhealthyPodEvictionPolicy"), None),
    ({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"x": "y"}}}]}, spec("topologySpreadConstraints.0.matchLabelKeys"), None),
    ({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["own"]}]}, spec("topologySpreadConstraints.0.matchLabelKeys"), ["own"]),
    ({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"x": "y"}}}]}, spec("topologySpreadConstraints.0.labelSelector.matchLabels.x"), "y"),
    # Security.
    ({"serviceAccount": {"create": False}}, spec("serviceAccountName"), "default"),
    ({"serviceAccount": {"create": False, "name": "mine"}}, spec("serviceAccountName"), "mine"),
    ({"serviceAccount": {"create": False, "name": "mine"}}, lambda o: "ServiceAccount" in kinds(o), False),
    ({}, of("ServiceAccount", "automountServiceAccountToken"), False),
    ({"networkPolicy": {"enabled": True}}, of("NetworkPolicy", "spec.policyTypes"), ["Ingress", "Egress"]),
    ({"networkPolicy": {"enabled": True}}, of("NetworkPolicy", "spec.ingress.0"), {"ports": [{"port": "grpc", "protocol": "TCP"}], "from": [{"podSelector": {}}]}),
    ({"networkPolicy": {"enabled": True}}, of("NetworkPolicy", "spec.ingress.2.ports.0.port"), "http"),
    ({"networkPolicy": {"enabled": True, "grpcFrom": []}}, of("NetworkPolicy", "spec.ingress.0"), {"ports": [{"port": "grpc", "protocol": "TCP"}]}),
    ({"networkPolicy": {"enabled": True}}, of("NetworkPolicy", "spec.ingress.3"), {"ports": [{"port": "grpc", "protocol": "TCP"}], "from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "weir-test", "app.kubernetes.io/instance": "weir"}}}]}),
    ({"networkPolicy": {"enabled": True, "grpcFrom": []}}, lambda o: len(one(o, "NetworkPolicy")["spec"]["ingress"]), 3),
    ({"networkPolicy": {"enabled": True}}, of("NetworkPolicy", "spec.egress.1"), {"ports": [{"port": 6379, "protocol": "TCP"}]}),
    ({"networkPolicy": {"enabled": True, "egress": False}}, of("NetworkPolicy", "spec.policyTypes"), ["Ingress"]),
    ({"networkPolicy": {"enabled": True, "egress": False}}, of("NetworkPolicy", "spec.egress"), None),
    ({"store": "memory", "networkPolicy": {"enabled": True}}, lambda o: len(one(o, "NetworkPolicy")["spec"]["egress"]), 1),
    # The dashboard.
    ({}, lambda o: "ConfigMap" in kinds(o), False),
    ({"dashboard": {"enabled": True}}, of("ConfigMap", "metadata.labels.grafana_dashboard"), "1"),
    ({"dashboard": {"enabled": True}}, lambda o: json.loads(one(o, "ConfigMap")["data"]["weir.json"]), json.loads(read("deploy/grafana/weir.json"))),
]

# Where weir connects to, and the ports that the NetworkPolicy opens for it. The policy had 6379 for all of them.
RATELIMIT = {"mode": "ratelimit", "store": ""}

EGRESS = [
    ({"redis": {"url": "redis://redis"}}, [6379]),
    ({"redis": {"url": "redis://redis:6380"}}, [6380]),
    ({"redis": {"url": "rediss://user:p%40ss@[fd00::1]:6380/3"}}, [6380]),
    ({"redis": {"url": "redis+unix:///run/redis.sock?db=1"}}, []),
    ({"redis": {"url": "redis://a:7000,b:7001,c", "topology": "cluster"}}, [6379, 7000, 7001]),
    ({"redis": {"perSecond": {"url": "redis://seconds:6390"}}}, [6379, 6390]),
    ({"redis": {"url": "redis://a,b:26380", "topology": "sentinel", "sentinel": {"master": "m"}}, "networkPolicy": {"redisPorts": [6385]}}, [6385, 26379, 26380]),
    ({"redis": {"url": "redis://redis:6380"}, "networkPolicy": {"redisPorts": [6385]}}, [6380, 6385]),
    ({"store": "memory", "redis": {"url": "redis://redis:6380"}}, []),
    ({"store": "", "config": {"store": "redis", "redis": {"url": "redis://redis:6381"}}}, [6381]),
    ({"store": "", "env": variables(WEIR__STORE="redis", WEIR__REDIS__URL="redis://redis:6382")}, [6382]),
    ({"store": "", "extraArgs": ["--store", "redis", "--set", "redis.url=redis://redis:6383"]}, [6383]),
    ({"store": "", "extraArgs": ["--redis-url=redis://redis:6384"]}, [6384]),
    ({**RATELIMIT, "env": variables(REDIS_SOCKET_TYPE="tcp", REDIS_URL="redis:6380")}, [6380]),
    ({**RATELIMIT, "env": variables(REDIS_SOCKET_TYPE="unix", REDIS_URL="/run/redis.sock")}, []),
    ({**RATELIMIT, "env": variables(REDIS_TYPE="SENTINEL", REDIS_URL="master,s1:26379,s2:26380"), "networkPolicy": {"redisPorts": [6379]}}, [6379, 26379, 26380]),
    ({**RATELIMIT, "env": variables(REDIS_TYPE="CLUSTER", REDIS_URL="a:7000,b:7001")}, [7000, 7001]),
    ({**RATELIMIT, "env": variables(REDIS_URL="redis:6380", REDIS_PERSECOND="true", REDIS_PERSECOND_URL="seconds:6390")}, [6380, 6390]),
    ({**RATELIMIT, "env": variables(REDIS_URL="redis:6380", REDIS_PERSECOND_URL=SECRET)}, [6380]),
    ({"mode": "ratelimit", "env": variables(REDIS_URL=SECRET)}, [6379]),
    ({"mode": "serve", "env": variables(REDIS_URL="redis:6380")}, [6379]),
    ({**RATELIMIT, "env": variables(REDIS_URL=SECRET), "networkPolicy": {"redisPorts": [6380]}}, [6380]),
    ({**RATELIMIT, "env": variables(CONFIG_TYPE="GRPC_XDS_SOTW", CONFIG_GRPC_XDS_SERVER_URL="envoy-gateway:18001")}, [18001]),
    ({**RATELIMIT, "env": variables(CONFIG_TYPE="GRPC_XDS_SOTW", CONFIG_GRPC_XDS_SERVER_URL="dns:///control.example")}, [443]),
    ({**RATELIMIT, "env": variables(STATSD_HOST="statsd", STATSD_PORT="9125")}, [9125]),
    ({**RATELIMIT, "env": variables(STATSD_HOST="statsd")}, [8125]),
    ({"store": "memory", "config": {"policies": {"source": "xds", "xds": {"server": "control:18000"}}}}, [18000]),
    ({"store": "memory", "config": {"tracing": {"otlp": {"endpoint": "http://collector:4318/v1/traces"}}}}, [4318]),
    ({"store": "memory", "config": {"metrics.otlp.endpoint": "https://collector.example"}}, [443]),
    ({"store": "memory", "env": variables(HOST_IP={"fieldRef": {"fieldPath": "status.hostIP"}}, OTEL_EXPORTER_OTLP_ENDPOINT="http://$(HOST_IP):4317")}, [4317]),
    ({"store": "memory", "env": variables(OTEL_EXPORTER_OTLP_ENDPOINT="http://a:4317", OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="http://b:4319")}, [4317, 4319]),
    ({"store": "memory", "config": {"alerts": {"webhook_url": "https://hook.example:8443/x", "webhook_secret_file": "/s"}}}, [8443]),
    ({"store": "memory", "env": variables(WEIR__ALERTS__WEBHOOK_URL=SECRET), "networkPolicy": {"webhookPorts": [443]}}, [443]),
    ({"store": "memory", "config": {"statsd": {"address": "statsd:9125"}}}, [9125]),
    ({"store": "memory", "networkPolicy": {"xdsPorts": [1], "otlpPorts": [2], "statsdPorts": [3]}}, [1, 2, 3]),
    ({"store": "memory", "envFrom": [{"secretRef": {"name": "s"}}]}, []),
]

# What hooks do, where `what` takes all objects.
FILES = {"policies": {"files": {"a.yaml": {"domain": "a"}}}}


def check_job(path):
    return lambda objects: at(one(objects, "Job", "weir-check"), f"spec.template.spec.{path}")


def check_variables(*names):
    return lambda objects: [variable["value"] for name in names for variable in check_job("containers.0.env")(objects) if variable["name"] == name]


def test_pod(path):
    return lambda objects: at(one(objects, "Pod", "weir-test"), f"spec.containers.0.{path}")


SHOP = {"policies": {"files": {
    "shop.yaml": {"domain": "shop", "descriptors": [
        {"key": "closed", "rate_limit": "0/s"},
        {"key": "shut", "rate_limit": {"unit": "second", "requests_per_unit": 0}},
        {"key": "path", "value": "/pay", "rate_limit": "1/s"},
        {"key": "user", "rate_limit": "05/s"},
    ]},
    "text.yaml": "domain: other\ndescriptors: [{key: name, rate_limits: [{rate: 5/s}]}]\n",
}}}
TEST_TLS = {"tls": {"enabled": True, "existingSecret": "server", "clientCaKey": "ca.crt"}, "hooks": {"test": {"tls": {"existingSecret": "client"}}}}
CLIENT = ["--tls-ca-file", "/etc/weir/test-tls/ca.crt", "--tls-cert-file", "/etc/weir/test-tls/tls.crt", "--tls-key-file", "/etc/weir/test-tls/tls.key"]

HOOKS = [
    ({}, lambda o: at(one(o, "Job"), "metadata.annotations")["helm.sh/hook"], "pre-install,pre-upgrade"),
    # Objects of the release that the check may need are not there before an install.
    ({"extraObjects": [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}]}, lambda o: at(one(o, "Job"), "metadata.annotations")["helm.sh/hook"], "pre-upgrade"),
    ({}, check_job("containers.0.args"), ["check", "--config", "/etc/weir/config/weir.yaml"]),
    ({}, check_job("volumes.0"), {"name": "policies", "configMap": {"name": "mine"}}),
    # The ConfigMaps of the release still have the old policies and settings when the hook runs.
    (FILES, check_job("volumes.0.configMap"), {"name": "weir-check", "items": [{"key": "a.yaml", "path": "a.yaml"}]}),
    (FILES, check_job("volumes.1.configMap"), {"name": "weir-check", "items": [{"key": ".weir.yaml", "path": "weir.yaml"}]}),
    (FILES, lambda o: at(one(o, "ConfigMap", "weir-check"), "data"), {"a.yaml": "domain: a\n", ".weir.yaml": "{}\n"}),
    ({"config": {"shadow_mode": True}}, lambda o: at(one(o, "ConfigMap", "weir-check"), "data"), {".weir.yaml": "shadow_mode: on\n"}),
    ({"existingConfig": {"name": "other", "key": "k.yaml"}}, check_job("volumes.1.configMap"), {"name": "other"}),
    ({"existingConfig": {"name": "other", "key": "k.yaml"}}, check_job("containers.0.args.2"), "/etc/weir/config/k.yaml"),
    # `weir check` takes no `--set`: what the arguments set is in its variables, once.
    ({"extraArgs": ["--set", "redis.timeout=9ms", "--store", "memory"]}, check_variables("WEIR__REDIS__TIMEOUT", "WEIR__STORE"), ["9ms", "memory"]),
    ({"env": [{"name": "WEIR__NEAR_LIMIT_RATIO", "value": "0.7"}]}, check_variables("WEIR__NEAR_LIMIT_RATIO", "WEIR__STORE"), ["0.7", "redis"]),
    (FILES, lambda o: at(one(o, "ConfigMap", "weir-check"), "metadata.annotations"), {"helm.sh/hook": "pre-install,pre-upgrade", "helm.sh/hook-weight": "-1", "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded"}),
    ({"mode": "ratelimit", "env": [{"name": "MERGE_DOMAIN_CONFIG", "value": "true"}]}, check_job("containers.0.args"), ["check", "--compatible", "--merge-domains", "/etc/weir/policies"]),
    ({"mode": "ratelimit"}, check_job("containers.0.args"), ["check", "--compatible", "/etc/weir/policies"]),
    ({"mode": "ratelimit", "policies": {"enabled": False}}, lambda o: "Job" in kinds(o), False),
    ({"hooks": {"check": False}}, lambda o: "Job" in kinds(o), False),
    ({}, test_pod("args"), ["ask", "weir:8081", "helm-test", "helm=test"]),
    ({"tls": {"enabled": True, "existingSecret": "s"}, "service": {"grpcPort": 443}}, test_pod("args.1"), "https://weir:443"),
    ({"hooks": {"test": {"extraArgs": ["--json"]}}}, test_pod("args.4"), "--json"),
    # The test asks a domain of the policies, and a limit that has no fixed value and does not deny everything.
    (SHOP, test_pod("args"), ["ask", "weir:8081", "shop", "user=helm-test"]),
    ({**SHOP, "hooks": {"test": {"domain": "other"}}}, test_pod("args"), ["ask", "weir:8081", "other", "name=helm-test"]),
    ({**SHOP, "hooks": {"test": {"descriptor": "path=/a"}}}, test_pod("args"), ["ask", "weir:8081", "shop", "path=/a"]),
    ({"policies": {"files": {"a.yaml": {"domain": "empty", "descriptors": None}, "b.yaml": "- no policy"}}}, test_pod("args"), ["ask", "weir:8081", "empty", "helm=test"]),
    (TEST_TLS, test_pod("args.4"), "--tls-ca-file"),
    (TEST_TLS, test_pod("args"), ["ask", "https://weir:8081", "helm-test", "helm=test", *CLIENT]),
    (TEST_TLS, lambda o: at(one(o, "Pod", "weir-test"), "spec.volumes.1.secret.secretName"), "client"),
    ({"hooks": TEST_TLS["hooks"]}, test_pod("args"), ["ask", "weir:8081", "helm-test", "helm=test"]),
]

# What NOTES.txt says after an install, and where it does not.
NO_POLICY = "There is no NetworkPolicy"
NO_DOMAIN = "It asks the domain helm-test"
NO_CLIENT = "It needs a client's certificate: set hooks.test.tls.existingSecret"
NOTES = [
    ({}, {NO_POLICY: True, NO_DOMAIN: True, NO_CLIENT: False}),
    ({"networkPolicy": {"enabled": True}}, {NO_POLICY: False}),
    (SHOP, {NO_DOMAIN: False}),
    ({"tls": {"enabled": True, "existingSecret": "server", "clientCaKey": "ca.crt"}}, {NO_CLIENT: True}),
    (TEST_TLS, {NO_CLIENT: False}),
]

# Ports that the chart cannot know: it names the value to set.
UNKNOWN_PORTS = [
    ({"redis": {"url": "redis://a:26379", "topology": "sentinel", "sentinel": {"master": "m"}}}, "networkPolicy.redisPorts: required, because the chart cannot know the port: the sentinels"),
    ({"store": "", "env": variables(WEIR__REDIS__URL=SECRET)}, "networkPolicy.redisPorts: required, because the chart cannot know the port: the value of redis.url"),
    ({**RATELIMIT, "env": variables(REDIS_URL=SECRET)}, "networkPolicy.redisPorts: required, because the chart cannot know the port: the value of REDIS_URL"),
    ({**RATELIMIT, "env": variables(REDIS_URL="$(ADDRESS)")}, "the value of REDIS_URL"),
    ({**RATELIMIT, "env": variables(REDIS_URL="redis:6379", REDIS_PERSECOND="true", REDIS_PERSECOND_URL=SECRET)}, "the value of REDIS_PERSECOND_URL"),
    ({**RATELIMIT, "envFrom": [{"secretRef": {"name": "s"}}]}, "networkPolicy.redisPorts: required"),
    ({"store": "", "existingConfig": {"name": "mine"}}, "networkPolicy.redisPorts: required"),
    ({"store": "memory", "env": variables(WEIR__ALERTS__WEBHOOK_URL=SECRET)}, "networkPolicy.webhookPorts: required"),
    ({"store": "memory", "env": variables(OTEL_EXPORTER_OTLP_ENDPOINT=SECRET)}, "networkPolicy.otlpPorts: required"),
    ({"store": "memory", "config": {"tracing": {"exporter": "otlp"}}, "envFrom": [{"configMapRef": {"name": "c"}}]}, "networkPolicy.otlpPorts: required"),
    ({"store": "memory", "env": variables(CONFIG_TYPE="GRPC_XDS_SOTW", CONFIG_GRPC_XDS_SERVER_URL=SECRET), "mode": "ratelimit"}, "networkPolicy.xdsPorts: required"),
    ({"store": "memory", "config": {"policies": {"source": "xds"}}, "envFrom": [{"secretRef": {"name": "s"}}]}, "networkPolicy.xdsPorts: required"),
    ({"store": "memory", "mode": "ratelimit", "env": variables(STATSD_HOST="s", STATSD_PORT=SECRET)}, "networkPolicy.statsdPorts: required"),
]

# Values that the chart refuses, and a part of what it says.
REFUSED = [
    ({}, "policies.files: what is limited"),
    ({"policies": {"files": {"a.yaml": {}}, "existingConfigMap": "b"}}, "set one of the two"),
    ({"policies": {"files": {"a.json": {}}}}, "invalid propertyName 'a.json'"),
    ({**POLICIES, "config": {"redis": {"url": "redis://other"}}}, "redis.url is set by another value"),
    ({**POLICIES, "config": {"on_error": "deny"}}, "on_error is set by another value"),
    ({**POLICIES, "env": [{"name": "WEIR__ON_ERROR", "value": "deny"}]}, "WEIR__ON_ERROR is set by another value"),
    ({**POLICIES, "config": {"shadow_mode": True}, "existingConfig": {"name": "mine"}}, "set one of the two"),
    ({**POLICIES, "mode": "ratelimit", "config": {"shadow_mode": True}}, "no effect with mode=ratelimit"),
    ({**POLICIES, "tls": {"enabled": True}}, "tls.existingSecret: required"),
    ({**POLICIES, "tls": {"enabled": True, "existingSecret": "s", "clientNames": ["a"]}}, "needs tls.clientCaKey"),
    ({**POLICIES, "metrics": {"path": "/other"}}, "only with metrics.port"),
    ({**POLICIES, "service": {"type": "LoadBalancer"}}, "needs service.headless=false"),
    ({**POLICIES, "service": {"httpPort": None}, "serviceMonitor": {"enabled": True}}, "needs service.httpPort or metrics.port"),
    ({**POLICIES, "podDisruptionBudget": {"maxUnavailable": None}}, "podDisruptionBudget: set maxUnavailable or minAvailable"),
    ({**POLICIES, "redis": {"auth": {"username": "u"}}}, "redis.auth.username needs redis.auth.existingSecret"),
    ({**POLICIES, "redis": {"url": ""}}, "redis.url: where the limits live"),
    ({**POLICIES, "prometheusRule": {"enabled": True, "alerts": {"WeirSlwo": {"for": "1m"}}}}, "there is no alert WeirSlwo"),
    ({**POLICIES, "redis": {"adress": "redis://x"}}, "adress"),
    ({**POLICIES, "onError": "pass"}, "onError"),
    ({**POLICIES, "replicas": 3}, "replicas"),
    # These rendered, and weir or Kubernetes refused what came out.
    ({**POLICIES, "redis": {"topology": "sentinel"}}, "redis.sentinel.master: required with redis.topology=sentinel"),
    ({**POLICIES, "redis": {"sentinel": {"master": "m"}}}, "redis.sentinel.master needs redis.topology=sentinel"),
    ({**POLICIES, "redis": {"perSecond": {"url": "redis://a", "topology": "sentinel"}}}, "redis.perSecond.sentinel.master: required"),
    ({**POLICIES, "store": "", "config": {"store": "redis", "redis": {"topology": "sentinel"}}}, "redis.sentinel.master: required"),
    ({**POLICIES, "redis": {"url": "rediss://a", "tls": {"existingSecret": "s", "certKey": "c"}}}, "redis.tls.certKey and redis.tls.keyKey: set both or none"),
    ({**POLICIES, "redis": {"url": "rediss://a", "tls": {"existingSecret": "s", "keyKey": "k"}}}, "redis.tls.certKey and redis.tls.keyKey: set both or none"),
    ({**POLICIES, "redis": {"url": "rediss://a", "tls": {"certKey": "c", "keyKey": "k"}}}, "redis.tls.certKey needs redis.tls.existingSecret"),
    ({**POLICIES, "redis": {"tls": {"existingSecret": "s"}}}, "redis.tls has no effect without a redis.url that begins with rediss://"),
    ({**POLICIES, "config": {"policies": {"source": "xds"}}}, "policies.xds.server: required with policies.source=xds"),
    ({"policies": {"enabled": False}}, "policies.enabled=false needs policies.directory, or policies.source=xds"),
    ({**POLICIES, "config": {"redis": {"timout": "15ms"}}}, "config: redis.timout: no such setting, the nearest is redis.timeout"),
    ({**POLICIES, "config": {"shadowmode": True}}, "config: shadowmode: no such setting, the nearest is shadow_mode"),
    ({**POLICIES, "config": {"redsi": {"timeout": "15ms"}}}, "config: redsi: no such setting"),
    ({**POLICIES, "config": {"redsi": {}}}, "config: redsi: no such setting"),
    ({**POLICIES, "extraArgs": ["--set", "redis.timout=1s"]}, "extraArgs: redis.timout: no such setting"),
    ({**POLICIES, "env": variables(WEIR__REDIS__POOLSIZE="2")}, "env: WEIR__REDIS__POOLSIZE: no such setting, the nearest is WEIR__REDIS__POOL_SIZE"),
    ({**POLICIES, "env": variables(WEIR__SHADOW="on"), "mode": "ratelimit"}, "env: WEIR__SHADOW: no such setting"),
    # These rendered, and callers had plain text.
    ({**POLICIES, "tls": {"clientCaKey": "ca.crt"}}, "tls.clientCaKey needs tls.enabled"),
    ({**POLICIES, "tls": {"existingSecret": "s", "clientNames": ["a"]}}, "tls.clientNames needs tls.enabled"),
    # These rendered, and weir refused the value at its start.
    ({**POLICIES, "config": {"redis": {"timeout": "15"}}}, "'/config/redis/timeout': '15' does not match"),
    ({**POLICIES, "config": {"redis.timeout": 15}}, "'/config/redis.timeout': got number, want string"),
    ({**POLICIES, "config": {"shadow_mode": "maybe"}}, "'/config/shadow_mode': value must be one of"),
    ({**POLICIES, "config": {"redis": {"pool_size": 65}}}, "'/config/redis/pool_size': maximum: got 65, want 64"),
    ({**POLICIES, "config": {"statsd": {"mogrifiers": [{"pattern": "a"}]}}}, "'/config/statsd/mogrifiers': got array"),
    ({**POLICIES, "log": {"level": "verbose"}}, 'values: log.level: wrong value "verbose": '),
    ({**POLICIES, "log": {"level": "info,weir=debg"}}, 'values: log.level: wrong value "info,weir=debg": '),
    ({**POLICIES, "log": {"level": False}}, "'/log/level': got boolean, want string"),
    ({**POLICIES, "cores": 257}, "'/cores': maximum: got 257, want 256"),
    ({**POLICIES, "denyCache": {"maxAge": "5"}}, "'/denyCache/maxAge': '5' does not match"),
    ({**POLICIES, "env": variables(WEIR__SHADOW_MODE="maybe")}, 'env: WEIR__SHADOW_MODE: wrong value "maybe": '),
    ({**POLICIES, "env": variables(WEIR__NEAR_LIMIT_RATIO="1.5"), "mode": "ratelimit"}, 'env: WEIR__NEAR_LIMIT_RATIO: wrong value "1.5": '),
    ({**POLICIES, "extraArgs": ["--set", "redis.timeout=15"]}, 'extraArgs: redis.timeout: wrong value "15": '),
    ({**POLICIES, "extraArgs": ["--set=redis.pool_size=0"]}, 'extraArgs: redis.pool_size: wrong value "0": '),
    ({**POLICIES, "extraArgs": ["--store=disk"]}, 'extraArgs: store: wrong value "disk": '),
    ({**POLICIES, "extraArgs": ["--log-level", "debug"]}, "extraArgs: --log-level: weir serve has no such flag"),
    ({**POLICIES, "extraArgs": ["--set", "redis.queue=1", "debug"]}, "extraArgs: debug: weir serve has no such flag"),
    ({**POLICIES, "extraArgs": ["--set"]}, "extraArgs: --set needs a value"),
    ({**POLICIES, "extraArgs": ["--set", "redis.timeout"]}, "extraArgs: --set: write NAME=VALUE"),
    # With these the drain of a node did not end.
    ({**POLICIES, "replicaCount": 1, "podDisruptionBudget": {"minAvailable": 1}}, "podDisruptionBudget.minAvailable: 1 of 1 replicas lets no pod leave"),
    ({**POLICIES, "podDisruptionBudget": {"minAvailable": "51%"}}, "podDisruptionBudget.minAvailable: 51% of 2 replicas lets no pod leave"),
    ({**POLICIES, "podDisruptionBudget": {"maxUnavailable": 0}}, "podDisruptionBudget.maxUnavailable: 0 of 2 replicas lets no pod leave"),
    ({**POLICIES, "podDisruptionBudget": {"minAvailable": 2}, "replicaCount": 9, "autoscaling": {"enabled": True}}, "podDisruptionBudget.minAvailable: 2 of 2 replicas"),
    # With these weir kept fewer keys.
    ({**POLICIES, "memory": {"maxKeys": 1048577}}, "memory.maxKeys: 1048577 keys need a memory limit of 513 MiB, and resources.limits.memory is 512Mi"),
    ({**POLICIES, "memory": {"maxKeys": 10000}, "resources": {"limits": {"memory": 5000000}}}, "resources.limits.memory is 5000000, in which weir keeps 9765"),
    ({**POLICIES, "env": variables(WEIR__MEMORY__MAX_KEYS="3000000")}, "memory.maxKeys: 3000000 keys need a memory limit of 1465 MiB"),
    ({**POLICIES, "autoscaling": {"enabled": True, "minReplicas": 11}}, "autoscaling.minReplicas: 11 is above autoscaling.maxReplicas, which is 10"),
    ({**POLICIES, "livenessProbe": {"httpGet": {"path": "/x"}, "exec": {"command": ["x"]}}}, "livenessProbe: set one of exec and httpGet"),
    ({**POLICIES, "startupProbe": {"grpc": {"port": 1}, "tcpSocket": {"port": 1}}}, "startupProbe: set one of grpc and tcpSocket"),
]


def check_charts():
    promises = [(values, what, expected, False) for values, what, expected in PROMISES]
    promises += [(values, what, expected, True) for values, what, expected in HOOKS]
    for values, ports in EGRESS:
        policy = {"enabled": True, **values.get("networkPolicy", {})}
        promises.append(({**values, "networkPolicy": policy}, opened_ports, ports, False))
    promises = [(json.dumps([{**POLICIES, **values}, hooks], sort_keys=True), what, expected) for values, what, expected, hooks in promises]
    keys = {key: json.loads(key) for key, _, _ in promises}
    with ThreadPoolExecutor() as pool:
        releases = dict(zip(keys, pool.map(lambda key: helm(key[0], hooks=key[1]), keys.values())))
    for key, objects in releases.items():
        validate(objects, key)
        check_references(objects, key)
        check_security(objects, key)
        check_hooks(objects, key)
    for key, what, expected in promises:
        found = what(releases[key])
        check(found == expected, f"with {key}: {found!r} and not {expected!r}")
    refused = REFUSED + [({**POLICIES, **values, "networkPolicy": {"enabled": True}}, message) for values, message in UNKNOWN_PORTS]
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda one: helm(one[0], expect_failure=True), refused))
    for (values, message), said in zip(refused, answers):
        check(message in said, f"with {json.dumps(values)}: expected a refusal with {message!r}, not {said!r}")
    for values, _ in UNKNOWN_PORTS:
        helm({**POLICIES, **values, "networkPolicy": {"enabled": True, "egress": False}})

    check_notes()
    check(len(SAMPLES) > 9, f"the chart is tried with {len(SAMPLES)} sets of values")
    for file in SAMPLES:
        objects = helm(file, hooks=True)
        validate(objects, file.name)
        check_hooks(objects, file.name)
        objects = helm(file)
        check_references(objects, file.name)
        if file.name == "everything-values.yaml":
            check_every_value_has_an_effect(helm(file, hooks=True))
            check_rules_of_operator(objects)
        else:
            check_security(objects, file.name)
    check_pause()
    check_ai_gateway()


def check_notes():
    """`helm template` does not print NOTES.txt, so a copy of the chart has it as an object."""
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder) / "weir"
        shutil.copytree(CHART, chart)
        notes = (chart / "templates/NOTES.txt").read_text()
        (chart / "templates/notes.yaml").write_text('{{- define "notes" -}}' + notes + '{{- end -}}\nkind: Notes\nmetadata: {name: notes}\ntext: {{ include "notes" . | toJson }}\n')
        for values, expected in NOTES:
            text = one(helm({**POLICIES, **values}, chart=chart), "Notes")["text"]
            for sentence, there in expected.items():
                check((sentence in text) == there, f"NOTES.txt with {json.dumps(values)}: {sentence!r} is {'not there' if there else 'there'}")


def opened_ports(objects):
    """The ports that weir may reach, without those of DNS."""
    rules = one(objects, "NetworkPolicy")["spec"].get("egress", [])[1:]
    return sorted({port["port"] for rule in rules for port in rule["ports"]})


def check_pause():
    """weir serves for longer than a caller without health checks goes on to ask a pod that leaves."""
    pages = " ".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
    refresh = re.search(r"Callers ask DNS for the addresses again after some time: (\d+) s", re.sub(r"\s+", " ", pages))
    check(refresh is not None, "no page of docs/ has the time after which callers ask for addresses again")
    pause = yaml.safe_load(read("deploy/helm/weir/values.yaml"))["shutdown"]["pauseSeconds"]
    check(refresh is None or pause > int(refresh.group(1)), f"values.yaml: pauseSeconds is {pause}, and the documentation asks for more than {refresh and refresh.group(1)}")


def check_ai_gateway():
    """What Envoy AI Gateway's QuotaPolicy expects of its rate limit service."""
    objects = helm(ROOT / "deploy/envoy-ai-gateway/values.yaml")
    version = weir(objects)["image"].rsplit(":", 1)[1]
    check(version == yaml.safe_load(read("deploy/helm/weir/Chart.yaml"))["appVersion"], f"deploy/envoy-ai-gateway: the image has version {version}")
    name = "envoy-ai-gateway-ratelimit"
    for kind in ("Deployment", "Service"):
        check(one(objects, kind, name), f"deploy/envoy-ai-gateway: no {kind} {name}")
    port = at(one(objects, "Service"), "spec.ports.0")
    check((port["name"], port["port"], port["targetPort"]) == ("ratelimit", 8081, "grpc"), f"deploy/envoy-ai-gateway: the port is {port}")
    check(weir(objects)["args"] == ["ratelimit"], f"deploy/envoy-ai-gateway: weir runs with {weir(objects)['args']}")
    check(volume("policies")(objects) is None, "deploy/envoy-ai-gateway: policies of a file beside those of the control plane")
    found = env(objects)
    for variable, value in {
        "CONFIG_TYPE": "GRPC_XDS_SOTW",
        "CONFIG_GRPC_XDS_NODE_ID": name,
        "CONFIG_GRPC_XDS_SERVER_URL": "ai-gateway-controller.envoy-ai-gateway-system.svc.cluster.local:18002",
        "CONFIG_GRPC_XDS_SERVER_USE_TLS": None,
        "USE_STATSD": "false",
        "WEIR__LISTEN__GRPC": "0.0.0.0:8081",
    }.items():
        check(found.get(variable) == value, f"deploy/envoy-ai-gateway: {variable} is {found.get(variable)} and not {value}")


def check_starts():
    for file in SAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            check_start(file, Path(folder))
    check_flags()


def check_flags():
    """The chart knows the flags of `weir serve`."""
    done = subprocess.run([os.environ["WEIR"], "serve", "--help"], capture_output=True, text=True, check=True, timeout=START_SECONDS)
    flags = set(re.findall(r"^ +(--[a-z-]+) <", done.stdout, re.MULTILINE))
    known = set(re.findall(r"^(--[a-z-]+):", (CHART / "templates/_settings.tpl").read_text(), re.MULTILINE))
    check(flags == known, f"weir serve has the flags {sorted(flags)}, and the chart knows {sorted(known)}")


def check_start(file, folder):
    """weir listens with the arguments, variables and files that its container gets, and the two hooks pass."""
    program = os.environ["WEIR"]
    objects = helm(file, hooks=True)
    command, environment = place_container(objects, pod(objects), folder / "weir")
    environment |= {f"WEIR__LISTEN__{name}": "127.0.0.1:0" for name in ("GRPC", "HTTP", "ADMIN")}
    if "WEIR__LISTEN__METRICS" in environment:
        environment["WEIR__LISTEN__METRICS"] = "127.0.0.1:0"
    process = subprocess.Popen([program, *command], env=environment, stderr=subprocess.PIPE, text=True)
    lines = queue.Queue()
    threading.Thread(target=read_lines, args=(process.stderr, lines), daemon=True).start()
    log, address = [], None
    deadline = time.monotonic() + START_SECONDS
    try:
        while address is None and time.monotonic() < deadline:
            try:
                line = lines.get(timeout=1)
            except queue.Empty:
                continue
            if line is None:
                break
            log.append(line)
            if "listening" in line and re.search(r'listener"?[:=]"grpc"', line):
                address = re.search(r'address"?[:=]"([^"]+)"', line).group(1)
        check(address, f"{file.name}: weir does not start: {''.join(log)}")
        if address:
            check_asks(file, objects, address, folder)
    finally:
        process.kill()
        process.wait()
    job = one(objects, "Job")
    if job:
        command, environment = place_container(objects, job["spec"]["template"]["spec"], folder / "check")
        done = subprocess.run([program, *command], env=environment, capture_output=True, text=True, timeout=START_SECONDS)
        check(done.returncode == 0, f"{file.name}: the check before an install or upgrade ends with {done.returncode}: {done.stdout}{done.stderr}")


def check_asks(file, objects, address, folder):
    """`helm test` passes, and with client certificates not without one."""
    program, test = os.environ["WEIR"], one(objects, "Pod")
    arguments, environment = place_container(objects, test["spec"], folder / "test")
    check(arguments[0] == "ask", f"{file.name}: the test does not ask: {arguments}")
    scheme, _, place = arguments[1].rpartition("://")
    asked = [program, "ask", f"{scheme}://{address}" if scheme else address, *arguments[2:]]
    if scheme and "--tls-server-name" not in asked:
        asked += ["--tls-server-name", place.split(":")[0]]
    # There is no control plane here. Until it has sent policies, weir answers UNAVAILABLE.
    expected = 2 if file.name in ("xds-values.yaml", "ratelimit-xds-values.yaml") or file.parent.name == "envoy-ai-gateway" else 0
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=START_SECONDS)
    check(done.returncode == expected, f"{file.name}: helm test ends with {done.returncode}: {done.stdout}{done.stderr}")
    if "--tls-cert-file" in asked:
        shown = asked.index("--tls-cert-file")
        done = subprocess.run(asked[:shown] + asked[shown + 4 :], env=environment, capture_output=True, text=True, timeout=START_SECONDS)
        check(done.returncode == 2, f"{file.name}: helm test without a client's certificate ends with {done.returncode}: {done.stdout}{done.stderr}")


def read_lines(stream, lines):
    for line in stream:
        lines.put(line)
    lines.put(None)


def place_container(objects, spec, folder):
    """Arguments and variables of a pod's first container, with its volumes below a folder."""
    container = spec["containers"][0]
    write_volumes(objects, spec, container, folder)
    places = sorted((mount["mountPath"] for mount in container.get("volumeMounts") or []), key=len, reverse=True)

    def local(text):
        return re.sub("|".join(map(re.escape, places)), lambda place: f"{folder}{place.group()}", text) if places else text

    for config in (folder / "etc/weir/config").glob("*"):
        config.write_text(local(config.read_text()))
    # Values that Kubernetes takes from Secrets.
    secrets = {"REDIS_URL": "redis:6379", "WEIR__ALERTS__WEBHOOK_URL": "https://webhook.example:8443/alerts"}
    environment = {"PATH": os.environ["PATH"]}
    for variable in container.get("env", []):
        environment[variable["name"]] = local(variable.get("value") or secrets[variable["name"]])
    return [local(argument) for argument in container["args"]], environment


def write_volumes(objects, spec, container, folder):
    """The files of the container's volumes: those that the chart renders, and samples of those that an operator has."""
    volumes = {volume["name"]: volume for volume in spec.get("volumes") or []}
    paths = [text for text in [*container["args"], *(str(variable.get("value")) for variable in container.get("env", []))] if text.startswith("/")]
    for mount in container.get("volumeMounts") or []:
        place = folder / mount["mountPath"].lstrip("/")
        place.mkdir(parents=True)
        source = volumes[mount["name"]]
        if "configMap" in source:
            rendered = one(objects, "ConfigMap", source["configMap"]["name"])
            sample = {"policies": {"sample.yaml": "domain: sample\n"}, "config": {"settings.yaml": "store: memory\n"}}
            data = rendered.get("data") or sample[mount["name"]]
            items = source["configMap"].get("items") or [{"key": key, "path": key} for key in data]
            for item in items:
                (place / item["path"]).write_text(data[item["key"]])
        elif "persistentVolumeClaim" in source:
            (place / "sample.yaml").write_text("domain: sample\n")
        elif "secret" in source:
            items = {item["path"] for item in source["secret"].get("items", [])}
            names = items or {path.rsplit("/", 1)[1] for path in paths if path.startswith(mount["mountPath"] + "/")}
            for name in names:
                if name in ("password", "secret"):
                    (place / name).write_text("whsec_" + base64.b64encode(b"0" * 32).decode())
            if names - {"password", "secret"}:
                write_certificate(place, names)


def write_certificate(place, names):
    """A certificate, its key and its authority under the names of a Secret."""
    for name in names:
        if re.search(r"key($|\.)", name):
            kind = "key"
        else:
            kind = "authority" if re.search(r"^ca\.|-ca\.|authority|clients", name) else "certificate"
        (place / name).write_text(certificates()[kind])


@functools.cache
def certificates():
    """One certificate for weir, its callers and Redis, its key, and their authority, in PEM."""
    with tempfile.TemporaryDirectory() as made:

        def sign(name, *arguments):
            command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", f"/CN={name}"]
            files = ["-keyout", f"{made}/{name}.key", "-out", f"{made}/{name}"]
            subprocess.run([*command, *files, *arguments], check=True, capture_output=True, timeout=START_SECONDS)

        sign("authority")
        names = "subjectAltName=DNS:weir,DNS:envoy.example,DNS:marker.example"
        sign("weir", "-CA", f"{made}/authority", "-CAkey", f"{made}/authority.key", "-addext", names, "-addext", "basicConstraints=critical,CA:FALSE")
        files = {"authority": "authority", "certificate": "weir", "key": "weir.key"}
        return {kind: (Path(made) / file).read_text() for kind, file in files.items()}


def check_rules_of_operator(objects):
    groups = one(objects, "PrometheusRule")["spec"]["groups"]
    alerts = {rule.get("alert"): rule for group in groups for rule in group["rules"]}
    check("WeirOverLimitShareHigh" not in alerts, "an alert with `enabled: false` is still there")
    check(alerts["WeirSlow"]["annotations"]["runbook_url"].endswith("docs/operations.md#weirslow"), "a changed alert has lost its runbook")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": groups}, file)
        file.flush()
        try:
            done = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True, timeout=60)
            check(done.returncode == 0, f"promtool on the chart's PrometheusRule: {done.stdout}{done.stderr}")
        except FileNotFoundError:
            print("skipped: promtool on the chart's PrometheusRule, since promtool is missing")


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for line in read(page).splitlines():
        if line.startswith("#"):
            heading = line.lstrip("#").strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-"))
    return found


def check_alerts():
    page = read("docs/metrics.md")
    known = set(re.findall(r"^\| `(weir_\w+)` \|", page, re.MULTILINE))
    groups = yaml.safe_load(read("deploy/prometheus/weir.rules.yaml"))["groups"]
    tests = yaml.safe_load(read("tests/deploy/alerts.test.yaml"))["tests"]
    tested = {t["alertname"] for test in tests for t in test.get("alert_rule_test", []) if t["exp_alerts"]}
    quiet = {t["alertname"] for test in tests for t in test.get("alert_rule_test", []) if not t["exp_alerts"]}
    headings = anchors("docs/operations.md")
    rules = [rule for group in groups for rule in group["rules"]]
    listed = set(re.findall(r"^\| `(Weir\w+)` \|", read("deploy/README.md"), re.MULTILINE))
    check(listed == {rule["alert"] for rule in rules}, f"deploy/README.md lists {sorted(listed)}, and the rules have {[rule['alert'] for rule in rules]}")
    check(rules, "deploy/prometheus/weir.rules.yaml has no rules")
    for rule in rules:
        name = rule["alert"]
        url = rule["annotations"].get("runbook_url", "")
        path, _, anchor = url.partition("#")
        check(path == "docs/operations.md" and anchor in headings, f"{name}: its runbook_url {url} leads nowhere")
        check(anchor == name.lower(), f"{name}: its runbook_url {url} is not the section of its name")
        check(rule["labels"].get("severity") in ("warning", "critical"), f"{name}: its severity is neither warning nor critical")
        check({"summary", "description"} <= rule["annotations"].keys(), f"{name}: it needs a summary and a description")
        check(name in tested, f"{name}: no test in tests/deploy/alerts.test.yaml fires it")
        check(name in quiet, f"{name}: no test in tests/deploy/alerts.test.yaml expects that it does not fire")
        for metric in set(re.findall(r"\bweir_\w+", rule["expr"] + rule["annotations"]["description"])):
            check(re.sub(r"_(bucket|sum|count)$", "", metric) in known, f"{name}: docs/metrics.md has no metric {metric}")
    names = {rule["alert"] for rule in rules}
    for inhibit in yaml.safe_load(read("deploy/prometheus/inhibit_rules.yaml"))["inhibit_rules"]:
        for matcher in inhibit["source_matchers"] + inhibit["target_matchers"]:
            named = set(re.findall(r"Weir\w+", matcher))
            check(named and named <= names, f"deploy/prometheus/inhibit_rules.yaml: {matcher} names no alert, or one that does not exist")


def check_dashboard():
    """The dashboard shows metrics that exist. tests/service/metrics/dashboard.rs runs its queries."""
    page = read("docs/metrics.md")
    known = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    dashboard = json.loads(read("deploy/grafana/weir.json"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    check(len(queries) > 20, f"deploy/grafana/weir.json has {len(queries)} queries")
    for query in queries:
        for metric in re.findall(r"\b(?:weir|process)_\w+", query):
            check(re.sub(r"_(bucket|sum|count)$", "", metric) in known, f"deploy/grafana/weir.json: docs/metrics.md has no metric {metric}")
    mounts = yaml.safe_load(read("deploy/compose/compose.yaml"))["services"]["grafana"]["volumes"]
    shown = yaml.safe_load(read("deploy/compose/grafana/dashboards.yaml"))["providers"][0]["options"]["path"]
    check(f"../grafana/weir.json:{shown}/weir.json:ro" in mounts, "deploy/compose: Grafana does not load the dashboard")


def check_runbook():
    """Queries that an operator copies from the pages of docs/ are valid, and of metrics that exist."""
    page = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    known = {name for line in page.splitlines() if line.startswith("| `weir_") for name in re.findall(r"`(weir_\w+)`", line.split("|")[1])}
    queries = [line for block in re.findall(r"^```promql\n(.*?)^```", page, re.MULTILINE | re.DOTALL) for line in block.splitlines()]
    spans = (span.replace("\\|", "|") for line in page.splitlines() for span in re.findall(r"`([^`]+)`", line))
    queries += [span for span in spans if re.match(r"(sum|max|min|count|topk|rate|histogram_quantile)\b.*\(.*weir_", span)]
    check(len(queries) > 20, f"docs/ has {len(queries)} queries")
    for query in queries:
        for metric in re.findall(r"\bweir_\w+", query):
            check(re.sub(r"_(bucket|sum|count)$", "", metric) in known, f"docs/: no page has the metric {metric}: {query}")
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": [{"name": "runbook", "rules": rules}]}, file)
        file.flush()
        try:
            done = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True, timeout=60)
            check(done.returncode == 0, f"promtool on the queries of docs/: {done.stdout}{done.stderr}")
        except FileNotFoundError:
            print("skipped: promtool on the queries of docs/, since promtool is missing")


def check_manifests():
    for folder in ("deploy/kubernetes", "deploy/istio"):
        files = sorted((ROOT / folder).rglob("*.yaml"))
        objects = [o for file in files for o in documents(file.read_text()) if "kind" in o]
        validate(objects, folder)
        check_references(objects, folder)
        check_security(objects, folder)
        check(env(objects).get("WEIR__ON_ERROR") == "local", f"{folder}: on_error is not local")


def check_istio():
    """What Istio's patches name, by the manifests beside them."""
    objects = documents(read("deploy/istio/weir/service.yaml") + "---\n" + read("deploy/istio/weir/policies.yaml"))
    service, policies = one(objects, "Service"), one(objects, "ConfigMap")
    patches = yaml.safe_load(read("deploy/istio/gateway.yaml"))["spec"]["configPatches"]
    ask, actions = (patch["patch"]["value"] for patch in patches)
    config = ask["typed_config"]
    domains = {yaml.safe_load(text)["domain"]: yaml.safe_load(text) for text in policies["data"].values()}
    check(config["domain"] in domains, f"deploy/istio: no policy has the domain {config['domain']}")
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    cluster = config["rate_limit_service"]["grpc_service"]["envoy_grpc"]["cluster_name"]
    expected = f"outbound|{port}||{name}.default.svc.cluster.local"
    check(cluster == expected, f"deploy/istio: the cluster is {cluster} and not {expected}")
    limited = {(d["key"], d.get("value")) for d in domains[config["domain"]]["descriptors"]}
    sent = set()
    for action in (action for limit in actions["rate_limits"] for action in limit["actions"]):
        kind, fields = next(iter(action.items()))
        sent.add((fields.get("descriptor_key", kind), fields.get("descriptor_value")))
    check(sent == limited, f"deploy/istio: the gateway sends {sent}, and the policies have {limited}")
    return ask, actions


def check_envoy(ask, actions):
    """A real Envoy accepts the configuration of deploy/compose, and Istio's patches put into it."""
    envoy = Path(os.environ.get("WEIR_TEST_VENV", ROOT / "target/test-venv")) / "bin/envoy"
    if not envoy.exists():
        print(f"skipped: deploy/compose and deploy/istio in a real Envoy, since {envoy} is missing (scripts/test installs it)")
        return
    plain = yaml.safe_load(read("deploy/compose/envoy.yaml"))
    mesh = copy.deepcopy(plain)
    http = mesh["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    http["http_filters"][0] = ask
    http["route_config"]["virtual_hosts"][0]["rate_limits"] = actions["rate_limits"]
    cluster = ask["typed_config"]["rate_limit_service"]["grpc_service"]["envoy_grpc"]["cluster_name"]
    for known in mesh["static_resources"]["clusters"]:
        if known["name"] == "weir":
            known["name"] = known["load_assignment"]["cluster_name"] = cluster
    for where, config in {"deploy/compose/envoy.yaml": plain, "deploy/istio/gateway.yaml": mesh}.items():
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(config, file)
            file.flush()
            command = [str(envoy), "--mode", "validate", "--log-level", "error", "--config-path", file.name]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            check(done.returncode == 0, f"{where}: Envoy refuses it: {done.stdout}{done.stderr}")


def check_compose():
    services = yaml.safe_load(read("deploy/compose/compose.yaml"))["services"]
    check({"envoy", "weir", "redis", "prometheus", "grafana"} <= services.keys(), "deploy/compose: a service is missing")
    environment = services["weir"]["environment"]
    check(environment.get("WEIR__ON_ERROR") == "local", "deploy/compose: on_error is not local")
    check(services["weir"].get("read_only") is True and services["weir"].get("cap_drop") == ["ALL"], "deploy/compose: weir is not confined")
    for name, service in services.items():
        check("build" in service or re.search(r":v?[\d.]+$", service["image"]), f"deploy/compose: {name} has no version")
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            check(not source.startswith(".") or (ROOT / "deploy/compose" / source).exists(), f"deploy/compose: {name} mounts {source}, which is not there")


def check_restarts():
    """Envoy stops to ask a weir that ends within shutdown.pause, in which that weir still serves."""
    envoy = yaml.safe_load(read("deploy/compose/envoy.yaml"))
    weir = next(cluster for cluster in envoy["static_resources"]["clusters"] if cluster["name"] == "weir")
    pause = int(re.search(r"`shutdown.pause` \| `(\d+)s`", read("docs/configuration.md")).group(1))
    # Envoy applies a changed health after this window: 1 s by default.
    window = float(weir.get("common_lb_config", {}).get("update_merge_window", "1s").rstrip("s"))
    for health_check in weir.get("health_checks") or [{}]:
        seconds = {key: float(health_check.get(key, "inf").rstrip("s")) for key in ("interval", "no_traffic_interval", "timeout")}
        late = max(seconds["interval"], seconds["no_traffic_interval"]) + seconds["timeout"] + window
        check(late < pause, f"deploy/compose/envoy.yaml: Envoy sees after {late} s that weir ends, and shutdown.pause is {pause} s: {seconds}, merge window {window} s")
        check("grpc_health_check" in health_check and health_check.get("unhealthy_threshold") == 1, "deploy/compose/envoy.yaml: one gRPC check does not decide")


def check_envoy_gateway():
    """Both ways to install Envoy Gateway have the same image, and settings of weir in comments exist."""
    values = yaml.safe_load(read("deploy/envoy-gateway/values.yaml"))
    alone = yaml.safe_load(read("deploy/envoy-gateway/envoy-gateway.yaml"))
    image = values["global"]["images"]["ratelimit"]["image"]
    # Envoy Gateway's chart splits the name in front of the first slash and behind the colon.
    check(re.fullmatch(r"[^/:]+\.[^/:]+/[^:]+:[\w.]+", image), f"deploy/envoy-gateway: {image} has no registry or no version")
    other = alone["provider"]["kubernetes"]["rateLimitDeployment"]["container"]["image"]
    check(image == other, f"deploy/envoy-gateway: the images are {image} and {other}")
    version = re.search(r'^version = "(.*)"', read("Cargo.toml"), re.MULTILINE).group(1)
    check(image.endswith(f":{version}"), f"deploy/envoy-gateway: the image is {image}, and Cargo.toml has {version}")
    backends = values["config"]["envoyGateway"]["rateLimit"], alone["rateLimit"]
    check(backends[0] == backends[1], f"deploy/envoy-gateway: the backends are {backends}")
    for name in re.findall(r"WEIR__\w+", read("deploy/envoy-gateway/envoy-gateway.yaml")):
        check(f"`{name}`" in read("docs/configuration.md"), f"deploy/envoy-gateway: docs/configuration.md has no {name}")


def check_versions():
    """The chart, the images that deploy/ and the pages name, and the changelog are of the version of Cargo.toml."""
    version = re.search(r'^version = "(.*)"', read("Cargo.toml"), re.MULTILINE).group(1)
    chart = yaml.safe_load(read("deploy/helm/weir/Chart.yaml"))["appVersion"]
    check(chart == version, f"Chart.yaml: appVersion is {chart}, and Cargo.toml has {version}")
    check(f"\n## [{version}]" in read("CHANGELOG.md"), f"CHANGELOG.md has no section [{version}]")
    labels = set(re.findall(r"org\.opencontainers\.image\.(\w+)=", read("Dockerfile")))
    check(labels == {"title", "description", "source", "version", "revision", "licenses"}, f"Dockerfile: the labels are {sorted(labels)}")
    check(f"\nARG WEIR_VERSION={version}\n" in read("Dockerfile"), f"Dockerfile: WEIR_VERSION is not {version}")
    listed = subprocess.run(["git", "ls-files", "deploy", "docs", "README.md"], cwd=ROOT, check=True, capture_output=True, text=True)
    named = 0
    for path in listed.stdout.split():
        for found in re.findall(r"\bweir:(\d+\.\d+\.\d+)|app\.kubernetes\.io/version: \"?([\w.]+)|\bweir-(\d+\.\d+\.\d+)", read(path)):
            named += 1
            check(version in found, f"{path}: {''.join(found)}, and Cargo.toml has {version}")
    check(named > 10, f"deploy/ and docs/ name the version {named} times")


def check_release():
    """What is compiled into weir is listed as valid SPDX, and the script of a release starts."""
    with tempfile.NamedTemporaryFile(suffix=".spdx.json") as file:
        done = subprocess.run([ROOT / "scripts/sbom", file.name], capture_output=True, text=True, timeout=120)
        check(done.returncode == 0, f"scripts/sbom: {done.stderr}")
        if done.returncode == 0:
            document = parse_file(file.name)
            for message in validate_full_spdx_document(document):
                check(False, f"scripts/sbom: {message.validation_message}")
            names = {package.name for package in document.packages}
            check({"weir", "tonic", "ring"} <= names, "scripts/sbom lacks a crate that is compiled into weir")
            check(not {"proptest", "criterion"} & names, "scripts/sbom has crates of tests")
    check_licences()
    done = subprocess.run([ROOT / "scripts/release", "--help"], capture_output=True, text=True, timeout=60)
    check(done.returncode == 0 and "SHA256SUMS" in done.stdout, f"scripts/release --help: {done.stderr}")
    done = subprocess.run([ROOT / "scripts/release", "--no-such"], capture_output=True, text=True, timeout=60)
    check(done.returncode == 1 and "usage" in done.stderr, "scripts/release takes an argument that it does not know")
    jobs = yaml.safe_load(read(".github/workflows/release.yml"))["jobs"].values()
    check(any(step.get("run") == "scripts/release" for job in jobs for step in job["steps"]), "the workflow does not run scripts/release")
    publish = yaml.safe_load(read(".github/workflows/release.yml"))["jobs"]["publish"]
    check(publish["if"] == "startsWith(github.ref, 'refs/tags/v')" and publish["needs"] == "release", f"the workflow publishes without a tag or without tests: {publish}")
    check(any("release-work/*/publish" in step.get("run", "") for step in publish["steps"]), "the workflow does not run the commands of scripts/release that publish")


def check_licences():
    """Each crate of the SBOM has the text of its licence, and one without a text is named."""
    sys.path.insert(0, str(ROOT / "scripts"))
    loader = importlib.machinery.SourceFileLoader("licenses", str(ROOT / "scripts/licenses"))
    licenses = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(licenses)
    text = licenses.document()
    _, packages, edges = licenses.resolved()
    for package in (packages[to] for _, to, _ in edges if packages[to]["source"]):
        named = f"{package['name']} {package['version']}"
        line = re.search(rf"^{re.escape(named)}   .* texts? ([\d, ]+)$", text, re.MULTILINE)
        check(line, f"scripts/licenses has no line of {named}")
        for number in line.group(1).split(", ") if line else []:
            check(f"\ntext {number}\n" in text, f"scripts/licenses has no text {number} of {named}")
    check("<year>" not in text and "The Rust Standard Library" in text and "Rich Felker" in text, "scripts/licenses lacks a copyright")

    with tempfile.TemporaryDirectory() as folder:
        crate = {"name": "bare", "version": "1.0.0", "license": "ISC", "repository": "here", "manifest_path": f"{folder}/Cargo.toml", "authors": []}

        def refused(expected, elsewhere=None):
            licenses.ELSEWHERE = {"bare": elsewhere} if elsewhere else {}
            try:
                licenses.texts_of(crate, [crate, crate | {"name": "other", "repository": "there"}])
                check(False, f"scripts/licenses does not refuse: {expected}")
            except SystemExit as error:
                check(expected in str(error), f"scripts/licenses: {error}, and not {expected}")

        refused("bare 1.0.0 (ISC) ships no text")
        refused("bare has the licence ISC, and not MIT.txt", "MIT.txt")
        refused("other has another repository or licence than bare", "other")
        (Path(folder) / "LICENSE").write_text("text")
        refused("bare ships LICENSE now", "MIT.txt")


def check_unit():
    """The unit's files agree with each other and with the documentation; systemd-analyze looks at the rest."""
    for file in ("weir.service", "redis.conf", "tls.conf"):
        for name in re.findall(r"WEIR__\w+", read(f"deploy/systemd/{file}")):
            check(f"`{name}`" in read("docs/configuration.md"), f"deploy/systemd/{file}: docs/configuration.md has no {name}")
    for path, _ in leaves(yaml.safe_load(read("deploy/systemd/weir.yaml"))):
        check(f"`{'.'.join(path)}`" in read("docs/configuration.md"), f"deploy/systemd/weir.yaml: docs/configuration.md has no {'.'.join(path)}")


def main():
    part = sys.argv[1] if len(sys.argv) == 2 else ""
    if part == "charts":
        check_charts()
    elif part == "starts":
        check_starts()
    elif part == "files":
        check_alerts()
        check_dashboard()
        check_manifests()
        check_runbook()
        check_envoy(*check_istio())
        check_compose()
        check_restarts()
        check_envoy_gateway()
        check_unit()
        check_versions()
        check_release()
    else:
        raise SystemExit(__doc__)
    for problem in problems:
        print(problem, file=sys.stderr)
    raise SystemExit(1 if problems else 0)


main()
