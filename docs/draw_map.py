"""Draws docs/map.svg from the packed runs: PYTHONPATH=. python docs/draw_map.py, at the root. A row a contrast, its interval and verdict."""
from eval.population import measures, runs

GROUNDS = [
    ("One habit (area)", ".10", "docs/results", "full", {"single-long": "population - one adapter", "pair": "population - one pair"}),
    ("Two types", "", "docs/results/niches", "niches-add",
     {"generalists": "niches - generalists", "single-long": "niches - one adapter", "singles": "niches - best of four single runs", "crossed": "niches - two crossed at the end",
      "niches-layerwise": "add - layerwise", "niches-mixed": "add - mixed", "generalists-mixed": "niches - generalists with births", "pair": "niches - one pair"}),
    ("Unknown rate", "", "docs/results/rates", "spread", {"one": "four rates - one", "singles": "population - best of four single runs", "pbt": "no births - births that inherit rates", "pair": "population - one pair"}),
    ("Rare habit", ".21", "docs/results/rare", "copy",
     {"single-long": "population - one adapter", "singles": "population - best of four single runs", "no-evolution": "copies - no births", "pair": "population - one pair", "full": "copies - mixed births"}),
    ("Two hills", ".49", "docs/results/hills", "copy",
     {"single-long": "population - one adapter", "singles": "population - best of four single runs", "no-evolution": "copies - no births", "pair": "population - one pair", "full": "copies - mixed births"}),
    ("Two hills, second try", "", "docs/results/hills2", "copy", {"singles": "population - best of four single runs", "no-evolution": "copies - no births"}),
    ("Students that differ", "", "docs/results/matching", "pfsp", {"uniform": "PFSP - uniform matching"})]
W, LEFT, RIGHT, MOST = 860, 400, 800, .6
KINDS = {"ahead": "ahead", "behind": "behind", "level": "level", "not tested": "hollow"}
CSS = ("text{font:13px system-ui,sans-serif;fill:#333}.head{font-weight:600}.grid{stroke:#e4e4e4}.zero{stroke:#888}g path{stroke-width:2.5}"
       ".ahead{stroke:#1b9e77;fill:#1b9e77}.behind{stroke:#d95f02;fill:#d95f02}.level{stroke:#1f77b4;fill:#1f77b4}.open{stroke:#999;fill:#999}"
       ".hollow{stroke:#999;fill:none}.num{font-size:12px}@media (prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#3a3a3a}.zero{stroke:#999}}")


def x(value):
    return LEFT + (max(-MOST, min(MOST, value)) + MOST) / (2 * MOST) * (RIGHT - LEFT)


def rows(source, reference, labels):
    """(label, contrast) of the arms that are packed; each contrast as the page's own command prints it."""
    experiment = runs.opened([source])
    measure = "area" if source == "docs/results" else "deployed"
    arms = [arm for arm in labels if arm in experiment.arms]
    return [(labels[line["other"]], line) for line in measures.conclude(experiment, arms, reference, measure, .6)["contrasts"]]


def main():
    grounds = [(name, cv, rows(*rest)) for name, cv, *rest in GROUNDS]
    height = 44 + sum(34 + 24 * len(lines) for _, _, lines in grounds) + 44
    body, y = "", 44
    for t in range(-6, 7, 2):
        body += f'<path class="{"grid" if t else "zero"}" d="M{x(t / 10):.0f} 30V{height - 44}"/>'
        body += f'<text class="num" x="{x(t / 10):.0f}" y="{height - 28}" text-anchor="middle">{f"{t / 10:+.1f}" if t else 0}</text>'
    for name, cv, lines in grounds:
        y += 18
        body += f'<text class="head" x="14" y="{y}">{name}</text><text x="330" y="{y}" text-anchor="end">{cv and f"CV {cv}"}</text>'
        y += 8
        for label, line in lines:
            y += 20
            low, high = line["interval"]
            title = f'{label}: {line["difference"]:+.3f} ({low:+.3f} .. {high:+.3f}), {line["verdict"]}'
            body += (f'<text x="30" y="{y}">{label.replace(" - ", " − ")}</text><g class="{KINDS.get(line["verdict"].split(",")[0], "open")}"><title>{title}</title>'
                     f'<path d="M{x(low):.1f} {y - 5}H{x(high):.1f}"/><circle cx="{x(line["difference"]):.1f}" cy="{y - 5}" r="4.5"/></g>')
            y += 4
        y += 8
    foot = "difference in accuracy, 95% interval; blue: level, orange: behind, grey: cannot tell; hollow: not tested. CV: of the time to discovery"
    with open("docs/map.svg", "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {height}" role="img" aria-label="What a population brings, by ground">'
                   f'<style>{CSS}</style>{body}<text x="{W / 2}" y="{height - 8}" text-anchor="middle">{foot}</text></svg>\n')


main()
