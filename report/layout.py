"""What every part of a report is set in: headings, cards and tables, the page's CSS and JavaScript. No imports but Python's."""
import re


def figure(title: str, caption: str, body: str, wide: bool = False) -> str:
    """A chart with its heading and the one line that says how to read it; without a body it is said to be absent."""
    body = body or '<p class="absent">Absent: this run did not log it.</p>'
    return f'<figure{" class=wide" if wide else ""}><figcaption><b>{title}</b>{caption}</figcaption>{body}</figure>'


def section(name: str, title: str, words: str, figures: list[str]) -> str:
    """A part of the page."""
    return f'<section id="{name}"><h2>{title}</h2><p>{words}</p><div class="grid">{"".join(figures)}</div></section>'


def table(head: str, rows: list[str], kind: str = "") -> str:
    """A table that scrolls sideways where it is too wide; `head` and `rows` are HTML cells."""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table{kind}>{f"<tr>{head}</tr>" if head else ""}{body}</table></div>'


TOOLTIP = re.compile(r"<rect class=.hit.*?</rect>|<title>.*?</title>", re.S)


def sheet(name: str, rows: list[list[tuple[str, str]]], foot: list[str] = ()) -> str:
    """One stand-alone SVG file of charts with their headings, row under row; light or dark as the reader's
    system is. rows: of (heading, chart), charts as svg.py makes them; name: what a screen reader says;
    foot: lines below. Headings, name and foot are texts made harmless already."""
    body, wide, y = "", 0, 0
    for row in rows:
        x, low = 0, 0
        for heading, chart in row:
            drawing = chart.split("</svg>")[0] + "</svg>"
            drawing = TOOLTIP.sub("", drawing)              # a picture has none
            width, height = map(int, re.search(r'viewBox="0 0 (\d+) (\d+)"', drawing).groups())
            drawing = drawing.replace("<svg ", f'<svg width="{width}" height="{height}" ', 1)
            head = f'<text class="head" x="30" y="-7">{heading}</text>'
            body += f'<g transform="translate({x + 6} {y + 24})">{head}{drawing}</g>'
            x, low = x + width + 14, max(low, height)
        wide, y = max(wide, x), y + low + 32
    wide = max([wide, *(72 + 6 * len(re.sub("<.*?>", "", line)) for line in foot)])
    for line in foot:
        body += f'<text x="36" y="{y + 6}">{line}</text>'
        y += 16
    used = set(re.findall(r"[\w-]+", " ".join(re.findall(r'class="([^"]*)"', body))))
    css = PALETTE + CHART + "".join(COLOR[c] for c in COLORS if c in used)
    css += ".paper{fill:var(--card)}svg{overflow:visible;font:11px system-ui,sans-serif}"
    css += "text{fill:var(--soft)}text.head{font-size:13px;font-weight:600;fill:var(--ink)}"
    css += "tspan{font-weight:600}"
    size = f'viewBox="0 0 {wide} {y}"'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{name}">'
            f'<style>{css}</style><rect class="paper" width="100%" height="100%"/>{body}</svg>\n')


PALETTE = """
:root{color-scheme:light dark;--bg:#f7f7f5;--card:#fff;--ink:#1c2128;--soft:#5b6470;--line:#e3e4e0;--hint:#f1f1ee;--mark:#fff3cf;
--t0:#c2410c;--t1:#a16207;--t2:#be185d;--t3:#dc2626;--t4:#7c2d12;--t5:#b45f06;--s0:#1d4ed8;--s1:#0f766e;--s2:#7c3aed;--s3:#0277b0;
--s4:#15803d;--s5:#3730a3;
--m0:#0072b2;--m1:#bf5200;--m2:#00805e;--m3:#a8467d;--m4:#7a6a00;--m5:#56606b;--m6:#6d4bc2;--m7:#2b3038;--base:#5b6470;
--heat:37,99,175}
@media(prefers-color-scheme:dark){:root{--bg:#111418;--card:#191d23;--ink:#e7e9ec;--soft:#a0a8b3;--line:#2c323a;--hint:#20252c;
--mark:#43391a;
--t0:#fb923c;--t1:#facc15;--t2:#f472b6;--t3:#f87171;--t4:#d6a17c;--t5:#fdba74;--s0:#7aa2ff;--s1:#2dd4bf;--s2:#b794f6;--s3:#38bdf8;
--s4:#4ade80;--s5:#a5b4fc;
--m0:#56b4e9;--m1:#f08a3c;--m2:#2fc49a;--m3:#e38fc2;--m4:#d8c84a;--m5:#98a2ae;--m6:#a79bf5;--m7:#dfe3e8;--base:#a0a8b3;
--heat:96,165,250}}
"""
CHART = """
.ax{stroke:var(--line);fill:none}.num{text-anchor:end}.tick,.axis{text-anchor:middle}
svg text{fill:var(--soft)}.rule{stroke:var(--base);stroke-dasharray:2 4;fill:none}
.line .stroke{fill:none;stroke-width:1.7;stroke-linejoin:round}.line.thin .stroke{stroke-width:1;opacity:.55}
.line.fine .stroke{stroke-width:1.2}.line.bold .stroke{stroke-width:2.8}
.d1 .stroke{stroke-dasharray:6 3}.d2 .stroke{stroke-dasharray:2 3}.line .band{opacity:.07;stroke:none}
.line .birth{fill:var(--card);stroke-width:1.6}.line .death{fill:none;stroke-width:1.8}
.line .descent{fill:none;stroke-width:1.3;stroke-dasharray:1 3;stroke-linecap:round}
.guide{stroke:var(--line);fill:none}svg text.end{font-weight:600}
svg text.word{font-size:.86em;paint-order:stroke;stroke:var(--card);stroke-width:3px;stroke-linejoin:round}
"""
COLORS = [*(f"{family}{i}" for family in "ts" for i in range(6)), *(f"m{i}" for i in range(8)), "base"]
COLOR = {c: f".line.{c} .stroke,.line.{c} .birth,.line.{c} .death,.line.{c} .descent,.life.{c} .stroke,"
            f".edge.{c}{{stroke:var(--{c})}}.line.{c} circle:not(.birth),.life.{c} circle,.line.{c} .band,"
            f".bars .{c},svg text.end.{c},tspan.{c}{{fill:var(--{c})}}"
            f".legend .{c}{{color:var(--{c})}}\n" for c in COLORS}
