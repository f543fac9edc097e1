"""What a share says: Wilson's interval. Needs Python alone, as the report does."""
import math

Z = 1.959964                        # of a 95% interval


def wilson(right: float, n: float) -> tuple[float, float]:
    """Score interval of a share (Wilson 1927), 95%; (0, 1) for n = 0. right: also a sum of shares."""
    if n == 0:
        return 0.0, 1.0
    p = right / n
    middle = p + Z * Z / (2 * n)
    half = Z * math.sqrt(max(p * (1 - p), 0.0) / n + Z * Z / (4 * n * n))
    scale = 1 + Z * Z / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
