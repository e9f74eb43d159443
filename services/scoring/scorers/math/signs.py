"""What each sign, command and word of a formula is; how they are found is in `tokens`."""

# ruff: noqa: RUF001 - signs that look alike are told apart here
from __future__ import annotations

UNICODE = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ",
    "±": r"\pm ", "∓": r"\mp ", "√": r"\sqrt ", "π": r"\pi ", "∞": r"\infty ", "°": r"\degree ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∪": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "…": r"\ldots ",
    "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "≡": r"\equiv ", "∶": ":",
    "∖": r"\setminus ", "⟨": r"\langle ", "⟩": r"\rangle ", "θ": r"\theta ", "α": r"\alpha ",
    "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "λ": r"\lambda ", "μ": r"\mu ",
    "ρ": r"\rho ", "σ": r"\sigma ", "φ": r"\phi ", "ω": r"\omega ", "Δ": r"\Delta ", "‐": "-",
    "‑": "-", "∙": r"\cdot ", "⁄": "/", "、": ",", "或": " or ", "和": " and ", "且": " and ",
}  # fmt: skip
"""Signs beyond ASCII that mean something, before Unicode's own equivalents of the others."""
_GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi"
    " rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi"
    " Omega ell"
)
_FUNCTIONS = (
    "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan ln lg log exp gcd lcm min max"
    " sqrt frac binom"
)
GREEK, FUNCTIONS = frozenset(_GREEK.split()), frozenset(_FUNCTIONS.split())
CONSTANTS = {"pi": "pi", "infty": "oo", "infinity": "oo", "inf": "oo"}
SAME = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom",
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "tg": "tan", "ctg": "cot",
    "arctg": "arctan", "cosec": "csc",
}  # fmt: skip
FONTS = (
    "mathbf", "mathrm", "mathit", "mathsf", "boldsymbol", "bm", "underline", "bf", "rm", "it",
    "ensuremath",
)  # fmt: skip
"""They change how a formula looks; where words stand in them, `tokens` reads these first."""

OPERATORS = {
    "cdot": "*", "times": "*", "ast": "*", "div": "/", "pm": "±", "mp": "∓", "%": "%",
    "cup": "cup", "cap": "cap", "setminus": "setminus", "backslash": "setminus",
    "{": "⦃", "}": "⦄", "lbrace": "⦃", "rbrace": "⦄",
    "lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "langle": "⟨", "rangle": "⟩",
    "colon": ":", "degree": "°", "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉",
    "ldots": "…", "dots": "…", "cdots": "…", "dotsc": "…", "emptyset": "∅", "varnothing": "∅",
    "lbrack": "[", "rbrack": "]", "_": "_", "over": "over", "choose": "choose",
}  # fmt: skip
RELATIONS = {
    "=": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "!=": "!=", "==": "=", "le": "<=",
    "leq": "<=", "leqslant": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "lt": "<",
    "gt": ">", "ne": "!=", "neq": "!=", "\\not=": "!=", "in": "∈", "approx": "≈",
}  # fmt: skip
SEPARATORS = {"and": "and", "or": "or", "land": "and", "wedge": "and", "lor": "or", "vee": "or"}
MONEY = {"\\$": "dollar", "€": "euro", "£": "pound_sterling", "¥": "yen", "₹": "rupee", "¢": "cent"}
LONE_WORDS = ("yes", "no", "none", "dne", "true", "false")
OPENING, CLOSING = frozenset("([⦃⟨"), frozenset(")]⦄⟩")
