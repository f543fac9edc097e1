"""Exercise 6: the TrueSkill update of two players.

Check it with: python -m pytest course/tests/test_ratings.py

Herbrich, Minka & Graepel 2006 (TrueSkill: A Bayesian skill rating system), the case of one winner and one
loser. A player's skill is believed to be normal with mean mu and standard deviation sigma; a performance adds
noise of variance beta^2; between matches a skill drifts by tau. With the variances s = sigma^2 + tau^2 of
winner (w) and loser (l):

    c^2 = 2 beta^2 + s_w + s_l        t = (mu_w - mu_l) / c        e = margin / c
    margin = Phi^-1((p_draw + 1) / 2) sqrt(2) beta         the draw margin: p_draw of even matches are draws

    win    v = phi(t - e) / Phi(t - e)                             w = v (v + t - e)
    draw   a = e - |t|, b = -e - |t|, z = Phi(a) - Phi(b)
           v = sign(t) (phi(b) - phi(a)) / z                       w = v^2 + (a phi(a) - b phi(b)) / z

    mu_w += s_w v / c     sigma_w^2 = s_w (1 - w s_w / c^2)
    mu_l -= s_l v / c     sigma_l^2 = s_l (1 - w s_l / c^2)

phi, Phi: density and distribution of the standard normal. statistics.NormalDist has phi (pdf) and Phi^-1
(inv_cdf); take Phi(x) = erfc(-x / sqrt(2)) / 2 with math.erfc, because NormalDist.cdf loses its digits below
-6 or so. The trap: for a great surprise Phi(t - e) underflows to 0. What do v and w tend to as t - e goes to
minus infinity? The same happens to z in a draw of very unequal players: there v tends to sign(t) a, w to 1.
"""
Rating = tuple[float, float]            # mu, sigma


def rate(
    winner: Rating,
    loser: Rating,
    draw: bool = False,
    beta: float = 25 / 6,               # deviation of a performance from the skill
    tau: float = 25 / 300,              # drift of a skill between two matches
    p_draw: float = 0.1,                # share of draws among matches of equals
) -> tuple[Rating, Rating]:
    """New ratings of winner and loser; with draw=True their order does not matter."""
    raise NotImplementedError("exercise 6")
