"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NS = "http://www.w3.org/2000/svg";
  const SHAPES = {
    diamond: "M0-7L7 0 0 7-7 0Z", circle: "M0-5.5A5.5 5.5 0 1 1 0 5.5 5.5 5.5 0 1 1 0-5.5Z", square: "M-5-5H5V5H-5Z",
    up: "M0-6.2L6 4.8H-6Z", down: "M0 6.2L6-4.8H-6Z", plus: "M-2-6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",
    cross: "M-5.6-3.2L-3.2-5.6 0-2.4 3.2-5.6 5.6-3.2 2.4 0 5.6 3.2 3.2 5.6 0 2.4-3.2 5.6-5.6 3.2-2.4 0Z",
    left: "M-6.2 0L4.8-6V6Z", right: "M6.2 0L-4.8-6V6Z",
  };
  const hidden = new Set();
  const show = { paper: false, runs: false };

  // Texts from records only ever become text nodes: nothing here makes markup from a string.
  const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(NS, name), attributes, children);
  const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
  function fill(element, attributes, children) {
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }
  const tint = (element, series) => {
    element.classList.add("s");
    element.style.setProperty("--c", series.light);
    element.style.setProperty("--d", series.dark);
    return element;
  };
  const number = (value, digits = 3) => value === null || value === undefined ? "–"
    : (Math.abs(value) >= 100 ? value.toFixed(1) : value.toFixed(digits)).replace("-", "−");

  // --- tooltip ---
  const tip = document.getElementById("tip");
  function hover(element, text) {
    element.setAttribute("tabindex", "0");
    element.setAttribute("role", "img");
    element.setAttribute("aria-label", text.replaceAll("\n", ", "));
    const place = () => {
      tip.textContent = text;
      tip.hidden = false;
      const box = element.getBoundingClientRect();
      const left = Math.min(box.right + 8, document.documentElement.clientWidth - tip.offsetWidth - 8);
      tip.style.left = `${Math.max(8, left) + window.scrollX}px`;
      tip.style.top = `${Math.max(8, box.top - tip.offsetHeight - 8) + window.scrollY}px`;
    };
    element.addEventListener("pointerenter", place);
    element.addEventListener("focus", place);
    for (const end of ["pointerleave", "blur"]) element.addEventListener(end, () => { tip.hidden = true; });
  }

  // --- axes ---
  const W = 340, H = 240, L = 46, R = 10, T = 8, B = 34;
  function linear(low, high, from, to) {
    if (low === high) { low -= 1; high += 1; }
    return Object.assign((value) => from + (value - low) / (high - low) * (to - from), { ticks: ticks(low, high) });
  }
  function logarithmic(low, high, from, to) {
    const a = Math.log10(low), b = Math.log10(high);
    const steps = b - a < 1.6 ? [1, 2, 5] : [1];
    const marks = [];
    for (let power = Math.floor(a); power <= Math.ceil(b); power++)
      for (const step of steps) { const mark = step * 10 ** power; if (mark >= low && mark <= high) marks.push(mark); }
    return Object.assign((value) => from + (Math.log10(Math.max(value, low)) - a) / (b - a || 1) * (to - from), { ticks: marks });
  }
  function ticks(low, high, wanted = 4) {
    const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= raw);
    const found = [];
    for (let k = Math.ceil(low / step); k * step <= high + 1e-12; k++) found.push(k * step);
    return found;
  }
  const short = (value) => Math.abs(value) >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M`
    : Math.abs(value) >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k` : `${+value.toPrecision(3)}`.replace("-", "−");
  function frame(x, y, xTitle) {
    const root = svg("svg", { viewBox: `0 0 ${W} ${H}` });
    for (const tick of y.ticks) root.append(svg("line", { class: "grid", x1: L, x2: W - R, y1: y(tick), y2: y(tick) }),
      svg("text", { x: L - 5, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
    for (const tick of x.ticks) root.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: T, y2: H - B }),
      svg("text", { x: x(tick), y: H - B + 14, "text-anchor": "middle" }, short(tick)));
    root.append(svg("path", { class: "axis", d: `M${L} ${T}V${H - B}H${W - R}`, fill: "none" }),
      svg("text", { x: (L + W - R) / 2, y: H - 4, "text-anchor": "middle" }, xTitle));
    return root;
  }
  const span = (values, pad) => { const a = Math.min(...values), b = Math.max(...values); return [a - (b - a) * pad, b + (b - a) * pad]; };
  const panel = (title, root) => html("figure", { class: "panel" }, html("figcaption", {}, title), root);

  // --- reward against tail ---
  const plot = document.getElementById("plot");
  function drawPlot() {
    if (!plot) return;
    plot.replaceChildren(...data.tasks.map((task) => {
      const points = data.points.filter((p) => p.task === task.id && !hidden.has(p.series));
      const printed = show.paper ? data.paper.filter((p) => p.task === task.id && !hidden.has(p.series)) : [];
      const runs = show.runs ? data.runs.filter((r) => r.task === task.id && r.usable && !hidden.has(r.series)) : [];
      const all = [...points, ...printed, ...runs];
      if (!all.length) return panel(task.label, html("p", { class: "lead" }, "Nothing to show."));
      const xs = all.flatMap((p) => [p.cvar, p.cvarLow, p.cvarHigh]).concat(task.limit).filter((v) => v > 0);
      if (!xs.length) xs.push(1);  // a log axis has no place for costs that are all 0
      const ys = all.flatMap((p) => [p.ret, p.retLow, p.retHigh]).filter((v) => v !== null && v !== undefined);
      const x = logarithmic(Math.min(...xs) / 1.3, Math.max(...xs) * 1.3, L, W - R);
      const y = linear(...span(ys, 0.08), H - B, T);
      const root = frame(x, y, "CVaR@95 of cost per step (log)");
      if (task.limit > 0) root.append(svg("line", { class: "limit", x1: x(task.limit), x2: x(task.limit), y1: T, y2: H - B }));
      const front = points.filter((p) => p.frontier).sort((a, b) => a.cvar - b.cvar);
      if (front.length > 1) root.append(svg("path", { class: "front", d: "M" + front.map((p) => `${x(p.cvar)} ${y(p.ret)}`).join("L") }));
      for (const run of runs) root.append(dot(run, x, y));
      for (const p of printed) root.append(marker(p, x, y, true));
      for (const p of [...points].reverse()) root.append(marker(p, x, y, false));  // the first series on top
      return panel(task.label, root);
    }));
  }
  function dot(run, x, y) {
    const series = data.series[run.series];
    const root = tint(svg("circle", { cx: x(run.cvar), cy: y(run.ret), r: 2.6, fill: "currentColor", opacity: 0.55 }), series);
    hover(root, `${series.label}, seed ${run.seed}\nReturn ${number(run.ret, 2)}\nCVaR@95 ${number(run.cvar)}`);
    return root;
  }
  function marker(p, x, y, printed) {
    const series = data.series[p.series];
    const group = tint(svg("g", { class: "mark" }), series);
    if (!printed && p.retLow !== null) group.append(svg("path", {
      d: `M${x(p.cvarLow)} ${y(p.ret)}H${x(p.cvarHigh)}M${x(p.cvar)} ${y(p.retLow)}V${y(p.retHigh)}`, stroke: "currentColor", opacity: 0.6 }));
    group.append(svg("path", { class: "shape", d: SHAPES[series.shape], transform: `translate(${x(p.cvar)} ${y(p.ret)})`,
      fill: printed || !(p.frontier || p.aside) ? "var(--card)" : "currentColor", stroke: "currentColor", "stroke-width": 1.8,
      ...(printed ? { "stroke-dasharray": "2.5 2", "fill-opacity": 0.4 } : p.aside ? { "fill-opacity": 0.3 } : {}) }));
    const about = printed ? "the paper's mean" : `${p.seeds} of ${p.expected} seeds${p.frontier ? ", not dominated" : p.aside ? ", not in the paper" : ""}`;
    const interval = (low, high, digits) => low === null || low === undefined ? "" : ` [${number(low, digits)}, ${number(high, digits)}]`;
    hover(group, `${series.label} (${about})\nReturn ${number(p.ret, 2)}${interval(p.retLow, p.retHigh, 2)}\nCVaR@95 ${number(p.cvar)}${interval(p.cvarLow, p.cvarHigh)}\nCost ${number(p.cost)}`);
    return group;
  }

  // --- curves ---
  const curves = document.getElementById("curves");
  const quantity = document.getElementById("quantity");
  function drawCurves() {
    if (!curves) return;
    const chosen = data.curves[quantity.value];
    curves.replaceChildren(...data.tasks.map((task) => {
      const lines = chosen.lines.filter((line) => line.task === task.id && !hidden.has(line.series));
      if (!lines.length) return panel(task.label, html("p", { class: "lead" }, "Nothing to show."));
      const x = linear(0, Math.max(...lines.map((line) => line.x.at(-1))), L, W - R);
      const ys = lines.flatMap((line) => line.mean.flatMap((m, i) => [m - line.spread[i], m + line.spread[i]]));
      const y = linear(...span(ys, 0.04), H - B, T);
      const root = frame(x, y, "environment steps");
      for (const line of [...lines].reverse()) root.append(curve(line, x, y));
      return panel(task.label, root);
    }));
    document.getElementById("curves-note").textContent = chosen.note;
  }
  function curve(line, x, y) {
    const series = data.series[line.series];
    const group = tint(svg("g"), series);
    const along = (values) => values.map((v, i) => `${x(line.x[i]).toFixed(1)} ${y(v).toFixed(1)}`);
    const low = along(line.mean.map((m, i) => m - line.spread[i])).reverse(), high = along(line.mean.map((m, i) => m + line.spread[i]));
    const main = svg("path", { d: "M" + along(line.mean).join("L"), fill: "none", stroke: "currentColor",
      "stroke-width": series.main ? 2.4 : 1.5, "stroke-dasharray": series.dash });
    group.append(svg("path", { d: `M${high.join("L")}L${low.join("L")}Z`, fill: "currentColor", opacity: 0.13 }), main);
    hover(main, `${series.label}\nat the end ${number(line.mean.at(-1))} ± ${number(line.spread.at(-1))}`);
    return group;
  }

  // --- toggles ---
  function legend(place) {
    place.prepend(...data.series.map((series, index) => {
      const icon = tint(svg("svg", { width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true" },
        svg("path", { d: SHAPES[series.shape], fill: "currentColor" })), series);
      const button = html("button", { class: "toggle", type: "button", "aria-pressed": "true", "data-series": index }, icon, series.label);
      button.addEventListener("click", () => {
        if (hidden.has(index)) hidden.delete(index); else hidden.add(index);
        for (const twin of document.querySelectorAll(`[data-series="${index}"]`)) twin.setAttribute("aria-pressed", String(!hidden.has(index)));
        drawPlot();
        drawCurves();
      });
      return button;
    }));
  }
  for (const place of document.querySelectorAll(".legend")) legend(place);
  for (const button of document.querySelectorAll("[data-show]")) button.addEventListener("click", () => {
    show[button.dataset.show] = !show[button.dataset.show];
    button.setAttribute("aria-pressed", String(show[button.dataset.show]));
    drawPlot();
  });
  if (quantity) quantity.addEventListener("change", drawCurves);

  // --- sorting ---
  const key = (row, column) => { const cell = row.cells[column]; return cell.dataset.v !== undefined ? Number(cell.dataset.v) : cell.textContent; };
  function compare(a, b) {
    const first = typeof a === "number", second = typeof b === "number";
    if (first && second) return a - b;
    return first === second ? String(a).localeCompare(String(b), undefined, { numeric: true }) : first ? -1 : 1;
  }
  function sortable(table) {
    table.querySelectorAll("thead th").forEach((head, column) => {
      const button = html("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = table.tBodies[0];
        body.querySelectorAll(".detail").forEach((row) => row.remove());
        for (const row of body.rows) row.removeAttribute("aria-expanded");
        table.classList.add("sorted");
        const blank = (row) => row.cells[column].textContent.startsWith("–");
        const rows = [...body.rows].sort((a, b) => blank(a) - blank(b) || (up ? 1 : -1) * compare(key(a, column), key(b, column)));
        body.append(...rows);
      });
    });
  }

  // --- runs, down to single episodes ---
  const runsTable = document.getElementById("runs-table");
  const search = document.getElementById("runs-search");
  function runRow(run, index) {
    const cells = [[run.id], [run.seed, run.seed], [run.state], [number(run.ret, 2), run.ret], [number(run.cost), run.cost],
      [number(run.cvar), run.cvar], [number(run.safety, 2), run.safety], [number(run.share, 3), run.share]];
    const row = html("tr", { tabindex: "0", "data-run": index }, ...cells.map(([text, value], column) => html("td",
      { ...(column ? { class: "n" } : {}), ...(value === null || value === undefined ? {} : { "data-v": value }) }, String(text))));
    const open = () => toggleRun(row, run);
    row.addEventListener("click", open);
    row.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); } });
    return row;
  }
  function toggleRun(row, run) {
    if (row.getAttribute("aria-expanded") === "true") { row.nextSibling.remove(); row.removeAttribute("aria-expanded"); return; }
    row.setAttribute("aria-expanded", "true");
    const parts = run.problems.map((text) => html("p", {}, text));
    if (run.episodes.length) parts.push(strip(run), episodes(run));
    parts.push(html("h3", {}, "Command"), html("pre", {}, html("code", {}, run.command)));
    parts.push(html("p", { class: "caption" }, `protocol ${run.protocol} · revision ${run.revision || "unknown"} · device ${run.device || "unknown"} · Python ${run.python || "unknown"}${run.differs ? ` · other than the paper's preset: ${run.differs}` : ""}`));
    row.after(html("tr", { class: "detail" }, html("td", { colspan: "8" }, ...parts)));
  }
  function strip(run) {
    const rates = run.episodes.map((e) => e[2]);
    const x = linear(0, Math.max(...rates, run.limit) * 1.05 || 1, 8, 392);
    const root = svg("svg", { class: "strip", viewBox: "0 0 400 52", role: "img", "aria-label": "cost per step of each episode against the limit" });
    root.append(svg("path", { class: "axis", d: "M8 34H392" }), svg("line", { class: "limit", x1: x(run.limit), x2: x(run.limit), y1: 6, y2: 38 }));
    for (const tick of x.ticks) root.append(svg("text", { x: x(tick), y: 48, "text-anchor": "middle" }, short(tick)));
    for (const e of run.episodes) {
      const mark = tint(svg("circle", { cx: x(e[2]), cy: 24, r: 4, fill: "currentColor", opacity: 0.55 }), data.series[run.series]);
      hover(mark, `episode ${e[0]}\nCost ${number(e[2], 4)} per step\nReturn ${number(e[1], 2)}`);
      root.append(mark);
    }
    return root;
  }
  function episodes(run) {
    const heads = ["Episode seed", "Return", "Cost per step", "Within limit", "Native cost", "Boundary hits", "Length"];
    const rows = run.episodes.map((e) => html("tr", {}, ...[[e[0], e[0]], [number(e[1], 2), e[1]], [number(e[2], 4), e[2]],
      [e[2] <= run.limit ? "yes" : "no"], [number(e[3], 1), e[3]], [number(e[4], 0), e[4]], [e[5], e[5]]].map(([text, value]) =>
      html("td", { class: "n", ...(value === undefined ? {} : { "data-v": value }) }, String(text)))));
    const table = html("table", {}, html("thead", {}, html("tr", {}, ...heads.map((h) => html("th", { class: "n" }, h)))), html("tbody", {}, ...rows));
    sortable(table);
    return html("div", { class: "scroll" }, table);
  }
  function drawRuns() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = data.runs.map((run, index) => [run, index]).filter(([run]) => {
      const text = `${run.id} ${data.series[run.series].label} ${run.state}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    runsTable.tBodies[0].replaceChildren(...found.map(([run, index]) => runRow(run, index)));
    for (const head of runsTable.querySelectorAll("th")) head.removeAttribute("aria-sort");
    document.getElementById("runs-count").textContent = `${found.length} of ${data.runs.length} runs`;
  }

  for (const table of document.querySelectorAll("table.sortable")) sortable(table);
  if (runsTable) { drawRuns(); search.addEventListener("input", drawRuns); }
  drawPlot();
  drawCurves();
  document.body.dataset.ready = "yes";
})();
