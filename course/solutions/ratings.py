"""Solution of exercise 6. The limits stand in for v and w where the probability has lost its digits."""
import math
from statistics import NormalDist

NORMAL = NormalDist()
TINY = 1e-290
Rating = tuple[float, float]            # mu, sigma


def phi_cdf(x: float) -> float:
    """Phi(x), whose digits hold in the lower tail, unlike those of NormalDist.cdf."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def win_moments(t: float, e: float) -> tuple[float, float]:
    """v and w of a win."""
    z = phi_cdf(t - e)
    if z <= TINY:                       # a great surprise: the limits
        return e - t, 1.0
    v = NORMAL.pdf(t - e) / z
    return v, v * (v + t - e)


def draw_moments(t: float, e: float) -> tuple[float, float]:
    """v and w of a draw."""
    a = e - abs(t)
    b = -e - abs(t)
    sign = math.copysign(1, t)
    z = phi_cdf(a) - phi_cdf(b)
    if z <= TINY:
        return sign * a, 1.0
    at_a = NORMAL.pdf(a)
    at_b = NORMAL.pdf(b)
    v = (at_b - at_a) / z
    w = v ** 2 + (a * at_a - b * at_b) / z
    return sign * v, w


def rate(
    winner: Rating,
    loser: Rating,
    draw: bool = False,
    beta: float = 25 / 6,               # deviation of a performance from the skill
    tau: float = 25 / 300,              # drift of a skill between two matches
    p_draw: float = 0.1,                # share of draws among matches of equals
) -> tuple[Rating, Rating]:
    """New ratings of winner and loser."""
    mu_w, sigma_w = winner
    mu_l, sigma_l = loser
    s_w = sigma_w ** 2 + tau ** 2
    s_l = sigma_l ** 2 + tau ** 2
    c = math.sqrt(2 * beta ** 2 + s_w + s_l)
    margin = NORMAL.inv_cdf((p_draw + 1) / 2) * math.sqrt(2) * beta
    t = (mu_w - mu_l) / c
    moments = draw_moments if draw else win_moments
    v, w = moments(t, margin / c)
    w = min(max(w, 0.0), 1.0)           # rounding must not make a variance negative
    sigma_w = math.sqrt(s_w * (1 - w * s_w / c ** 2))
    sigma_l = math.sqrt(s_l * (1 - w * s_l / c ** 2))
    return (mu_w + s_w * v / c, sigma_w), (mu_l - s_l * v / c, sigma_l)
