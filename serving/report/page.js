"use strict";
// The page is complete without this script, which adds a theme switch, values under the pointer, the
// slider of rejection, and details that open when a link leads to them.
(() => {
  const root = document.documentElement;
  const make = (name, of = {}) => Object.assign(document.createElement(name), of);

  // ------------------------------------------------------------------------------- light and dark
  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : window.matchMedia("(prefers-color-scheme: dark)").matches;
  const button = document.getElementById("theme");
  if (button) {
    const named = () => { button.textContent = dark() ? "Light" : "Dark"; };
    button.hidden = false;
    button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; named(); });
    named();
  }

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
    const { box, x: label, lines } = JSON.parse(svg.dataset.lines);
    const [left, right, top, bottom, width, height, x0, x1] = box;
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
    cursor.setAttribute("class", "cursor");
    svg.append(cursor);
    const steps = [...new Set(lines.flatMap((line) => line.points.map((point) => point[0])))]
      .sort((a, b) => a - b);
    let at = -1;

    const show = (x) => {
      const across = left + (x - x0) / (x1 - x0) * (width - left - right);
      cursor.setAttribute("d", `M${across} ${top}V${height - bottom}`);
      const said = [`${label} ${short(x)}`];
      for (const line of lines) if (line.points.length) {
        said.push(`${line.name}: ${short(near(line.points, x)[1])}`);
      }
      tip.textContent = said.join("\n");
      tip.hidden = false;
      const place = svg.getBoundingClientRect();
      const wanted = place.left + across / width * place.width + 12;
      const most = root.clientWidth - tip.offsetWidth - 8;
      tip.style.left = `${Math.max(4, Math.min(wanted, most)) + window.scrollX}px`;
      tip.style.top = `${place.top + window.scrollY + 26}px`;
    };
    const hide = () => { tip.hidden = true; cursor.removeAttribute("d"); at = -1; };

    svg.addEventListener("pointermove", (event) => {
      const place = svg.getBoundingClientRect();
      const inside = (event.clientX - place.left) / place.width * width;
      const x = x0 + (inside - left) / (width - left - right) * (x1 - x0);
      show(near(steps.map((step) => [step]), x)[0]);
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

  // -------------------------------------------------------------------------- how much to reject
  const slider = document.getElementById("reject");
  const data = document.getElementById("coverage-points");
  if (slider && data) {
    const points = JSON.parse(data.textContent);
    const out = document.getElementById("rejected");
    const percent = (value) => `${(100 * value).toFixed(1)} %`;
    const update = () => {
      const kept = 1 - slider.value / 100;
      let best = points[0];
      for (const point of points) if (Math.abs(point[0] - kept) < Math.abs(best[0] - kept)) best = point;
      out.textContent = `Reject ${percent(1 - best[0])}: the rest is right in ${percent(best[1])} of its`
        + ` rows (least confidence ${best[2].toFixed(3)})`;
    };
    slider.addEventListener("input", update);
    slider.parentElement.hidden = false;
    update();
  }
})();
