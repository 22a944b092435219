"""The style sheet of a report; it is part of the page, so that one file is all."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #f5f6f8; --card: #ffffff; --ink: #1b1f24; --soft: #596270; --line: #dde1e6;
  --accent: #0072b2; --alarm: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --card: #1d2126; --ink: #e8eaed; --soft: #a3acb8;
    --line: #353b43; --accent: #56b4e9; --alarm: #f2b8b5;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 76rem;
  background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1 { margin: 0; font-size: 1.6rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { margin: 2.5rem 0 0.75rem; font-size: 1.15rem; }
.soft { margin: 0.25rem 0 0; color: var(--soft); }
.banner {
  margin: 1.5rem 0 0; padding: 0.8rem 1rem; border-radius: 8px;
  background: var(--card); border: 2px solid var(--alarm); color: var(--alarm);
}
.headline {
  display: grid; gap: 0.75rem; margin: 1.5rem 0 0;
  grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr));
}
.headline div, .scroll, pre {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px;
}
.headline div { padding: 0.8rem 1rem; }
dt { color: var(--soft); font-size: 0.85rem; }
dd { margin: 0; }
dd.value { font-size: 1.5rem; font-weight: 650; font-variant-numeric: tabular-nums; }
dd.note { color: var(--soft); font-size: 0.85rem; }
.plots {
  display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr));
}
figure { margin: 0; }
/* The plots are drawn for white paper, also where the page is dark. */
figure svg {
  display: block; width: 100%; height: auto; padding: 0.5rem;
  background: #ffffff; border: 1px solid var(--line); border-radius: 8px;
}
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { padding: 0.4rem 0.25rem 0; color: var(--soft); font-size: 0.85rem; }
.tables {
  display: grid; gap: 0 1.5rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr));
}
.tables section { min-width: 0; }
.scroll { overflow: auto; max-height: 32rem; }
table { width: 100%; border-collapse: collapse; font-size: 0.85rem; }
th, td {
  padding: 0.35rem 0.75rem; border-bottom: 1px solid var(--line);
  text-align: left; vertical-align: top;
}
tr:last-child > * { border-bottom: 0; }
thead th {
  position: sticky; top: 0; background: var(--card);
  color: var(--soft); font-weight: 600; vertical-align: bottom;
}
.numbers th, .numbers td {
  text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums;
}
/* Heads of several words would make columns of short numbers wide. */
.numbers thead th { white-space: normal; }
.pairs th { width: 40%; color: var(--soft); font-weight: 500; }
.pairs td { overflow-wrap: anywhere; }
pre { margin: 0; padding: 0.8rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }
code { font: 0.85rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
@media print { .scroll { max-height: none; overflow: visible; } }
"""
