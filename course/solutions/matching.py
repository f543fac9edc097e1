"""Solution of exercise 7. Without a floor a rating that is wrong by chance may never be corrected."""


def weight(p: float, mode: str) -> float:
    """Of a student that beats the teacher with probability p."""
    if mode == "pfsp":
        return p * (1 - p)
    if mode == "hard":
        return (1 - p) ** 2
    return 1.0


def probabilities(p: list[float], mode: str = "pfsp", floor: float = 0.1) -> list[float]:
    """Of drawing each of the students."""
    n = len(p)
    weights = [weight(x, mode) for x in p]
    total = sum(weights)
    if total == 0:                      # every result is certain
        return [1 / n] * n
    return [(1 - floor) * w / total + floor / n for w in weights]
