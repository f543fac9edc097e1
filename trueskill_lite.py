"""Two-player ratings in closed form: who would win, and what a result changes.

>>> env = TrueSkill()
>>> a, b = env.rate(env.new(), env.new())            # a wins: (29.396, 7.171) and (20.604, 7.171)

TrueSkill is the two-player case of Herbrich, Minka & Graepel 2006, where message passing becomes formulas.
"""
import math
from dataclasses import dataclass
from statistics import NormalDist

SQRT2 = math.sqrt(2.0)
SQRT2PI = math.sqrt(2.0 * math.pi)
UNDERFLOW = 1e-290  # below this a probability has lost its digits: the limits of v and w are better


@dataclass(frozen=True)
class Rating:
    """Belief about one player: mean and standard deviation, in the units of the system that made it."""
    mu: float = 25.0
    sigma: float = 25.0 / 3.0


def pdf(x: float) -> float:
    """Density of the standard normal at x."""
    return math.exp(-0.5 * x * x) / SQRT2PI


def cdf(x: float) -> float:
    """P(z <= x) for standard normal z; through erfc, which keeps its digits in the lower tail."""
    return 0.5 * math.erfc(-x / SQRT2)


# --- TrueSkill ----------------------------------------------------------------------------------------------

def win_moments(t: float, e: float) -> tuple[float, float]:
    """(v, w) of a win: t = skill difference / c, e = draw margin / c (Herbrich 2006, eq. for 1[t > e]).

    v is the mean of the difference once the result is known, w what its variance loses."""
    x = t - e
    z = cdf(x)
    if z < UNDERFLOW:
        return -x, 1.0
    v = pdf(x) / z
    w = v * (v + x)
    return v, min(max(w, 0.0), 1.0)         # rounding must not make a variance negative


def draw_moments(t: float, e: float) -> tuple[float, float]:
    """(v, w) of a draw: t and e as for a win (Herbrich 2006, eq. for 1[|t| <= e])."""
    a = e - abs(t)
    b = -e - abs(t)
    sign = math.copysign(1.0, t)
    z = cdf(a) - cdf(b)
    if z < UNDERFLOW:  # a draw that could not happen (or a margin of zero): the limit, a gap at the margin
        return sign * a, 1.0
    v = (pdf(b) - pdf(a)) / z
    w = v * v + (a * pdf(a) - b * pdf(b)) / z
    return sign * v, min(max(w, 0.0), 1.0)


@dataclass(frozen=True)
class TrueSkill:
    """TrueSkill for two players: a difference of beta (4.17) is about a 76% win; tau is drift per match."""
    beta: float = 25.0 / 6.0
    tau: float = 25.0 / 300.0
    p_draw: float = 0.1

    def new(self) -> Rating:
        """Rating of a player nobody has seen."""
        return Rating()

    def rate(self, winner: Rating, loser: Rating, draw: bool = False) -> tuple[Rating, Rating]:
        """New ratings (winner, loser) after one match; with draw=True the order does not matter."""
        var_w = winner.sigma ** 2 + self.tau ** 2
        var_l = loser.sigma ** 2 + self.tau ** 2
        c2 = 2.0 * self.beta ** 2 + var_w + var_l           # variance of the difference of performances
        c = math.sqrt(c2)
        margin = NormalDist().inv_cdf((self.p_draw + 1.0) / 2.0) * SQRT2 * self.beta
        moments = draw_moments if draw else win_moments
        v, w = moments((winner.mu - loser.mu) / c, margin / c)
        sigma_w = math.sqrt(var_w * (1.0 - w * var_w / c2))
        sigma_l = math.sqrt(var_l * (1.0 - w * var_l / c2))
        return Rating(winner.mu + var_w * v / c, sigma_w), Rating(loser.mu - var_l * v / c, sigma_l)

    def p_win(self, a: Rating, b: Rating) -> float:
        """P(a performs better than b), no draw margin: p_win(a, b) + p_win(b, a) = 1."""
        return cdf((a.mu - b.mu) / math.sqrt(2.0 * self.beta ** 2 + a.sigma ** 2 + b.sigma ** 2))

    def fitness(self, r: Rating) -> float:
        """Conservative rating mu - 3 sigma: the skill that the player has almost surely; 0 for a new one."""
        return r.mu - 3.0 * r.sigma


def child_rating(env: TrueSkill, parents: list[Rating], widen: float = 0.25) -> Rating:
    """Rating of a newborn from its parents' Ratings, in the system `env`. mu: their mean; variance: their
    mean plus (widen * sigma of a new player)^2, at most a new player's. With a new player's own rating, of
    fitness 0, the child would be the next to be replaced."""
    n = len(parents)
    mu = sum(r.mu for r in parents) / n
    var = sum(r.sigma ** 2 for r in parents) / n
    most = env.new().sigma
    var = var + (widen * most) ** 2
    return Rating(mu, min(math.sqrt(var), most))
