"""Style sheet and script of the page, written into it so that it opens from a file without a network."""

from __future__ import annotations

__all__ = ["CSS", "JS"]

CSS = """
:root { color-scheme: light dark; --paper: #ffffff; --card: #f6f7f9; --ink: #1c2127; --soft: #59636e; --rule: #d5dae0;
  --link: #0b62a8; --mark: #fff0c2; --note: #fff6dc; --note-rule: #d9a400; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171b; --card: #1d2126; --ink: #e7eaee; --soft: #a2abb5; --rule: #343b43;
    --link: #7cbcf2; --mark: #574711; --note: #2f2a18; --note-rule: #b98f1d; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 80rem; padding: 1rem clamp(0.9rem, 3vw, 2rem) 3rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: clamp(1.35rem, 4.5vw, 1.9rem); line-height: 1.2; margin: 0.6rem 0 0.3rem; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 0.6rem; padding-top: 0.4rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.4rem 0 0.4rem; }
a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; margin: 0.6rem 0; }
.soft, .notes { color: var(--soft); font-size: 0.9rem; }
.notes { margin: 0.4rem 0 0; padding: 0; list-style: none; max-width: 60rem; }
.notes li { margin: 0.15rem 0; }
.notice { background: var(--note); border-left: 4px solid var(--note-rule); padding: 0.6rem 0.9rem; margin: 0.8rem 0;
  border-radius: 0 6px 6px 0; font-weight: 600; }
code { font: 0.9em ui-monospace, monospace; }
.scroll { overflow-x: auto; border: 1px solid var(--rule); border-radius: 8px; width: fit-content; max-width: 100%; }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
th, td { padding: 0.38rem 0.8rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
tr:last-child > * { border-bottom: 0; }
thead th { background: var(--card); font-weight: 600; vertical-align: bottom; white-space: normal; min-width: 5.5rem; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--card); z-index: 1; font-weight: 500;
  white-space: normal; min-width: 6.5rem; max-width: 42vw; border-right: 1px solid var(--rule); }
td span { white-space: nowrap; }
.legend { display: flex; flex-wrap: wrap; gap: 0.35rem; margin: 0.4rem 0 0.8rem; }
.legend button { display: inline-flex; align-items: center; gap: 0.45rem; min-height: 2.2rem; padding: 0.2rem 0.7rem;
  border: 1px solid var(--rule); border-radius: 999px; background: var(--card); color: inherit; font: inherit;
  font-size: 0.9rem; cursor: pointer; text-align: left; }
.legend button[aria-pressed=false] { opacity: 0.45; text-decoration: line-through; }
.legend button:focus-visible, summary:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.swatch { width: 30px; height: 12px; flex: none; overflow: visible; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: 0.8rem; }
figure { margin: 0; background: var(--card); border-radius: 8px; padding: 0.6rem 0.5rem 0.2rem; position: relative;
  min-width: 0; }
figcaption { font-size: 0.9rem; font-weight: 600; padding: 0 0.4rem; }
.charts svg { display: block; width: 100%; height: auto; touch-action: pan-y; }
svg text { fill: var(--soft); font: 12.5px system-ui, sans-serif; }
.grid { stroke: var(--rule); stroke-width: 0.8; } .tick, .axis { stroke: var(--soft); stroke-width: 1; }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }
.band { fill: var(--c); opacity: 0.17; } .marks { fill: var(--c); }
.cross { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 3 3; visibility: hidden; }
.off { display: none; }
.tip { position: absolute; z-index: 2; pointer-events: none; background: var(--paper); color: var(--ink); display: none;
  border: 1px solid var(--rule); border-radius: 6px; padding: 0.35rem 0.55rem; font-size: 0.78rem; line-height: 1.35;
  box-shadow: 0 2px 8px #0004; white-space: nowrap; max-width: 95%; overflow: hidden; }
.tip b { display: block; } .tip i { display: inline-block; width: 0.6rem; height: 0.6rem; border-radius: 50%;
  margin-right: 0.35rem; }
.pictures { display: grid; gap: 0.8rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.pictures img { display: block; max-width: 100%; max-height: 26rem; margin: 0.4rem auto; padding: 0.3rem;
  background: #fff; border-radius: 6px; }
.config { max-height: 75vh; overflow: auto; }
.config td, .config th { text-align: left; font: 0.82rem ui-monospace, monospace; padding: 0.25rem 0.7rem; }
.config td { max-width: 24rem; overflow: hidden; text-overflow: ellipsis; }
.config thead th { position: sticky; top: 0; z-index: 2; } .config thead th:first-child { z-index: 3; }
.config th:first-child { overflow-wrap: anywhere; }
.config mark { background: var(--mark); color: inherit; padding: 0.05rem 0.2rem; border-radius: 3px; }
#only:checked ~ .config .same { display: none; }
label { font-size: 0.9rem; } input { accent-color: var(--link); }
label[for=only] { display: inline-block; margin: 0.3rem 0 0.6rem 0.2rem; }
footer { margin-top: 2.5rem; }
@media (max-width: 36rem) { th, td { padding: 0.32rem 0.5rem; } table { font-size: 0.86rem; } thead th { min-width: 0; }
  .scroll:not(.config) td { white-space: normal; } .charts svg text { font-size: 15px; } }
@media print { .legend button[aria-pressed=false], nav, .tip { display: none; } .config { max-height: none; } }
"""

