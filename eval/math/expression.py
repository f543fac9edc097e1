"""Mathematical text to a small tree: a tokenizer and a precedence-climbing parser for LaTeX and plain text.

`read` is the only place where a model's formula is understood, and it knows a whitelist: nothing is evaluated
or looked up, sizes are bounded before work is done. A tree is a nested tuple that says first what it is:

    scalars     ("num", Fraction) ("sym", name) ("const", "pi" | "e" | "i" | "oo") ("fn", name, a) ("neg", a)
                ("add" | "mul" | "div" | "pow", a, b) ("root", a, n) ("log", a, base) ("fact", a)
                ("binom", n, k) ("percent", a) ("degree", a)
    the rest    ("base", number as if decimal, base) ("text", words) ("tuple", "(" | "[", ")" | "]", items)
                ("set", items) ("list", items) ("union", items) ("matrix", rows) ("eq", left, right)
                ("rel", "<" | "<=" | "!=", left, right)
"""
import re
import unicodedata
from fractions import Fraction

MAX_CHARS, MAX_TOKENS, MAX_DEPTH, MAX_DIGITS = 2000, 250, 40, 300
FUNCTIONS = tuple("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln exp log abs".split())
GREEK = ("alpha beta gamma delta epsilon varepsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau "
         "phi varphi chi psi omega Gamma Delta Theta Lambda Sigma Phi Psi Omega").split()
CONSTANTS = {"pi": "pi", "infty": "oo", "infinity": "oo", "inf": "oo", "oo": "oo", "e": "e", "i": "i"}
NAMES = {*FUNCTIONS, *GREEK, *CONSTANTS}
TEXT = (r"\\(?:text|textbf|textit|textrm|mbox|mathrm|mathbf|mathit|mathsf|operatorname|hbox|rm|bf|vec"
        r"|overrightarrow)\b\s*")
UNICODE = {"−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "⁄": "/", "∣": "|",
           "’": "'", "²": "^2", "³": "^3", "√": r"\sqrt ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ",
           "≠": r"\ne ", "≈": r"\approx ", "∪": r"\cup ", "∈": r"\in ", "±": r"\pm ", "∓": r"\mp ",
           "°": r"\degree ", "¢": r"\text{cents}", "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ",
           "β": r"\beta ", "λ": r"\lambda ", "φ": r"\phi ", "ω": r"\omega "}
# typography that means nothing, or the same as something shorter; in this order
PLAIN = [(r"\\[dtc]frac\b|\\frac\b", r"\\frac "), (r"\\\\\s*\[[^\]]*(?:pt|em|ex)\]", r"\\\\ "),
         (r"(?<=\d)(?:,\\!|\{,\}|\\[,!;:])\s*(?=\d{3})", ""),
         (r"\\begin\s*\{[pb]?matrix\}|\\begin\s*\{array\}\s*\{[^{}]*\}", r" \\matrix "),
         (r"\\end\s*\{(?:[pb]?matrix|array)\}", r" \\endmatrix "),
         (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ\b)|\\degrees?\b", r" \\degree "),
         (r"\\leq(?:slant|q)?\b", r"\\le "), (r"\\geq(?:slant|q)?\b", r"\\ge "), (r"\\neq\b", r"\\ne "),
         (r"\\lvert|\\rvert|\\vert", "|"),
         (r"\\operatorname\s*\{?(?=(?:arc)?(?:sin|cos|tan|cot|sec|csc)\b)", r"\\text{"),
         (TEXT + r"\{\s*(?:and|or)\s*,?\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])", " , "), (r",\s*,", ","),
         (TEXT + r"\{([^{}]*)\}", r" \1 "), (TEXT, " "),
         (r"([\])])\s*U\s*(?=[\[(])", r"\1 \\cup "), (r"^\s*\\(?:approx|simeq)\b", ""),
         (r"^(\s*\\?[A-Za-z]+\s*)\\(?:approx|simeq)\b", r"\1="), (r"\\(?:approx|simeq)\b.*", ""),
         (r"^\s*(?:[A-Za-z]{4,}|[A-Za-z]+(?:\s+[A-Za-z]+)+)\s*=", ""),
         (r"^\s*(?:m\s*)?\\angle\s*\{?\s*[A-Z]{1,3}\s*\}?\s*=", ""), (r"\\in\b|\\colon\b", r" \\in "),
         (r"[.,;:\s]+$", ""), (r"\*\*(?=\s*[-+(\w{\\])", "^")]
TOKEN = re.compile(r"(?P<row>\\\\)|(?P<space>\s+|\\[,!;:> ]|~"
                   r"|\\(?:left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|q?quad|limits)(?![A-Za-z])"
                   r"|\\[()\[\]]|\$|`)"
                   r"|(?P<repeat>\d*\.\d*\\overline\s*\{\s*\d+\s*\})"
                   r"|(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3}(?![\d.]))?)"
                   r"|(?P<command>\\[A-Za-z]+|\\[{}%|])|(?P<word>[A-Za-z]+)"
                   r"|(?P<op><=|>=|!=|[-+*/^_=<>()\[\]{}|,;:!&%])", re.ASCII)
