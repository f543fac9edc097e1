"""What all benchmarks share: ways measured in turns, tables of medians, ratios."""
import statistics


def take_turns(ways, repeats):
    """{name: function()} -> {name: what it returned in each repeat}; forwards, then backwards, and so on."""
    seen = {name: [] for name in ways}
    for i in range(repeats):
        for name in list(ways)[::-1 if i % 2 else 1]: seen[name].append(ways[name]())
    return seen


def show(rows):
    """Prints [(label, unit, values of the repeats)] as median and range."""
    for label, unit, values in rows:
        print("%-46s %10.5g %-8s %.4g .. %.4g" % (label, statistics.median(values), unit, min(values), max(values)))


def ratio(above, below):
    "median over the repeats of above / below, to three digits"
    return float("%.3g" % statistics.median(a / b for a, b in zip(above, below)))
