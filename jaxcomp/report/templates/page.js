"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const made = (name, words = {}, space = "http://www.w3.org/1999/xhtml") => {
    const element = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(words)) element.setAttribute(key, value);
    return element;
  };
  const drawn = (name, words) => made(name, words, "http://www.w3.org/2000/svg");

  // Light or dark: what the system says, until somebody presses the button.
  const theme = document.getElementById("theme");
  const kept = (value) => {
    try {
      if (value) localStorage.setItem("jaxcomp-theme", value);
      return localStorage.getItem("jaxcomp-theme");
    } catch { return value; } // storage may be forbidden
  };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const show = () => { theme.textContent = isDark() ? "light" : "dark"; };
  if (kept()) root.dataset.theme = kept();
  theme.hidden = false;
  theme.setAttribute("aria-label", "switch between light and dark");
  theme.onclick = () => { root.dataset.theme = kept(isDark() ? "light" : "dark"); show(); };
  system.onchange = show;
  show();

  // The legend hides a curve in all figures of the page.
  const off = new Set();
  for (const button of all(".legend button")) {
    button.disabled = false;
    button.onclick = () => {
      const key = button.dataset.key;
      off.has(key) ? off.delete(key) : off.add(key);
      for (const one of all(".legend button")) one.setAttribute("aria-pressed", !off.has(one.dataset.key));
      for (const part of all("svg [data-key]")) part.classList.toggle("off", off.has(part.dataset.key));
    };
  }

  // Tables are sorted by a column at a press on its head. Their rows are looked up by
  // the figures below before that.
  const rowsOf = new Map();
  for (const table of all("table[id]")) {
    const rows = {};
    for (const row of table.tBodies[0].rows) (rows[row.dataset.key] ??= []).push(row);
    rowsOf.set(table.id, { heads: [...table.tHead.rows[0].cells].map((cell) => cell.textContent), rows });
  }
  const scale = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, PB: 1e15, ms: 1e-3, s: 1, min: 60, h: 3600 };
  const worth = (cell) => {
    if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
    const text = cell.textContent.trim().replaceAll(",", "");
    const parts = [...text.matchAll(/([-+]?[\d.]+(?:e[-+]?\d+)?)\s*([a-zA-Z]*)/g)];
    const isNumber = /^[-+\d.]/.test(text) && parts.length;
    return isNumber ? parts.reduce((sum, [, n, unit]) => sum + n * (scale[unit] ?? 1), 0) : NaN;
  };
  for (const table of all("table.sortable")) {
    all("thead th", table).forEach((head) => {
      const button = made("button", { type: "button" });
      button.append(...head.childNodes);
      head.append(button);
      button.onclick = () => {
        const place = head.cellIndex, body = table.tBodies[0];
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const order = ([a, , x], [b, , y]) => {
          if (Number.isNaN(a) || Number.isNaN(b)) { // words after numbers
            return Number.isNaN(a) - Number.isNaN(b) || (down ? -1 : 1) * x.localeCompare(y);
          }
          return down ? b - a : a - b;
        };
        const rows = [...body.rows].map((row) => [worth(row.cells[place]), row, row.cells[place].textContent]);
        for (const [, row] of rows.sort(order)) body.append(row);
      };
    });
  }

  // A pointer or the arrow keys move a cursor along the curves; the values are those of
  // the table behind the figure.
  const tip = document.getElementById("tip");
  const pointsOf = (svg) => all("g.series:not(.off)", svg).map((group) => {
    const path = group.querySelector(".line, .dots");
    const at = [...path.getAttribute("d").matchAll(/[ML]([-\d.]+) ([-\d.]+)/g)].map(([, x, y]) => [+x, +y]);
    const rows = group.dataset.rows?.split(" ").map(Number) ?? at.map((_, i) => i);
    return { key: group.dataset.key, label: group.dataset.label, slot: group.getAttribute("class"), at, rows, alone: path.matches(".dots") };
  });
  const clear = () => { tip.hidden = true; all(".cursor, .spot").forEach((mark) => mark.remove()); };
  const look = (svg, x, y = null) => {
    clear();
    let found = pointsOf(svg).map((curve) => {
      const away = curve.at.map(([a, b]) => (curve.alone && y !== null ? Math.hypot(a - x, b - y) : Math.abs(a - x)));
      const i = away.indexOf(Math.min(...away));
      return { ...curve, away: away[i], i, place: curve.at[i] };
    });
    if (!found.length) return null;
    const nearest = found.reduce((a, b) => (b.away < a.away ? b : a));
    if (nearest.alone) found = [nearest];
    const { heads, rows } = rowsOf.get(svg.dataset.table);
    const cells = (one) => [...rows[one.key][one.rows[one.i]].cells].map((cell) => cell.textContent);
    const across = +svg.dataset.x, value = +svg.dataset.y;
    const inner = svg.querySelector("svg");
    const roof = +inner.getAttribute("y"), floor = roof + +inner.getAttribute("height");
    const line = { class: "cursor", x1: nearest.place[0], x2: nearest.place[0], y1: roof, y2: floor };
    svg.append(drawn("line", line));
    const table = made("table"), head = table.insertRow().insertCell();
    head.colSpan = 3;
    head.textContent = `${heads[across]} ${cells(nearest)[across]}`;
    found.sort((a, b) => a.place[1] - b.place[1]);
    for (const one of found) {
      const texts = cells(one), row = table.insertRow(), mark = drawn("svg", { class: "swatch", viewBox: "0 0 22 10" });
      const group = drawn("g", { class: one.slot });
      group.append(drawn("path", { class: "line", d: "M1 5h20" }));
      mark.append(group);
      row.insertCell().append(mark);
      row.insertCell().textContent = one.label;
      const [low, high] = texts.slice(value + 1);
      row.insertCell().textContent = texts[value] + (low && low !== high ? ` (${low} – ${high})` : "");
      if (one.place[1] >= roof && one.place[1] <= floor) {
        svg.append(drawn("circle", { class: `spot ${one.slot.replace("series", "")}`, cx: one.place[0], cy: one.place[1], r: 4 }));
      }
    }
    tip.replaceChildren(table);
    tip.hidden = false;
    const box = svg.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const left = box.left + nearest.place[0] * box.width / svg.viewBox.baseVal.width;
    const beside = left + 14 + size.width < innerWidth ? left + 14 : left - 14 - size.width;
    tip.style.left = `${scrollX + Math.max(4, Math.min(beside, innerWidth - size.width - 4))}px`;
    // On a phone there is no room beside the figure, so the values stand above or below.
    const above = box.top - size.height - 4;
    const top = innerWidth > 640 ? box.top + 8 : above > 4 ? above : box.bottom + 4;
    tip.style.top = `${scrollY + Math.max(4, Math.min(top, innerHeight - size.height - 4))}px`;
    return nearest;
  };
  for (const svg of all("svg[data-table]")) {
    if (!svg.querySelector("g.series")) continue;
    let last = null;
    svg.setAttribute("tabindex", "0");
    svg.onpointermove = svg.onpointerdown = (event) => {
      const box = svg.getBoundingClientRect(), unit = svg.viewBox.baseVal.width / box.width;
      last = look(svg, (event.clientX - box.left) * unit, (event.clientY - box.top) * unit);
    };
    svg.onpointerleave = svg.onblur = () => { last = null; clear(); };
    svg.onkeydown = (event) => {
      if (event.key === "Escape") return clear();
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const places = pointsOf(svg).flatMap((curve) => curve.at.map(([x]) => x)).sort((a, b) => a - b);
      const now = last ? last.place[0] : step > 0 ? -Infinity : Infinity;
      const next = step > 0 ? places.find((x) => x > now) : places.findLast((x) => x < now);
      if (next !== undefined) last = look(svg, next);
    };
  }
})();
