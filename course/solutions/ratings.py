"""Solution of exercise 6. The limits stand in for v and w where the probability has lost its digits."""
import math
from statistics import NormalDist

NORMAL = NormalDist()
TINY = 1e-290


def phi_cdf(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))       # digits in the lower tail, unlike NormalDist.cdf


def rate(winner, loser, draw=False, beta=25 / 6, tau=25 / 300, p_draw=0.1):
    mu_w, sigma_w = winner
    mu_l, sigma_l = loser
    s_w = sigma_w ** 2 + tau ** 2
    s_l = sigma_l ** 2 + tau ** 2
    c = math.sqrt(2 * beta ** 2 + s_w + s_l)
    t = (mu_w - mu_l) / c
    e = NORMAL.inv_cdf((p_draw + 1) / 2) * math.sqrt(2) * beta / c
    if draw:
        a = e - abs(t)
        b = -e - abs(t)
        z = phi_cdf(a) - phi_cdf(b)
        v = (NORMAL.pdf(b) - NORMAL.pdf(a)) / z if z > TINY else a
        w = v * v + (a * NORMAL.pdf(a) - b * NORMAL.pdf(b)) / z if z > TINY else 1.0
        v *= math.copysign(1, t)
    else:
        z = phi_cdf(t - e)
        v = NORMAL.pdf(t - e) / z if z > TINY else e - t
        w = v * (v + t - e) if z > TINY else 1.0
    w = min(max(w, 0.0), 1.0)
    return ((mu_w + s_w * v / c, math.sqrt(s_w * (1 - w * s_w / c ** 2))),
            (mu_l - s_l * v / c, math.sqrt(s_l * (1 - w * s_l / c ** 2))))