CSS = PALETTE + CHART + "".join(COLOR.values()) + """
*{box-sizing:border-box}html{scroll-behavior:smooth;scroll-padding-top:3.2rem}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
overflow-wrap:anywhere}
main,header,nav ul{max-width:1360px;margin:0 auto;padding:0 16px}header{padding-top:28px}
h1{font-size:1.7rem;line-height:1.2;margin:0;letter-spacing:-.01em}
h2{font-size:1.15rem;margin:2.2rem 0 .2rem}h2+p{margin:.1rem 0 .9rem;color:var(--soft);max-width:78ch}
header p{margin:.3rem 0;color:var(--soft);max-width:90ch}
nav{position:sticky;top:0;z-index:2;background:var(--bg);border-bottom:1px solid var(--line);margin-top:14px}
nav ul{display:flex;gap:4px 18px;list-style:none;overflow-x:auto;white-space:nowrap}
nav a{display:block;padding:9px 0;color:var(--soft);text-decoration:none}nav a:hover{color:var(--ink)}
.grid{display:grid;gap:14px;grid-template-columns:repeat(auto-fill,minmax(min(100%,350px),1fr))}
figure{display:flex;flex-direction:column}figure>svg{margin-top:auto}
figure,.card{margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 14px 10px;min-width:0}
.wide{grid-column:1/-1}.picture h4{margin:8px 0 2px;font-size:.9rem}.picture svg{max-width:620px}
.picture figcaption{margin-top:8px}.picture+p{margin-top:.7rem}
.played,.others{display:grid;gap:4px 14px;grid-template-columns:repeat(auto-fit,minmax(min(100%,350px),1fr))}
.others{grid-template-columns:repeat(auto-fit,minmax(min(100%,220px),1fr))}.others svg{max-width:420px}
footer{max-width:1360px;margin:2.5rem auto 0;padding:0 16px 24px;color:var(--soft);font-size:.84rem}
figcaption{font-size:.84rem;color:var(--soft);margin-bottom:6px;line-height:1.4}
figcaption b{display:block;color:var(--ink);font-size:.95rem}
.absent{color:var(--soft);background:var(--hint);border-radius:6px;padding:18px 12px;text-align:center;margin:4px 0}
.notes{color:var(--ink)!important;background:var(--mark);border-radius:6px;padding:6px 10px}
.note{color:var(--soft);font-size:.76rem;margin:2px 0 0;text-align:right}
svg{display:block;width:100%;height:auto;max-width:520px;margin:0 auto;overflow:visible;
font:11px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.scroll{overflow-x:auto}
.hit{fill:var(--ink);opacity:0}.hit:hover{opacity:.07}
.line:hover .stroke{stroke-width:3.2;opacity:1}.line:hover .band{opacity:.3}
.scroll svg{font-size:12px;margin:0}.life .stroke{stroke-width:3;fill:none}
.life .back{stroke:transparent;stroke-width:30;fill:none}
.life:hover .stroke{stroke-width:6}.life text:not(.end){fill:var(--ink)}.edge{fill:none;stroke-width:1.3;opacity:.75}
.legend{display:flex;flex-wrap:wrap;gap:2px 12px;list-style:none;padding:0;margin:4px 0 0;font-size:.8rem;color:var(--soft)}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px;background:currentColor}
.words{list-style:none;padding:0;margin:14px 0 0;display:grid;gap:10px;
grid-template-columns:repeat(auto-fill,minmax(min(100%,310px),1fr))}
.words li{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px 12px;display:grid;
grid-template-columns:1fr 96px;align-items:center;column-gap:10px}
.words b{font-variant-numeric:tabular-nums}.words span{font-size:.86rem;color:var(--soft);display:block;line-height:1.35}
.words small{font-size:.76rem;color:var(--soft)}.spark path{fill:none;stroke:var(--s0);stroke-width:1.6}
.spark circle{fill:var(--s0)}
table{border-collapse:collapse;font-size:.84rem}
th,td{padding:3px 8px;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}th{font-weight:600;color:var(--soft)}
.matrix{width:100%}.matrix th{text-align:center}.matrix th:first-child{position:sticky;left:0;background:var(--card)}
th{white-space:nowrap}
.matrix td{text-align:center;background:rgba(var(--heat),calc(var(--v)*.55));min-width:46px;padding:3px 4px;
border:1px solid var(--card)}
.matrix small{display:block}.right{text-align:right}.prose{min-width:12rem}td.legend{display:table-cell}
td{overflow-wrap:normal}td:first-child,td code{white-space:nowrap}
code,pre{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{background:var(--hint);border-radius:6px;padding:8px 10px;margin:4px 0 10px;overflow:auto;max-height:22rem;
white-space:pre-wrap;
direction:ltr;unicode-bidi:bidi-override;line-break:anywhere}
#list{max-height:70vh;overflow:auto}.task{border-bottom:1px solid var(--line);padding:2px 0}
.task summary{cursor:pointer;padding:4px 2px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;font-size:.86rem}
.task summary code{color:var(--soft);unicode-bidi:bidi-override}.task>div{padding:0 4px 6px 14px}
.task h4{margin:6px 0 0;font-size:.8rem;color:var(--soft);font-weight:600}
.pill{display:inline-block;min-width:8.2em;text-align:center;border:1px solid var(--line);border-radius:99px;padding:0 8px;
font-size:.78rem;
background:rgba(var(--heat),calc(var(--v,0)*.5))}
.pill.no{border-style:dashed;background:none}
form{display:flex;flex-wrap:wrap;gap:8px 12px;margin-bottom:10px;font-size:.84rem;color:var(--soft)}
form label{display:flex;gap:5px;align-items:center}
select,input{font:inherit;color:var(--ink);background:var(--card);border:1px solid var(--line);border-radius:6px;padding:3px 6px;
max-width:11rem}
input[type=number]{width:5rem}html:not(.js) form{display:none}summary{cursor:pointer}[hidden]{display:none!important}
#tip{position:fixed;z-index:9;pointer-events:none;white-space:pre-wrap;background:var(--ink);color:var(--bg);border-radius:6px;
padding:6px 9px;
font-size:12px;line-height:1.4;max-width:90vw}
@media(max-width:600px){main,header,nav ul{padding:0 8px}figure,.card{padding:12px 8px 8px}.task>div{padding-left:2px}
.task summary{white-space:normal}.task summary code{display:block;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}}
"""
JS = """
document.documentElement.classList.add('js');
const tip = document.createElement('div'); tip.id = 'tip'; tip.hidden = true; document.body.append(tip);
for (const t of document.querySelectorAll('svg title')) { t.parentNode.dataset.tip = t.textContent; t.remove(); }
const tell = e => {
  const at = e.target.closest && e.target.closest('[data-tip]');
  tip.hidden = !at; if (!at) return;
  tip.textContent = at.dataset.tip;
  tip.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 6)) + 'px';
  tip.style.top = Math.max(4, Math.min(e.clientY + 14, innerHeight - tip.offsetHeight - 6)) + 'px';
};
document.addEventListener('pointermove', tell); document.addEventListener('pointerdown', tell);
document.addEventListener('scroll', () => { tip.hidden = true; }, true);
const form = document.querySelector('form'), tasks = [...document.querySelectorAll('.task')];
const rates = {none: r => r === 0, some: r => r > 0 && r < 1, all: r => r === 1};
const filter = () => {
  const f = Object.fromEntries(new FormData(form)), words = f.words.toLowerCase(); let n = 0;
  for (const t of tasks) {
    const d = t.dataset, rate = d.rate === '' ? NaN : +d.rate;
    const ok = (f.from === '' || +d.step >= +f.from) && (f.to === '' || +d.step <= +f.to)
      && (!f.teacher || d.teacher === f.teacher)
      && (!f.student || d.students.split(' ').includes(f.student)) && (!f.kind || d.kind === f.kind)
      && (!f.reason || (f.reason === 'valid' ? d.reason === '' : d.reason === f.reason))
      && (!f.solved || rates[f.solved](rate)) && (!words || t.textContent.toLowerCase().includes(words));
    t.hidden = !ok; n += ok;
  }
  document.querySelector('#count').textContent = n + ' of ' + tasks.length + ' shown';
};
if (form) { form.addEventListener('input', filter); form.addEventListener('submit', e => e.preventDefault()); filter(); }
const every = +document.body.dataset.watch;
const look = () => { if (!document.querySelector('.task[open]') && !document.hidden) location.reload(); };
if (every) setInterval(look, every * 1000);
"""