JS = """
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const buttons = [...document.querySelectorAll(".legend button[data-method]")];
  const shown = (m) => buttons[m].getAttribute("aria-pressed") === "true";
  const show = (m, on) => {
    buttons[m].setAttribute("aria-pressed", on);
    document.querySelectorAll(`.curve[data-method="${m}"]`).forEach((g) => g.classList.toggle("off", !on));
  };
  buttons.forEach((button, m) => {
    button.addEventListener("click", () => show(m, !shown(m)));
    button.addEventListener("dblclick", () => buttons.forEach((_, other) => show(other, other === m)));
  });
  document.getElementById("all").addEventListener("click", () => buttons.forEach((_, m) => show(m, true)));

  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) { const mid = (low + high) >> 1; if (xs[mid] < x) low = mid; else high = mid; }
    return x - xs[low] < xs[high] - x ? low : high;
  };
  document.querySelectorAll("svg[data-panel]").forEach((svg) => {
    const panel = data.panels[svg.dataset.panel], [left, , right] = data.area, [x0, x1] = panel.frame;
    const tip = svg.parentNode.querySelector(".tip"), cross = svg.querySelector(".cross");
    const hide = () => { tip.style.display = "none"; cross.style.visibility = "hidden"; };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), unit = data.width / box.width;
      const at = (event.clientX - box.left) * unit;
      if (at < left || at > right) return hide();
      const x = x0 + (at - left) / (right - left) * (x1 - x0);
      const reaches = (c) => x <= c.x[c.x.length - 1] + 0.02 * (x1 - x0);
      const lines = panel.curves.filter((c) => shown(c.m) && reaches(c)).map((c) => {
        const i = nearest(c.x, x);
        return { m: c.m, y: c.y[i], s: c.s ? c.s[i] : null, r: c.r[i] };
      }).sort((a, b) => b.y - a.y);
      if (!lines.length) return hide();
      tip.replaceChildren();
      const head = document.createElement("b");
      head.textContent = `${panel.title}: ${+x.toPrecision(4)}`;
      if (panel.axis === "rounds") head.textContent = `round ${lines[0].r}`;
      tip.append(head);
      lines.slice(0, 10).forEach((line) => {
        const row = document.createElement("div"), dot = document.createElement("i");
        dot.style.background = data.methods[line.m].colour;
        const spread = line.s === null ? "" : ` ± ${line.s.toFixed(2)}`;
        row.append(dot, `${line.y.toFixed(2)}${spread}  ${data.methods[line.m].name}`);
        tip.append(row);
      });
      if (lines.length > 10) tip.append(`and ${lines.length - 10} more`);
      cross.setAttribute("transform", `translate(${at},0)`);
      cross.style.visibility = "visible";
      tip.style.display = "block";
      const room = svg.parentNode.clientWidth - tip.offsetWidth - 4, pointer = event.clientX - box.left;
      const side = pointer + 16 <= room ? pointer + 16 : pointer - tip.offsetWidth - 8;
      tip.style.left = `${Math.max(4, Math.min(room, side))}px`;
      // curves rise: the lower part of a chart is the empty one
      tip.style.bottom = `${svg.parentNode.getBoundingClientRect().bottom - box.bottom + box.height * 0.16}px`;
    });
    svg.addEventListener("pointerleave", hide);
  });
})();
"""
