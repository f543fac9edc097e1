"""Solution of exercise 7. Without a floor a rating that is wrong by chance may never be corrected."""


def probabilities(p, mode="pfsp", floor=0.1):
    weight = [1.0] * len(p)
    if mode == "pfsp":
        weight = [x * (1 - x) for x in p]
    if mode == "hard":
        weight = [(1 - x) ** 2 for x in p]
    total = sum(weight)
    if total == 0:
        return [1 / len(p)] * len(p)
    return [(1 - floor) * w / total + floor / len(p) for w in weight]
