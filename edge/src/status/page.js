"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const make = (name, text, kind) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  // The name of a language, not an address.
  const SVG = "http://www.w3.org/2000/svg";
  const svg = (name, attributes) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  // In memory only: gone with the tab, and never in a URL that is kept.
  let token = new URLSearchParams(location.hash.slice(1)).get("token") || "";
  if (location.hash) history.replaceState(null, "", location.pathname);

  const ask = async (method, path, body) => {
    const answer = await fetch(path, {
      method, body, cache: "no-store", credentials: "omit", redirect: "error",
      headers: { authorization: `Bearer ${token}`, "x-edgepass-actor": "status page" },
    });
    const said = answer.status === 204 ? {} : await answer.json().catch(() => ({}));
    if (!answer.ok) {
      const failure = new Error(said.detail || `the node answered ${answer.status}`);
      failure.status = answer.status;
      failure.said = said;
      throw failure;
    }
    return said;
  };

  const time = (ms) => ms == null ? "–" : ms < 1 ? `${Math.round(ms * 1000)} µs`
    : ms < 1000 ? `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
  const bytes = (n) => n == null ? "–" : n < 1048576 ? `${Math.round(n / 1024)} KiB` : `${Math.round(n / 1048576)} MiB`;
  const age = (s) => s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} min`
    : s < 86400 ? `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min` : `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
  const pairs = (into, list) => into.replaceChildren(...list.map(([name, value, kind]) => {
    const pair = make("div");
    pair.append(make("dt", name), make("dd", value, kind));
    return pair;
  }));

  // 10 µs to 10 s on a logarithmic scale.
  const place = (ms) => Math.max(0, Math.min(100, (Math.log10(Math.max(ms, 0.01)) + 2) / 6 * 100));
  const plot = (name, spent) => {
    const drawn = svg("svg", { role: "img", "aria-label": `${name}: median ${time(spent.p50_ms)}, 95 of 100 ${time(spent.p95_ms)}, 99 of 100 ${time(spent.p99_ms)}` });
    const [mid, most, late] = [spent.p50_ms, spent.p95_ms, spent.p99_ms].map((ms) => `${place(ms)}%`);
    drawn.append(svg("line", { class: "axis", x1: "0", x2: "100%", y1: "50%", y2: "50%" }));
    drawn.append(svg("line", { class: "span", x1: mid, x2: late, y1: "50%", y2: "50%" }));
    drawn.append(svg("circle", { class: "late", cx: most, cy: "50%", r: 4 }), svg("circle", { class: "mid", cx: mid, cy: "50%", r: 4 }));
    return drawn;
  };
  const drawTimes = (operations) => {
    const busy = operations.filter((operation) => operation.count > 0);
    at("times").replaceChildren(...busy.map((operation) => {
      const box = make("div", undefined, "op");
      box.dataset.operation = operation.name;
      const title = make("h3", operation.name);
      title.append(make("span", `${operation.per_second} per second`));
      box.append(title);
      for (const [name, spent] of [["in all", operation], ...operation.stages.map((stage) => [stage.name, stage])]) {
        const row = make("div", undefined, "line");
        const words = `${time(spent.p50_ms)} · ${time(spent.p95_ms)} · ${time(spent.p99_ms)}`;
        row.append(make("span", name, "name"), plot(`${operation.name}, ${name}`, spent), make("span", words, "words"));
        box.append(row);
      }
      return box;
    }));
    if (!busy.length) at("times").append(make("p", "No request in this time.", "empty"));
  };

  const drawFaults = (status) => {
    const of = (fault) => status.faults[fault] || 0;
    const all = ["none", "client", "platform", "node"].reduce((sum, fault) => sum + of(fault), 0);
    at("split").replaceChildren(...["none", "client", "platform", "node"].map((fault) => {
      const part = make("i", undefined, fault);
      part.style.flexGrow = of(fault);
      return part;
    }));
    at("split").setAttribute("aria-label", `${of("none")} answered well, ${of("client")} the client's, ${of("platform")} the platform's, ${of("node")} ours`);
    at("share").textContent = all ? `${(100 * of("none") / all).toFixed(1)} % answered as asked` : "";
    for (const fault of ["client", "platform", "node"]) {
      const found = status.outcomes.filter((outcome) => outcome.fault === fault).sort((a, b) => b.count - a.count);
      at(`fault-${fault}`).replaceChildren(...found.map((outcome) => {
        const row = make("li");
        row.append(make("span", `${outcome.outcome} (${outcome.operation})`), make("span", outcome.count));
        return row;
      }));
      if (!found.length) at(`fault-${fault}`).append(make("li", "nothing", "empty"));
    }
  };

  const drawRevisions = (revisions) => {
    const rows = revisions.revisions || [];
    at("timeline").replaceChildren(...rows.map((revision) => {
      const row = make("li", undefined, revision.state === "active" ? "active" : "");
      row.append(make("code", revision.digest.slice(0, 16)));
      if (revision.state) row.append(make("span", revision.state, `stamp ${revision.state === "canary" ? "canary" : /fail|reject/.test(revision.state) ? "bad" : ""}`));
      row.title = revision.digest;
      row.append(make("small", [revision.version && `version ${revision.version}`, revision.at, revision.by && `by ${revision.by}`, revision.reason].filter(Boolean).join(" · ")));
      return row;
    }));
    at("rollback").disabled = !revisions.can_roll_back;
  };

  const drawParts = (status) => {
    const table = (name, rows) => {
      const made = make("table");
      made.append(make("caption", name));
      const body = make("tbody");
      for (const [key, value] of rows) {
        const row = make("tr");
        const head = make("th", key.replaceAll("_", " "));
        head.scope = "row";
        row.append(head, make("td", typeof value === "number" && /bytes/.test(key) ? bytes(value) : String(value)));
        body.append(row);
      }
      made.append(body);
      return made;
    };
    const groups = new Map();
    for (const [name, value] of Object.entries(status.gauges)) {
      const [, part, rest] = name.match(/^edgepass_([a-z]+)_?(.*)$/) || [null, "other", name];
      if (!groups.has(part)) groups.set(part, []);
      groups.get(part).push([rest || part, Number.isInteger(value) ? value : Number(value.toPrecision(4))]);
    }
    const node = status.node;
    at("part-list").replaceChildren(
      table("pool", Object.entries(status.pool)),
      table("instances so far", Object.entries(status.instances)),
      table("process", [["memory_bytes", node.resident_bytes], ["open files", `${node.open_fds} of ${node.max_fds}`], ["processor seconds", node.cpu_seconds]]),
      table("events so far", Object.entries(status.events).filter(([, count]) => count > 0)),
      ...[...groups].map(([name, rows]) => table(name, rows)),
    );
  };

  const draw = (status) => {
    const active = status.revisions.active || {};
    const zone = (text) => text.toUpperCase().replace(/[^A-Z0-9<]/g, "<").padEnd(56, "<").slice(0, 56);
    at("zone").textContent = `${zone(`P<EDGEPASS<<${active.version || ""}<<${status.node.version}`)}\n${zone(active.digest || "")}`;
    pairs(at("identity"), [["Active revision", (active.digest || "none").slice(0, 16)], ["Component", active.version || "unnamed"], ["Commit", (active.commit || "unknown").slice(0, 12)],
      ["Node", status.node.version], ["Running for", age(status.node.uptime_seconds)]]);
    at("identity").querySelector("dd").id = "active";
    at("active").title = active.digest || "";
    at("window").textContent = `the last ${status.window_seconds} s`;
    const rate = status.operations.reduce((sum, operation) => sum + operation.per_second, 0);
    const ours = status.faults.node || 0;
    pairs(at("figures"), [["Answers per second", rate.toFixed(rate < 10 ? 1 : 0)], ["Under way", status.in_flight],
      ["Waiting for an instance", status.pool.waiting], ["Our faults", ours, ours ? "bad" : ""], ["Memory", bytes(status.node.resident_bytes)]]);
    drawTimes(status.operations);
    drawFaults(status);
    drawRevisions(status.revisions);
    drawParts(status);
  };

  const pulse = (words, kind) => {
    at("pulse").className = kind;
    at("pulse").textContent = words;
  };
  const show = (open) => {
    at("desk").hidden = !open;
    at("door").hidden = open;
  };
  let turn = 0;
  const look = async () => {
    const mine = ++turn;
    try {
      const status = await ask("GET", "/status");
      if (mine !== turn) return;
      show(true);
      draw(status);
      pulse("live", "live");
    } catch (failure) {
      if (mine !== turn) return;
      if (failure.status === 401) {
        token = "";
        show(false);
        pulse("not connected", "");
        at("refused").textContent = "The node does not take this token. It is the one line of admin.token in its state folder.";
        at("token").focus();
        return;
      }
      pulse(at("desk").hidden ? "the node does not answer" : "the node does not answer; these figures are old", "stale");
    }
    setTimeout(() => mine === turn && look(), 2000);
  };

  at("door").addEventListener("submit", (event) => {
    event.preventDefault();
    at("refused").textContent = "";
    token = at("token").value.trim();
    at("token").value = "";
    look();
  });

  const sure = (what, why, yes) => new Promise((decided) => {
    at("sure-what").textContent = what;
    at("sure-why").textContent = why;
    at("sure-yes").textContent = yes;
    at("sure").returnValue = "no";
    at("sure").addEventListener("close", () => decided(at("sure").returnValue === "yes"), { once: true });
    at("sure").showModal();
  });
  const change = async (doing, work) => {
    at("done").className = "";
    at("done").textContent = doing;
    try {
      at("done").textContent = await work();
    } catch (failure) {
      at("done").className = "bad";
      const reason = failure.said && failure.said.reason;
      at("done").textContent = `Nothing was changed: ${reason ? `${reason}: ` : ""}${failure.message}`;
    }
    look();
  };

  at("file").addEventListener("change", async () => {
    const file = at("file").files[0];
    if (!file) return;
    const yes = await sure("Swap the component?", `${file.name}, ${bytes(file.size)}. It is compiled, checked and tried before it takes requests; requests under way end where they began.`, "Swap");
    if (yes) {
      await change("Compiling and trying it…", async () => {
        const loaded = await ask("PUT", "/revisions", file);
        await ask("POST", `/revisions/${encodeURIComponent(loaded.digest)}/activate`, "{}");
        return `${loaded.digest.slice(0, 16)} is active.`;
      });
    }
    at("file").value = "";
  });
  at("rollback").addEventListener("click", async () => {
    if (await sure("Roll back?", "The revision before the active one takes all requests from now on.", "Roll back")) {
      await change("Rolling back…", async () => {
        await ask("POST", "/rollback", "{}");
        return "Rolled back.";
      });
    }
  });

  let after;
  const follow = async () => {
    while (at("log-box").open && token) {
      try {
        const kept = await ask("GET", after === undefined ? "/logs?limit=50" : `/logs?after=${after}`);
        after = kept.next;
        for (const line of kept.lines) {
          const { ts, level, target, ...rest } = line;
          at("lines").prepend(make("li", `${(ts || "").slice(11, 23)} ${level} ${Object.entries(rest).map(([key, value]) => `${key}=${value}`).join(" ")}`, level));
        }
        while (at("lines").children.length > 200) at("lines").lastChild.remove();
      } catch {
        await new Promise((later) => setTimeout(later, 2000));
      }
    }
  };
  at("log-box").addEventListener("toggle", () => at("log-box").open && follow());

  if (token) look();
  else at("token").focus();
})();
