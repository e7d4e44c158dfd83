"""The style sheet of the report: two sets of colours and the layout from a phone to a desktop.

The six line colours keep an OKLab distance of at least 0.08 from each other, also as seen with protanopia,
deuteranopia and tritanopia (Machado 2009), and a contrast of at least 3:1 against the page, in light and in
dark: tests/bench/test_style.py measures both.
"""

from __future__ import annotations

LIGHT = """--page: #ffffff; --ink: #1b1f24; --quiet: #5a626d; --rule: #d9dde2; --grid: #e9ecef; --wash: #f5f6f7;
  --line-0: #3f4652; --line-1: #8a7504; --line-2: #40966b; --line-3: #3060ca; --line-4: #9773dc; --line-5: #a3270a;"""
DARK = """--page: #14171c; --ink: #e4e7eb; --quiet: #9aa3af; --rule: #363c45; --grid: #262b32; --wash: #1c2026;
  --line-0: #d7dae2; --line-1: #e7b942; --line-2: #6acfa6; --line-3: #4a9dfb; --line-4: #b47bc6; --line-5: #eb5735;"""

STYLE = (
    f":root {{ {LIGHT} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}\n"
    + "".join(f".s{index} {{ --this: var(--line-{index}, var(--quiet)); }}\n" for index in range(6))
    + """:root { --this: var(--quiet); }
* { box-sizing: border-box; }
html { background: var(--page); color: var(--ink); -webkit-text-size-adjust: 100%; }
body { margin: 0; font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 1228px; margin: 0 auto; padding: 40px 24px 72px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 12px; letter-spacing: -0.01em; text-wrap: balance; }
h2 { font-size: 19px; line-height: 1.3; margin: 56px 0 12px; padding-top: 14px; border-top: 1px solid var(--rule); }
h3 { font-size: 15px; margin: 0 0 8px; }
p { margin: 0 0 12px; max-width: 74ch; text-wrap: pretty; }
.lede { font-size: 18px; }
.whole { white-space: nowrap; }
.quiet, figcaption, caption { color: var(--quiet); font-size: 14px; }
.notice { border-left: 3px solid var(--line-3); padding-left: 12px; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 7px 8px; text-align: right; vertical-align: top; white-space: nowrap; }
th { font-weight: 600; }
thead th { color: var(--quiet); font-weight: 500; vertical-align: bottom; line-height: 1.3; }
thead tr.groups th { color: var(--ink); text-align: center; padding-bottom: 2px; }
thead tr.groups th span { display: block; border-bottom: 1px solid var(--rule); padding-bottom: 4px; }
thead tr:last-child th { border-bottom: 1px solid var(--ink); }
tbody tr { border-bottom: 1px solid var(--rule); }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--page); padding-left: 0; }
td small { display: block; color: var(--quiet); font-size: 12px; font-weight: 400; line-height: 1.3;
  white-space: normal; text-wrap: balance; }
.scroll + p { margin-top: 14px; }
.best { font-weight: 700; }
.planned { color: var(--quiet); }
.key { width: 34px; height: 12px; vertical-align: -1px; margin-right: 8px; overflow: visible; }
figure { margin: 0; min-width: 0; }
figcaption { max-width: 74ch; }
@media (min-width: 1000px) {
  .broad { display: grid; grid-template-columns: minmax(0, 880px) minmax(180px, 1fr); gap: 0 32px; align-items: start; }
  .broad h2, .broad details { grid-column: 1 / -1; }
  .broad figcaption { margin-top: 36px; }
}
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 500px), 1fr)); gap: 0 40px; }
.chart { display: block; width: 100%; height: auto; margin: 4px 0 8px; font-size: 12px; }
.chart.wide { max-width: 880px; }
.pair .chart.wide { max-width: 640px; }
.chart.narrow { display: none; max-width: 420px; font-size: 11px; }
.chart text { fill: var(--ink); }
.chart text.tick, .chart text.title, .chart text.note { fill: var(--quiet); }
.chart text.tick { font-variant-numeric: tabular-nums; }
.chart text.label, .chart text.note { paint-order: stroke; stroke: var(--page); stroke-width: 4px;
  stroke-linejoin: round; }
.chart text.label { fill: var(--this); font-weight: 600; }
.grid { stroke: var(--grid); fill: none; }
.axis { stroke: var(--quiet); fill: none; }
.line { stroke: var(--this); fill: none; stroke-width: 2; stroke-linejoin: round; }
.faint { stroke-width: 1; opacity: 0.25; }
.lead { stroke: var(--this); fill: none; stroke-width: 0.75; opacity: 0.6; }
.mark { fill: var(--this); stroke: var(--page); stroke-width: 1; }
.mark.hollow { fill: var(--page); stroke: var(--this); stroke-width: 1.5; }
details { margin: 8px 0 0; font-size: 14px; }
summary { cursor: pointer; color: var(--quiet); width: fit-content; }
details table { margin-top: 8px; }
.samples { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 28px 32px; }
.samples article { min-width: 0; }
pre { margin: 0 0 10px; padding: 10px 12px; background: var(--wash); border-radius: 4px; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 13px/1.45 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  unicode-bidi: isolate; direction: ltr; tab-size: 4; }
pre b { color: var(--line-3); font-weight: 700; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 6px 20px; margin: 0; font-size: 15px; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
code { font: 0.92em ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (max-width: 600px) {
  main { padding: 24px 16px 48px; }
  h1 { font-size: 23px; }
  h2 { margin-top: 40px; }
  .lede { font-size: 16px; }
  td, th { padding: 7px 7px; }
  th .key { display: none; }
  tbody th { white-space: normal; min-width: 84px; }
  .chart.wide { display: none; }
  .chart.narrow { display: block; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 10px; }
}
@media print { .scroll { overflow: visible; } details { display: none; } }
"""
)
