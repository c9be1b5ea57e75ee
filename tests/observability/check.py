"""Prometheus and a running node: the names, the forms, the numbers.

Each check prints one line; the first that fails ends the run with what was seen.
"""

import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

PUBLIC, ADMIN, STATE, WORK = sys.argv[1:]
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "observability"
LOGINS, GARBAGE, VERIFIED = 7, 3, 5
passed = 0


def check(name, seen, expected=True):
    global passed
    if seen != expected:
        sys.exit(f"observability: {name}: {seen!r} instead of {expected!r}")
    passed += 1
    print(f"  ok  {name}", flush=True)


def ask(url, body=None, **head):
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data=data, headers={key.replace("_", "-"): value for key, value in head.items()})
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.headers, answer.read().decode()


def traffic():
    token = None
    for user in range(LOGINS):
        token = json.loads(ask(f"{PUBLIC}/api/login", {"code": f"user-{user}"})[2])["access_token"]
    for _ in range(GARBAGE):
        ask(f"{PUBLIC}/api/token/refresh", {"refresh_token": "no token"})
    for path in range(VERIFIED):
        ask(f"{PUBLIC}/api/verify/orders/{path}", authorization=f"Bearer {token}")


def family(name):
    return re.sub(r"_(bucket|sum|count|total)$", "", name)


def names_used():
    """Every metric that the dashboard and the rules name, and that a rule does not make itself."""
    dashboard = json.loads((DOCS / "dashboard.json").read_text())
    texts = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    check("the dashboard has its nine rows", sum(panel["type"] == "row" for panel in dashboard["panels"]), 9)
    rules = (DOCS / "alerts.yml").read_text()
    texts += re.findall(r"expr: (>\n(?:    .*\n)+|.*)", rules)
    recorded = set(re.findall(r"record: (\S+)", rules))
    found, unknown = set(), set()
    for text in texts:
        plain = re.sub(r'"[^"]*"', "", text)
        found |= set(re.findall(r"\b(?:edgepass|process)_[a-z0-9_]+", plain))
        unknown |= set(re.findall(r"edgepass:[a-z0-9_:]+", plain)) - recorded
    check("what is recorded by a rule has its rule", unknown, set())
    return found


def metrics():
    status, head, text = ask(f"{ADMIN}/metrics")
    check("metrics are open on the admin listener", status, 200)
    check("metrics are not on the public one", ask(f"{PUBLIC}/metrics")[0], 404)
    linted = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    check("promtool has nothing to say", (linted.returncode, linted.stdout + linted.stderr), (0, ""))
    form = ask(f"{ADMIN}/metrics", accept="application/openmetrics-text; version=1.0.0")
    check("OpenMetrics is told by name", form[1]["content-type"].split(";")[0], "application/openmetrics-text")
    check("OpenMetrics has its end", form[2].endswith("# EOF\n"))
    series = sum(1 for line in text.splitlines() if line and not line.startswith("#"))
    check(f"{series} series are less than 2000", series < 2000)
    there = {family(name) for name in re.findall(r"^# TYPE (\S+)", text, re.M)}
    # This node has its store in memory; those of Redis are read where there is one (`binary readiness::`).
    used = {name for name in names_used() if not name.startswith("edgepass_kv_redis_")}
    missing = sorted(name for name in used if family(name) not in there)
    check("every name in dashboard and rules exists", missing, [])


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def prometheus():
    with tempfile.TemporaryDirectory() as folder:
        config = (DOCS / "prometheus.yml").read_text()
        config = config.replace("127.0.0.1:9464", ADMIN.removeprefix("http://")).replace("15s", "200ms")
        pathlib.Path(folder, "prometheus.yml").write_text(config)
        pathlib.Path(folder, "alerts.yml").write_text((DOCS / "alerts.yml").read_text())
        address = f"127.0.0.1:{free_port()}"
        log = open(pathlib.Path(WORK, "prometheus.log"), "w")
        server = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            scraped(f"http://{address}")
        finally:
            server.terminate()
            server.wait(timeout=20)


def scraped(url):
    def value(expression):
        query = urllib.parse.urlencode({"query": expression})
        try:
            answer = json.loads(ask(f"{url}/api/v1/query?{query}")[2])
        except OSError:
            return None
        result = answer["data"]["result"]
        return float(result[0]["value"][1]) if result else None

    def reaches(expression, expected):
        for _ in range(300):
            seen = value(expression)
            if seen == expected:
                break
            time.sleep(0.1)
        check(f"{expression} is {expected}", seen, expected)

    reaches('up{job="edgepass"}', 1)
    reaches('sum(edgepass_outcomes_total{operation="login",outcome="ok"})', LOGINS)
    reaches('sum(edgepass_outcomes_total{operation="refresh",fault="client"})', GARBAGE)
    reaches('sum(edgepass_http_server_request_duration_seconds_count{route="/api/verify/*"})', VERIFIED)
    reaches('sum(edgepass_stage_duration_seconds_count{operation="login",stage="platform"})', LOGINS)
    reaches('edgepass_events_total{event="login.ok"}', LOGINS)
    reaches('edgepass_http_server_active_requests', 0)
    check("a login waits for its platform", value(
        'histogram_quantile(0.5, sum by (le) (edgepass_stage_duration_seconds_bucket{operation="login",stage="platform"}))') > 0)
    groups = json.loads(ask(f"{url}/api/v1/rules")[2])["data"]["groups"]
    rules = {rule["name"]: rule.get("lastError") for group in groups for rule in group["rules"]}
    check("rules are loaded and none fails", {name for name, fault in rules.items() if fault}, set())
    check("among them the error budget", "EdgepassErrorBudgetFast" in rules)
    targets = json.loads(ask(f"{url}/api/v1/targets")[2])["data"]["activeTargets"]
    check("the scrape has no error", [target["lastError"] for target in targets], [""])


def log():
    lines = [json.loads(line) for line in pathlib.Path(STATE, "err").read_text().splitlines()]
    check("every line of the log is an object with a time", all("ts" in line and "level" in line for line in lines))
    logins = [line for line in lines if line.get("event") == "login.ok"]
    check("what the component says are fields", len(logins), LOGINS)
    token = pathlib.Path(STATE, "admin.token").read_text().strip()
    status, _, text = ask(f"{ADMIN}/logs?limit=1000", authorization=f"Bearer {token}")
    kept = json.loads(text)
    check("the admin listener has them too", (status, sum(line.get("event") == "login.ok" for line in kept["lines"])), (200, LOGINS))
    worse = json.loads(ask(f"{ADMIN}/logs?level=warn&limit=1000", authorization=f"Bearer {token}")[2])["lines"]
    check("by level", {line["level"] for line in worse} <= {"warn", "error"} and len(worse) >= GARBAGE)
    check("the token is in no line", token in text, False)


traffic()
metrics()
prometheus()
log()
print(f"observability: {passed} checks")
