r"""What a formula is written in: the pattern of one token, and signs beyond ASCII as LaTeX.

Which kind a command or a word is stands in `signs`, and what is made of it in `tokens`.
"""

from __future__ import annotations

import re
import unicodedata

from services.scoring.scorers.math.signs import UNICODE

TOKEN = re.compile(
    r"""
    (?P<row>\\\\(?:\[[^\]\n]{0,20}\])?)
  | (?P<money>\\\$|[€£¥₹¢])
  | (?P<space>\s+|~|\$|\\[,;:!>\ ()\[\]]
        |\\(?:left|right)(?![A-Za-z])\.?
        |\\(?:middle|[bB]igg?[lrm]?|(?:display|text|script)style|limits|q?quad|hline)(?![A-Za-z])
        |\\(?:[hv]space|h?phantom|(?:text)?color)\*?\s*\{[^{}]*\})
  | (?P<field>\\mathbb\s*\{?\s*[RNZQC]\s*\}?|\\mathbf\s*\{?\s*R\s*\}?|\\[RNZQ](?![A-Za-z]))
  | (?P<said>\\(?P<font>text(?:bf|it|rm|normal|sf|tt)?|math(?:rm|bf|it|sf)|[mh]box|operatorname|bm
        |boldsymbol)\*?\s*\{(?P<words>[^{}]*)\})
  | (?P<env>\\(?:begin|end)\s*\{\s*[A-Za-z]+\*?\s*\}(?:\{[clr|@\ ]*\})?)
  | (?P<degree>\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\}))
  | (?P<unclear>\d{4}-\d\d-\d\d(?!\d)|\d\d?/\d\d?/\d{4}(?!\d)|\d*\.\d+\(\d+\))
  | (?P<grouped>[1-9]\d{0,2}(?:(?:,(?:\\!\s*)?\d{3})+|(?:\\!,\d{3})+|(?:\{,\}\d{3})+|(?:\\,\d{3})+)
        (?!\d|,\d)(?:\.\d+)?)
  | (?P<repeating>\d*\.\(\d+\)
        |\d*\.\d*\\(?:overline|bar|dot)\s*(?:\{\d+\}|\d)(?:\d*\\dot\s*(?:\{\d\}|\d))?)
  | (?P<endless>\d*\.\d{3,60}\s*(?:\.\.\.|\\[cl]?dots(?![A-Za-z])))
  | (?P<hex>(?=[A-F]{0,64}[0-9])(?=[0-9]{0,64}[A-F])[0-9A-F]{2,64}
        (?=\s*\)?\s*_\s*\{?\s*1[1-6](?!\d)))
  | (?P<num>(?:\d*\.\d+|1)e[+-]?\d+|\d+e(?:\d|[+-]0)\d*|(?:\d+(?:\.\d+)?|\.\d+)(?:E[+-]?\d+)?)
  | (?P<dots>\.\.\.)
  | (?P<command>\\(?:[A-Za-z]+|.))
  | (?P<letters>[AaPp]\.\ ?[Mm]\.(?![A-Za-z])|[A-Za-z]+)
  | (?P<relation>\\not=|<=|>=|!=|==|[=<>])
  | (?P<power>\*\*)
  | (?P<op>.)
    """,
    re.VERBOSE | re.DOTALL,
)
WORDS = re.compile(r"[A-Za-z.' -]*")
FIRST = re.compile(r"\d+")
_RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻ⁿ]+")
_LOWERED = re.compile("[₀-₉]+")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
PERIOD = re.compile(r"(\d*\.)(\d*?)((\d)\4{2,}|(\d{2,9})\5+)")
"""A decimal whose last digits come again and again: thrice for one digit, twice for more."""
SLASH = "\N{FRACTION SLASH}"


def as_latex(formula: str) -> str:
    """Signs beyond ASCII as LaTeX has them: x² as x^2, ½ as a fraction, wide digits as digits."""
    formula = _RAISED.sub(lambda raised: "^" + _group(raised.group()), formula)
    formula = _LOWERED.sub(lambda lowered: "_" + _group(lowered.group()), formula)
    formula = _VULGAR.sub(
        lambda part: r"\frac{{{}}}{{{}}}".format(*_plain(part.group()).split(SLASH)), formula
    )
    for sign, latex in UNICODE.items():
        formula = formula.replace(sign, latex)
    return _plain(formula)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _group(signs: str) -> str:
    plain = _plain(signs).replace("\N{MINUS SIGN}", "-")
    return f"{plain} " if len(plain) == 1 else f"{{{plain}}}"
