"use strict";
// Pages are complete without this script, which adds a theme switch, the reader's own time, tables
// that can be sorted, values under the pointer, and details that open when a link leads to them.
(() => {
  const root = document.documentElement;
  const make = (name, of = {}) => Object.assign(document.createElement(name), of);

  // ------------------------------------------------------------------------------- light and dark
  const theme = document.getElementById("theme");
  const kept = (value) => {  // a page opened from a file may have no storage
    try {
      if (value === undefined) return localStorage.getItem("theme") || "";
      localStorage.setItem("theme", value);
    } catch { return ""; }
    return value;
  };
  const colour = (value) => { if (value) root.dataset.theme = value; else delete root.dataset.theme; };
  theme.value = kept();
  colour(theme.value);
  theme.parentElement.hidden = false;
  theme.addEventListener("change", () => { colour(theme.value); kept(theme.value); });

  // -------------------------------------------------------------------- times by the reader's clock
  const two = (value) => String(value).padStart(2, "0");
  document.querySelectorAll("time[datetime]").forEach((each) => {
    const at = new Date(each.dateTime);
    if (Number.isNaN(at.valueOf())) return;
    each.title = each.textContent;
    each.textContent = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`
      + ` ${two(at.getHours())}:${two(at.getMinutes())}`;
  });

  // ------------------------------------------------------------------------ tables sorted by a click
  // A cell's data-value comes before its text. Cells without a value stay last in both directions.
  const valued = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim().replaceAll(",", "");
    return text === "" || text === "–" ? null : Number.isNaN(Number(text)) ? text : Number(text);
  };
  document.querySelectorAll("table.sortable").forEach((table) => {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (!head.textContent.trim()) return;
      const button = make("button", { type: "button" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
        [...table.tHead.rows[0].cells].forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up > 0 ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows].map((row) => [valued(row, column), row]);
        rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null)
          : typeof a === typeof b ? up * (a < b ? -1 : a > b ? 1 : 0)
          : typeof a === "number" ? -1 : 1);
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  });

  // ------------------------------------------------------------------------------ links to details
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target.scrollIntoView({ block: "start" });
    const summary = target.querySelector("summary");
    if (summary) summary.focus({ preventScroll: true });
  };
  window.addEventListener("hashchange", reveal);
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link && link.getAttribute("href") === location.hash) reveal();
  });
  reveal();

  // On paper everything is open; afterwards what was closed is closed again.
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((each) => { each.open = true; });
  });
  window.addEventListener("afterprint", () => { opened.forEach((each) => { each.open = false; }); });

  // --------------------------------------------------------------------- values under the pointer
  const tip = make("div", { id: "tip", hidden: true });
  tip.setAttribute("role", "status");
  document.body.append(tip);
  const short = (value) => Number(value.toPrecision(4)).toString();
  const near = (points, x) => {
    let best = points[0];
    for (const point of points) if (Math.abs(point[0] - x) < Math.abs(best[0] - x)) best = point;
    return best;
  };

  const chart = (svg) => {
    const { box, x: label, names, log, lines } = JSON.parse(svg.dataset.lines);
    const [left, right, top, bottom, width, height, first, last] = box;
    const scaled = (x) => log ? Math.log(x) : x;
    const [x0, x1] = [scaled(first), scaled(last)];
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
    cursor.setAttribute("class", "cursor");
    svg.append(cursor);
    const steps = [...new Set(lines.flatMap((line) => line.points.map((point) => point[0])))]
      .sort((a, b) => a - b);
    let at = -1;

    const show = (x) => {
      const across = left + (scaled(x) - x0) / (x1 - x0) * (width - left - right);
      cursor.setAttribute("d", `M${across} ${top}V${height - bottom}`);
      const shown = [`${label} ${names[x] ?? short(x)}`];
      for (const line of lines) if (line.points.length) {
        shown.push(`${line.name}: ${short(near(line.points, x)[1])}`);
      }
      tip.textContent = shown.join("\n");
      tip.hidden = false;
      const place = svg.getBoundingClientRect();
      const beside = place.left + across / width * place.width + 12;
      const most = root.clientWidth - tip.offsetWidth - 8;
      tip.style.left = `${Math.max(4, Math.min(beside, most)) + window.scrollX}px`;
      tip.style.top = `${place.top + window.scrollY + 26}px`;
    };
    const hide = () => { tip.hidden = true; cursor.removeAttribute("d"); at = -1; };

    svg.addEventListener("pointermove", (event) => {
      const place = svg.getBoundingClientRect();
      const inside = (event.clientX - place.left) / place.width * width;
      const x = x0 + (inside - left) / (width - left - right) * (x1 - x0);
      show(near(steps.map((step) => [step]), log ? Math.exp(x) : x)[0]);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || !steps.length) return;
      at = Math.max(0, Math.min(steps.length - 1, at + by));
      show(steps[at]);
      event.preventDefault();
    });
  };
  document.querySelectorAll("svg[data-lines]").forEach(chart);
})();
