"""Derivations in Hofstadter's MIU system: the micro base's way of writing proofs over theories/miu.mm.

    MII         given
    MIIII       what stands behind M may be doubled
    MUI         three I become a U

says that MUI follows from MII. `metamath` writes such lines as the statement and the proof that the verifier
(metamath.py) checks; nothing is checked here. `derivation` makes them up, for training.
"""
import random
import re

THEORY = "miu.mm"
LONGEST = 16            # letters of a string that is written by `derivation`


def rules(s: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Every string that one rule makes of s: the rule's label in miu.mm, and what its variables stand for."""
    found = {}
    if s.endswith("I"):
        found[s + "U"] = "addu", (s[:-1],)
    found.setdefault(s + s[1:], ("double", (s[1:],)))
    for label, old, new in (("iii", "III", "U"), ("uu", "UU", "")):
        for at in range(1, len(s) - len(old) + 1):
            if s.startswith(old, at):
                x, y = s[:at], s[at + len(old):]
                found.setdefault(x + new + y, (label, (x, y)))
    return found


def lines_of(text: str) -> list[str] | None:
    """The strings in a text, one a line; None where a line is none."""
    lines = text.strip("\n").split("\n")
    is_string = [line[:1] == "M" and len(line) > 1 and not line[1:].strip("IU") for line in lines]
    return lines if all(is_string) else None


def statement(given: str, proved: str) -> str:
    """What is to be proved, as Metamath: `proved` follows from `given`."""
    return f"h $e |- {' '.join(given)} $.\ntheorem $p |- {' '.join(proved)}"


def ends_of(said: str) -> tuple[str, str, str]:
    """Label and string of the first hypothesis of a statement, or else of the axiom; and what is proved,
    nothing if that is no string."""
    found = re.findall(r"(\S+) \$([ep]) \|- ([MIU ]+)", said)
    given = [(label, string) for label, kind, string in found if kind == "e"] or [("mi", "M I")]
    proved = [string for _, kind, string in found if kind == "p"] or [""]
    label, string = given[0]
    return label, string.replace(" ", ""), proved[0].replace(" ", "")


def metamath(lines: list[str], label: str = "h") -> str | None:
    """The proof of the last string from the first, which has a label; None where no rule makes a step."""
    proof = label
    for before, after in zip(lines, lines[1:]):
        found = rules(before)
        if after not in found:
            return None
        rule, parts = found[after]
        spelled = [" ".join(["se", *(f"s{letter}" for letter in part)]) for part in parts]
        proof = " ".join([*spelled, proof, rule])
    return proof


def derivation(rng: random.Random, n: int) -> list[str]:
    """A random string and n steps from it, none of which has been there before."""
    while True:
        lines = ["M" + "".join(rng.choices("IU", (3, 1), k=rng.randint(1, 6)))]
        while len(lines) <= n:
            following = [s for s in rules(lines[-1]) if 1 < len(s) <= LONGEST and s not in lines]
            if not following:
                break
            lines.append(rng.choice(following))
        if len(lines) > n:
            return lines
