"""Checks of deploy/ that need no cluster: what the chart renders, and that alerts and documentation agree.

    python tests/deploy/check.py charts    renders the chart; needs helm (its path in HELM)
    python tests/deploy/check.py files     everything else, without helm

Run by scripts/check-deploy. Each problem is a line; the exit status is 1 if there is one.
"""

import copy
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import kubernetes_validate
import yaml
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/weir"
HELM = os.environ.get("HELM", "helm")
# The oldest and the newest Kubernetes that manifests are checked against; the chart asks for the oldest at least.
KUBERNETES = ["1.25", "1.37"]
# Kinds of the Prometheus operator and of Istio, whose schemas are not among those of Kubernetes.
FOREIGN = {"ServiceMonitor", "PrometheusRule", "EnvoyFilter"}

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


def helm(*values, expect_failure=False):
    """The objects that the chart renders to, or with expect_failure the message of its refusal. Values are files or dicts."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [HELM, "template", "weir", str(CHART), "--namespace", "edge", "--kube-version", "1.32.0"]
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


def check_every_value_has_an_effect(everything):
    """Each value is tried with something else than its default, and what everything-values.yaml sets is seen in the output."""
    defaults = dict(leaves(yaml.safe_load(read("deploy/helm/weir/values.yaml"))))
    tried = [yaml.safe_load(file.read_text()) for file in sorted((CHART / "ci").glob("*.yaml"))]
    tried += [values for values, _, _ in PROMISES]
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
    ({}, spec("terminationGracePeriodSeconds"), 30),
    ({}, spec("topologySpreadConstraints.1.labelSelector.matchLabels"), {"app.kubernetes.io/name": "weir", "app.kubernetes.io/instance": "weir"}),
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
    ({"policies": {"enabled": False}}, volume("policies"), None),
    ({"policies": {"enabled": False}}, setting("WEIR__POLICIES__DIRECTORY"), None),
    ({"policies": {"files": {"a.yaml": {"domain": "a"}}}}, of("ConfigMap", "data"), {"a.yaml": "domain: a\n"}),
    ({"policies": {"files": {"a.yaml": "# text\ndomain: a\n"}}}, of("ConfigMap", "data"), {"a.yaml": "# text\ndomain: a\n"}),
    # Stores.
    ({"store": "memory"}, setting("WEIR__STORE"), "memory"),
    ({"store": "memory"}, setting("WEIR__REDIS__URL"), None),
    ({"store": "memory"}, setting("WEIR__ON_ERROR"), None),
    ({"store": ""}, setting("WEIR__STORE"), None),
    ({"store": ""}, setting("WEIR__REDIS__URL"), None),
    ({"store": "", "redis": {"auth": {"existingSecret": "s"}}}, volume("redis-auth"), None),
    ({"memory": {"maxKeys": None}}, setting("WEIR__MEMORY__MAX_KEYS"), None),
    ({"redis": {"auth": {"existingSecret": "s"}}}, setting("WEIR__REDIS__PASSWORD_FILE"), "/etc/weir/redis-auth/password"),
    ({"redis": {"tls": {"existingSecret": "s"}}}, setting("WEIR__REDIS__TLS__CA_FILE"), "/etc/weir/redis-tls/ca.crt"),
    ({"redis": {"tls": {"existingSecret": "s"}}}, setting("WEIR__REDIS__TLS__CERT_FILE"), None),
    ({"redis": {"tls": {"existingSecret": "s", "caKey": ""}}}, setting("WEIR__REDIS__TLS__CA_FILE"), None),
    ({"redis": {"tls": {"caKey": "x"}}}, setting("WEIR__REDIS__TLS__CA_FILE"), None),
    ({"redis": {"perSecond": {"url": ""}}}, setting("WEIR__REDIS__PER_SECOND__URL"), None),
    ({"denyCache": {"maxAge": "0s"}}, setting("WEIR__DENY_CACHE__MAX_AGE"), "0s"),
    # Settings.
    ({"existingConfig": {"name": "mine", "key": "other.yaml"}}, container("args"), ["serve", "--config", "/etc/weir/config/other.yaml"]),
    ({"existingConfig": {"name": "mine"}}, volume("config"), {"name": "config", "configMap": {"name": "mine"}}),
    ({"config": {"grpc": {"held_bytes": 67108864}, "shadow_mode": True}}, of("ConfigMap", "data"), {"weir.yaml": "grpc:\n  held_bytes: 67108864\nshadow_mode: on\n"}),
    ({"config": {"shadow_mode": False}}, of("ConfigMap", "data"), {"weir.yaml": "shadow_mode: off\n"}),
    ({"cores": 0}, setting("WEIR__RUNTIME__CORES"), "0"),
    ({"shutdown": {"pauseSeconds": 60, "graceSeconds": 120}}, spec("terminationGracePeriodSeconds"), 195),
    ({"listenAddress": "::", "ports": {"grpc": 1}}, setting("WEIR__LISTEN__GRPC"), "[::]:1"),
    # TLS of callers.
    ({"tls": {"enabled": True, "existingSecret": "s"}}, setting("WEIR__LISTEN__TLS__KEY_FILE"), "/etc/weir/tls/tls.key"),
    ({"tls": {"enabled": True, "existingSecret": "s"}}, setting("WEIR__LISTEN__TLS__CLIENT_CA_FILE"), None),
    ({"tls": {"enabled": True, "existingSecret": "s"}}, of("Service", "spec.ports.0.appProtocol"), "https"),
    ({"tls": {"enabled": False, "existingSecret": "s"}}, volume("tls"), None),
    # The Service.
    ({"service": {"headless": False}}, of("Service", "spec.clusterIP"), None),
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
    # How many, and where.
    ({"autoscaling": {"enabled": True}}, of("Deployment", "spec.replicas"), None),
    ({"autoscaling": {"enabled": True}}, lambda o: len(one(o, "HorizontalPodAutoscaler")["spec"]["metrics"]), 1),
    ({"podDisruptionBudget": {"enabled": False}}, lambda o: "PodDisruptionBudget" in kinds(o), False),
    ({"podDisruptionBudget": {"maxUnavailable": None, "minAvailable": 0}}, of("PodDisruptionBudget", "spec.minAvailable"), 0),
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
    ({"networkPolicy": {"enabled": True}}, of("NetworkPolicy", "spec.egress.1"), {"ports": [{"port": 6379, "protocol": "TCP"}]}),
    ({"networkPolicy": {"enabled": True, "egress": False}}, of("NetworkPolicy", "spec.policyTypes"), ["Ingress"]),
    ({"networkPolicy": {"enabled": True, "egress": False}}, of("NetworkPolicy", "spec.egress"), None),
    ({"store": "memory", "networkPolicy": {"enabled": True}}, lambda o: len(one(o, "NetworkPolicy")["spec"]["egress"]), 1),
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
    ({**POLICIES, "podDisruptionBudget": {"minAvailable": 1}}, "set one of maxUnavailable and minAvailable"),
    ({**POLICIES, "redis": {"auth": {"username": "u"}}}, "redis.auth.username needs redis.auth.existingSecret"),
    ({**POLICIES, "redis": {"url": ""}}, "redis.url: where the limits live"),
    ({**POLICIES, "prometheusRule": {"enabled": True, "alerts": {"WeirSlwo": {"for": "1m"}}}}, "there is no alert WeirSlwo"),
    ({**POLICIES, "redis": {"adress": "redis://x"}}, "adress"),
    ({**POLICIES, "onError": "pass"}, "onError"),
    ({**POLICIES, "replicas": 3}, "replicas"),
]


def check_charts():
    cache = {}
    for values, what, expected in PROMISES:
        values = {**POLICIES, **values}
        key = json.dumps(values, sort_keys=True)
        if key not in cache:
            cache[key] = helm(values)
            validate(cache[key], key)
            check_references(cache[key], key)
            check_security(cache[key], key)
        found = what(cache[key])
        check(found == expected, f"with {key}: {found!r} and not {expected!r}")
    for values, message in REFUSED:
        said = helm(values, expect_failure=True)
        check(message in said, f"with {json.dumps(values)}: expected a refusal with {message!r}, not {said!r}")

    for file in sorted((CHART / "ci").glob("*.yaml")):
        objects = helm(file)
        validate(objects, file.name)
        check_references(objects, file.name)
        if file.name == "everything-values.yaml":
            check_every_value_has_an_effect(objects)
            check_rules_of_operator(objects)
        else:
            check_security(objects, file.name)


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
    done = subprocess.run([ROOT / "scripts/release", "--help"], capture_output=True, text=True, timeout=60)
    check(done.returncode == 0 and "SHA256SUMS" in done.stdout, f"scripts/release --help: {done.stderr}")
    done = subprocess.run([ROOT / "scripts/release", "--no-such"], capture_output=True, text=True, timeout=60)
    check(done.returncode == 1 and "usage" in done.stderr, "scripts/release takes an argument that it does not know")
    jobs = yaml.safe_load(read(".github/workflows/release.yml"))["jobs"].values()
    check(any(step.get("run") == "scripts/release" for job in jobs for step in job["steps"]), "the workflow does not run scripts/release")


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
