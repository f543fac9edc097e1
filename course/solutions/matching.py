"""Solution of exercise 7. Without a floor, a rating that is wrong by chance is never played again, and so never corrected."""


def probabilities(p, mode="pfsp", floor=0.1):
    weight = {"pfsp": [x * (1 - x) for x in p], "hard": [(1 - x) ** 2 for x in p], "uniform": [1.0] * len(p)}[mode]
    total = sum(weight)
    if total == 0:
        return [1 / len(p)] * len(p)
    return [(1 - floor) * w / total + floor / len(p) for w in weight]