SAME = {r"\cdot": "*", r"\times": "*", r"\ast": "*", r"\div": "/", ":": "/", r"\le": "<=", r"\ge": ">=",
        r"\ne": "!=", r"\lt": "<", r"\gt": ">", r"\%": "%", r"\|": "|", r"\lbrace": r"\{", r"\rbrace": r"\}",
        r"\langle": "(", r"\rangle": ")", ";": ","}
POSTFIX = {"!": "fact", "%": "percent", r"\degree": "degree"}
OPENING = ("(", "{", r"\{", r"\frac", r"\sqrt", r"\binom", r"\lfloor", r"\lceil")


class Unreadable(Exception):
    """The text is no formula of this grammar; never leaves this module."""


def tidy(text: str) -> str:
    """Text without typography: Unicode signs as LaTeX, words unpacked, decimal and row marks unified."""
    for sign, latex in UNICODE.items():
        text = text.replace(sign, latex)
    text = unicodedata.normalize("NFKC", re.sub(r"(?<=\d)(?=[¼-¾⅐-⅞])", " ", text)).replace("⁄", "/")
    for pattern, by in PLAIN:
        text = re.sub(pattern, by, text, flags=re.S)
    return text.strip()


def read(text: str, thousands: bool = True) -> tuple | None:
    """The tree of a formula ("\\pm" gives a list), or None where it is not one, or too large. Never raises.

    thousands: "1,234" is one number (else two, as always in brackets); so is "1{,}234", whatever it says.
    """
    if len(text) > MAX_CHARS:
        return None
    text = tidy(text)
    if thousands:
        text = re.sub(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", without_commas, text)
    words = re.findall(r"[A-Za-z]+", text)
    longest = max(map(len, words), default=0)
    known = any(word in NAMES or word == "sqrt" for word in words)
    prose = longest > 3 or longest > 1 and len(words) > 1 and "-" not in text
    if prose and not known and re.fullmatch(r"[(\s]*[A-Za-z][A-Za-z\s.'-]*[)\s]*", text):
        return ("text", " ".join(words).lower())
    try:
        tokens = tokenize(text)
        if not any(token in (r"\pm", r"\mp") for token in tokens):
            return Parser(tokens).all()
        upper = [{r"\pm": "+", r"\mp": "-"}.get(token, token) for token in tokens]
        lower = [{r"\pm": "-", r"\mp": "+"}.get(token, token) for token in tokens]
        return merge(Parser(upper).all(), Parser(lower).all())
    except Unreadable:
        return None


def without_commas(number: re.Match) -> str:
    """A number with commas for thousands without them, unless brackets are open around it."""
    before = number.string[:number.start()]
    is_open = before.count("(") + before.count("[") != before.count(")") + before.count("]")
    return number[0] if is_open else number[0].replace(",", "")


def merge(a: tuple, b: tuple) -> tuple:
    """The list of what two readings of a plus-minus formula name: items that differ are both in it."""
    if a[0] == b[0] == "eq" and a[1] == b[1]:
        a, b = a[2], b[2]
    upper, lower = [x[1] if x[0] in ("set", "list") else (x,) for x in (a, b)]
    return ("list", (*upper, *[item for item in lower if item not in upper]))


def tokenize(text: str) -> list:
    """Strings for signs and commands, ("sym", name), ("num", Fraction, as written). Raises Unreadable."""
    tokens, at = [], 0
    while at < len(text):
        m = TOKEN.match(text, at)
        if not m or len(tokens) > MAX_TOKENS:
            raise Unreadable
        at, kind, word = m.end(), m.lastgroup, m[0]
        if kind in ("number", "repeat") and len(word) > MAX_DIGITS:
            raise Unreadable
        if kind == "number":
            plain = f"0{word}".lower().replace(".e", "e").rstrip(".")
            tokens.append(("num", Fraction(plain), word))
        elif kind == "repeat":
            whole, before, again = re.fullmatch(r"(\d*)\.(\d*)\\overline\D*(\d+)\D*", word).groups()
            tail = Fraction(int(again), (10 ** len(again) - 1) * 10 ** len(before))
            tokens.append(("num", Fraction(f"0{whole}.{before}0") + tail, word))
        elif kind == "word":
            tokens += spell(word)
        elif kind == "command":
            name = word[1:]
            tokens += spell(name) if name in NAMES else [SAME.get(word, word)]
        elif kind in ("op", "row"):
            tokens.append(SAME.get(word, word))
    return tokens


def spell(word: str) -> list:
    """Tokens of a run of letters: a known name, or a product of at most three symbols. Raises Unreadable."""
    if word in FUNCTIONS:
        return ["\\" + word]
    if word == "sqrt":
        return [r"\sqrt"]
    if word in CONSTANTS:
        return [("const", CONSTANTS[word])]
    if word in GREEK:
        return [("sym", word)]
    if len(word) > 3:
        raise Unreadable
    return [("const", c) if c in "ei" else ("sym", c) for c in word]


class Parser:
    """Precedence climbing: sums 10, products 20 (also unwritten ones), powers 40; then postfix signs."""

    def __init__(self, tokens: list):
        self.tokens, self.at, self.depth, self.bars = list(tokens), 0, 0, 0

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, *wanted):
        """The next token; Unreadable where it is not among the wanted ones."""
        token = self.peek()
        if token is None or wanted and token not in wanted:
            raise Unreadable
        self.at += 1
        return token

    def found(self, *wanted) -> bool:
        """Takes the next token if it is one of these."""
        if self.peek() in wanted:
            self.at += 1
            return True
        return False

    def all(self) -> tuple:
        """The whole text: one value, or a list of them."""
        items = self.items(lambda: self.peek() is None)
        return items[0] if len(items) == 1 else ("list", items)

    def items(self, ended) -> tuple:
        """Values between commas until `ended`; at least one."""
        found = [self.value()]
        while not ended():
            self.take(",")
            found.append(self.value())
        return tuple(found)

    def value(self) -> tuple:
        """A union, a relation or an expression."""
        parts = [self.relation()]
        while self.found(r"\cup"):
            parts.append(self.relation())
        return parts[0] if len(parts) == 1 else ("union", tuple(parts))

    def relation(self) -> tuple:
        """An expression, an equation (a chain's ends), or the interval that an inequality means."""
        sides, signs = [self.expression()], []
        while self.peek() in ("=", "<", ">", "<=", ">=", "!=", r"\in"):
            signs.append(self.take())
            sides.append(self.expression())
        if not signs:
            return sides[0]
        if r"\in" in signs:
            return sides[-1] if len(signs) == 1 and sides[0][0] == "sym" else self.fail()
        if set(signs) == {"="}:
            return ("eq", sides[0], sides[-1])
        if set(signs) <= {">", ">="}:
            signs, sides = [sign.replace(">", "<") for sign in signs[::-1]], sides[::-1]
        infinity, ordered = ("const", "oo"), set(signs) <= {"<", "<="}
        left, right = "(" if signs[0] == "<" else "[", ")" if signs[-1] == "<" else "]"
        if len(signs) == 2 and ordered and sides[1][0] == "sym":
            return ("tuple", left, right, (sides[0], sides[2]))
        if len(signs) > 1:
            raise Unreadable
        if ordered and sides[0][0] == "sym":
            return ("tuple", "(", right, (("neg", infinity), sides[1]))
        if ordered and sides[1][0] == "sym":
            return ("tuple", left, ")", (sides[0], infinity))
        return ("rel", signs[0], sides[0], sides[1])

    def fail(self):
        raise Unreadable

    def starts(self) -> bool:
        """Whether the next token can begin a factor, so that a product sign was left out."""
        token = self.peek()
        if not isinstance(token, str):
            return isinstance(token, tuple)
        if token == "|":
            return not self.bars
        return token in OPENING or token[0] == "\\" and token[1:] in FUNCTIONS

    def expression(self, least: int = 0) -> tuple:
        """An expression of operators that bind at least as tightly as `least`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable
        left = self.prefix()
        while True:
            token = self.peek()
            if token in POSTFIX:
                self.at += 1
                left = (POSTFIX[token], left)
            elif token == "^":
                self.at += 1
                left = ("pow", left, self.exponent())
            elif token in ("*", "/") and least <= 20:
                self.at += 1
                left = ("mul" if token == "*" else "div", left, self.expression(21))
            elif token in ("+", "-") and least <= 10:
                self.at += 1
                right = self.expression(11)
                left = ("add", left, right if token == "+" else ("neg", right))
            elif self.starts() and least <= 20:
                if isinstance(token, tuple) and token[0] == "num" and left[0] == "num":
                    left = self.mixed(left)
                else:
                    left = ("mul", left, self.expression(21))
            else:
                self.depth -= 1
                return left

    def exponent(self) -> tuple:
        """What follows ^: right-associative, perhaps signed."""
        if self.found("-"):
            return ("neg", self.exponent())
        inner = self.argument(digits=True)
        return ("pow", inner, self.exponent()) if self.found("^") else inner

    def mixed(self, whole: tuple) -> tuple:
        """1 1/2: a whole number, then a fraction below one. Two numbers side by side are nothing else."""
        top = self.take()
        self.take("/")
        bottom = self.take()
        if bottom[0] != "num" or not (whole[1].denominator == 1 and 0 < top[1] < bottom[1]):
            raise Unreadable
        return ("add", whole, ("div", top[:2], bottom[:2]))

    def prefix(self) -> tuple:
        """A signed atom; the sign binds looser than powers and products."""
        if self.found("-"):
            return ("neg", self.expression(20))
        if self.found("+"):
            return self.expression(20)
        return self.atom()

    def argument(self, digits: bool = False) -> tuple:
        """What follows \\frac, ^ or \\sqrt: a group or the next sign; all `digits` or one."""
        token = self.peek()
        if not digits and isinstance(token, tuple) and token[0] == "num" and token[2].isdigit():
            parts = filter(None, (token[2][0], token[2][1:]))
            self.tokens[self.at:self.at + 1] = [("num", Fraction(text), text) for text in parts]
        return self.atom()

    def atom(self) -> tuple:
        """A number, symbol, group, function, fraction, root, set, tuple or matrix."""
        token = self.take()
        if isinstance(token, tuple):
            return self.number(token) if token[0] == "num" else self.symbol(token)
        if token == "{":
            inner = self.value()
            self.take("}")
            return inner
        if token in ("(", "["):
            items = self.items(lambda: self.peek() in (")", "]"))
            close = self.take()
            group = len(items) == 1 and token + close in ("()", "[]")
            return items[0] if group else ("tuple", token, close, items)
        if token == r"\{":
            items = () if self.peek() == r"\}" else self.items(lambda: self.peek() == r"\}")
            self.take(r"\}")
            return ("set", items)
        if token == "|":
            self.bars += 1
            inner = self.expression()
            self.take("|")
            self.bars -= 1
            return ("fn", "abs", inner)
        if token in (r"\lfloor", r"\lceil"):
            inner = self.expression()
            self.take(token.replace("\\l", "\\r"))
            return ("fn", "floor" if token == r"\lfloor" else "ceil", inner)
        if token == r"\matrix":
            return self.matrix()
        return self.call(token)

    def number(self, token: tuple) -> tuple:
        """A number; with a subscript, digits in another base; before a fraction below one, a mixed number."""
        value = token[:2]
        if self.peek() == "_":
            self.at += 1
            base = self.argument(digits=True)
            return ("base", value[1], base[1]) if base[0] == "num" else self.fail()
        if self.peek() == r"\frac" and token[1].denominator == 1:
            start, self.at = self.at, self.at + 1
            top, bottom = self.argument(), self.argument()
            if top[0] == bottom[0] == "num" and 0 < top[1] < bottom[1]:
                return ("add", value, ("div", top, bottom))
            self.at = start
        return value

    def symbol(self, token: tuple) -> tuple:
        """A symbol or constant; with a subscript, a symbol of a longer name."""
        if not self.found("_"):
            return token
        start, name = self.at, ""
        self.argument(digits=True)
        for part in self.tokens[start:self.at]:
            name += part if isinstance(part, str) else str(part[-1])
        return ("sym", f"{token[1]}_{name.strip('{}')}")

    def call(self, token: str) -> tuple:
        """A fraction, root, binomial or function with its argument. Raises Unreadable for other commands."""
        if token == r"\frac":
            return ("div", self.argument(), self.argument())
        if token == r"\binom":
            return ("binom", self.argument(), self.argument())
        if token == r"\sqrt":
            degree = ("num", Fraction(2))
            if self.found("["):
                degree = self.expression()
                self.take("]")
            return ("root", self.argument(), degree)
        if token[:1] != "\\" or token[1:] not in FUNCTIONS:
            raise Unreadable
        name, power, base = token[1:], None, None
        if self.found("_"):
            base = self.argument(digits=True)
        if self.found("^"):
            power = self.argument(digits=True)
        inner = self.expression(35)
        while isinstance(self.peek(), tuple):           # sin 2x is sin(2x), sin x cos x is a product
            inner = ("mul", inner, self.expression(35))
        if base is not None and name != "log":
            raise Unreadable
        if power == ("neg", ("num", Fraction(1))) and name in ("sin", "cos", "tan"):
            return ("fn", "arc" + name, inner)
        made = ("log", inner, base) if base is not None else ("fn", name, inner)
        return made if power is None else ("pow", made, power)

    def matrix(self) -> tuple:
        """Rows of cells between \\matrix and \\endmatrix; a row sign at the end opens no further row."""
        rows = [[]]
        while not self.found(r"\endmatrix"):
            rows[-1].append(self.value())
            if self.found(r"\\"):
                if self.peek() != r"\endmatrix":
                    rows.append([])
            elif self.peek() != r"\endmatrix":
                self.take("&")
        if not rows[0] or len({len(row) for row in rows}) != 1:
            raise Unreadable
        return ("matrix", tuple(map(tuple, rows)))
