"""Rates two players in closed form: who would win, and what a result changes.

>>> system = TrueSkill()
>>> a, b = system.rate(system.new(), system.new())      # a wins: (29.396, 7.171) and (20.604, 7.171)

This is TrueSkill (Herbrich, Minka & Graepel 2006) for two players, where message passing becomes formulas.
"""
import math
from dataclasses import dataclass
from statistics import NormalDist

SQRT2 = math.sqrt(2.0)
SQRT2PI = math.sqrt(2.0 * math.pi)
UNDERFLOW = 1e-290      # a probability below this has lost its digits: then v and w take their limits


@dataclass(frozen=True)
class Rating:
    """Holds the belief about one player's skill: its mean and standard deviation."""
    mu: float = 25.0
    sigma: float = 25.0 / 3.0


def pdf(x: float) -> float:
    """Returns the density of the standard normal at x."""
    return math.exp(-0.5 * x * x) / SQRT2PI


def cdf(x: float) -> float:
    """Returns P(z <= x) for standard normal z, by erfc, which keeps its digits in the lower tail."""
    return 0.5 * math.erfc(-x / SQRT2)


def win_moments(t: float, e: float) -> tuple[float, float]:
    """Returns (v, w) of a win: v moves the means, w narrows the variances (Herbrich 2006, eq. for 1[t > e]).
    t is the difference of skills and e the draw margin, both in units of c."""
    x = t - e
    z = cdf(x)
    if z < UNDERFLOW:
        return -x, 1.0
    v = pdf(x) / z
    w = v * (v + x)
    return v, min(max(w, 0.0), 1.0)         # rounding must not make a variance negative


def draw_moments(t: float, e: float) -> tuple[float, float]:
    """Returns (v, w) of a draw, for t and e as in `win_moments` (Herbrich 2006, eq. for 1[|t| <= e])."""
    a = e - abs(t)
    b = -e - abs(t)
    sign = math.copysign(1.0, t)
    z = cdf(a) - cdf(b)
    if z < UNDERFLOW:           # in the limit the performances differ by the margin
        return sign * a, 1.0
    v = (pdf(b) - pdf(a)) / z
    w = v * v + (a * pdf(a) - b * pdf(b)) / z
    return sign * v, min(max(w, 0.0), 1.0)


@dataclass(frozen=True)
class TrueSkill:
    """Holds the constants of the rating system, and rates players by them."""
    beta: float = 25.0 / 6.0        # luck of one match; who is better by beta wins about 76%
    tau: float = 25.0 / 300.0       # drift of a skill between two matches
    p_draw: float = 0.1

    def new(self) -> Rating:
        """Returns the rating of a player whom nobody has seen."""
        return Rating()

    def rate(self, winner: Rating, loser: Rating, draw: bool = False) -> tuple[Rating, Rating]:
        """Returns the new ratings (winner, loser) after a match. In a draw the order does not matter."""
        var_w = winner.sigma ** 2 + self.tau ** 2
        var_l = loser.sigma ** 2 + self.tau ** 2
        c2 = 2.0 * self.beta ** 2 + var_w + var_l           # variance of the difference of performances
        c = math.sqrt(c2)
        margin = NormalDist().inv_cdf((self.p_draw + 1.0) / 2.0) * SQRT2 * self.beta
        t = (winner.mu - loser.mu) / c
        moments = draw_moments if draw else win_moments
        v, w = moments(t, margin / c)
        mu_w = winner.mu + var_w * v / c
        mu_l = loser.mu - var_l * v / c
        left_w = 1.0 - w * var_w / c2                       # share of the variance that is left
        left_l = 1.0 - w * var_l / c2
        sigma_w = math.sqrt(var_w * left_w)
        sigma_l = math.sqrt(var_l * left_l)
        return Rating(mu_w, sigma_w), Rating(mu_l, sigma_l)

    def p_win(self, a: Rating, b: Rating) -> float:
        """Returns P(a performs better than b), without draws, so that p_win(a, b) + p_win(b, a) = 1."""
        variance = 2.0 * self.beta ** 2 + a.sigma ** 2 + b.sigma ** 2
        return cdf((a.mu - b.mu) / math.sqrt(variance))

    def fitness(self, r: Rating) -> float:
        """Returns mu - 3 sigma, the skill that a player has almost surely; 0 for a new one."""
        return r.mu - 3.0 * r.sigma


def child_rating(system: TrueSkill, parents: list[Rating]) -> Rating:
    """Returns the rating that a newborn inherits: mu is its parents' mean, and the variance is their mean
    plus (a quarter of a new player's sigma)^2, but at most a new player's. With a new player's own rating the
    child would have fitness 0, and be the next to be replaced."""
    n = len(parents)
    most = system.new().sigma
    mu = sum(r.mu for r in parents) / n
    var = sum(r.sigma ** 2 for r in parents) / n
    var += (most / 4) ** 2
    sigma = min(math.sqrt(var), most)
    return Rating(mu, sigma)
