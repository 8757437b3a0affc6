"""How the report looks, by day and by night."""

from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;--back:#fbfbfa;--card:#fff;--text:#22262b;--dim:#69717c;
--line:#e3e5e8;--good:#1c7c4a;--bad:#b3261e;--bad-back:#fdecea;--good-back:#e8f5ee;
--a:#3b6fb6;--b:#d98324;--c:#4c9a6a;--d:#8a63b8;--e:#9aa3ad;--f:#c2453c;--g:#2e9aa6}
@media (prefers-color-scheme:dark){:root{--back:#14171a;--card:#1c2024;--text:#e4e7ea;
--dim:#98a1ac;--line:#30363c;--good:#6fcf9b;--bad:#ff8a80;--bad-back:#3a1f1d;--good-back:#183024;
--a:#6ea0e4;--b:#eba65a;--c:#74c294;--d:#b493dc;--e:#717a84;--f:#ee7a72;--g:#5cc4cf}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 24px 60px}
header{display:flex;gap:14px;align-items:baseline;flex-wrap:wrap}
h1{font-size:26px;margin:0}h2{font-size:16px;margin:0 0 12px}
h2 small{font-weight:400;font-size:13px;color:var(--dim);margin-left:8px}
header p{margin:0;color:var(--dim)}header .log{color:var(--text);overflow-wrap:anywhere}
.verdict{padding:10px 14px;border-radius:8px;font-weight:600;margin:18px 0}
.sound{background:var(--good-back);color:var(--good)}
.wrong{background:var(--bad-back);color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(120px,1fr));gap:10px}
.tiles div,section{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tiles div{padding:10px 14px}
.tiles b{display:block;font-size:19px;font-variant-numeric:tabular-nums}
.tiles span{color:var(--dim);font-size:12px}
section{padding:16px 18px;margin-top:16px}
svg{width:100%;height:auto;display:block}svg text{fill:var(--dim);font-size:12px}
svg .label{text-anchor:end}svg line{stroke:var(--line)}
.key{margin:8px 0 0;display:flex;gap:18px;flex-wrap:wrap;color:var(--dim)}
.key b{color:var(--text);font-weight:600}
.key i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px}
th{text-align:left;color:var(--dim);font-weight:500;white-space:nowrap}
th,td{padding:5px 10px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
td{overflow-wrap:break-word;min-width:40px;max-width:340px}
.whole{white-space:nowrap}td.text{min-width:240px}
.number{font-variant-numeric:tabular-nums;white-space:nowrap}
.kind{padding:1px 8px;border-radius:9px;color:#fff;white-space:nowrap;font-size:12px}
.none{color:var(--dim);margin:8px 0 0}
.p-strict,.k-gap{fill:var(--a);background:var(--a)}
.p-kafka,.k-overlap{fill:var(--b);background:var(--b)}
.p-monotonic,.k-late{fill:var(--c);background:var(--c)}
.p-epoch,.k-fenced{fill:var(--d);background:var(--d)}
.p-none,.k-notice{fill:var(--e);background:var(--e)}
.p-unknown,.k-duplicate{fill:var(--f);background:var(--f)}
.k-malformed{fill:var(--g);background:var(--g)}
@media (prefers-color-scheme:dark){.kind{color:#14171a}}
"""
