"""One expression from tokens to a tree: sums, products, powers, fractions, roots, functions.

It is read whole and in one way, or NotUnderstood: what two readers would read in two ways (1/2x,
3 4, 2^3^4) is no expression. What stands around expressions (lists, brackets, relations, units) is
in `reading`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from services.scoring.scorers.math.limits import NESTING, NotUnderstood
from services.scoring.scorers.math.numerals import base_of, is_fraction, is_whole, mixed, number
from services.scoring.scorers.math.tokens import FRACTION, Token
from services.scoring.scorers.math.trees import ONE, TEN, Apply, Num, Sym, Tree, minus

END = Token("end", "")
STARTS = ("name", "const", "fn", "word", "field")
OPENS = {"(": ")", "[": "]", "{": "}", "⌊": "⌋", "⌈": "⌉"}
MANY = ("gcd", "lcm", "min", "max")
INVERSES = {name: f"arc{name}" for name in ("sin", "cos", "tan")}
DEGREE = Token("op", "°")


def expression(tokens: Sequence[Token]) -> Tree:
    """Raises NotUnderstood, or TooLarge for a number of too many digits."""
    parser = _Parser(tokens)
    tree = parser.whole()
    if parser.next != END:
        raise NotUnderstood(f"it ends at {parser.next.text}")
    return tree


class _Parser:
    """Reads from left to right, one token ahead."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens, self._place, self._depth = tokens, 0, 0
        self._ended = -1
        """Where a power or a factorial ended: a number behind it is a factor."""

    @property
    def next(self) -> Token:
        return self._tokens[self._place] if self._place < len(self._tokens) else END

    def _at(self, *texts: str) -> bool:
        return self.next.kind == "op" and self.next.text in texts

    def _step(self) -> Token:
        token = self.next
        self._place += 1
        return token

    def _expect(self, text: str) -> None:
        if self._step().text != text:
            raise NotUnderstood(f"{text} is missing")

    def whole(self) -> Tree:
        """A sum, or one over another, as TeX has it between braces."""
        tree = self.sum()
        if not self._at("over", "choose"):
            return tree
        sign, below = self._step().text, self.sum()
        if sign == "choose":
            return Apply("binom", (tree, below))
        return _product_of([tree, Apply("inv", (below,))])

    def sum(self) -> Tree:
        terms = [self._signed(self._product)]
        while self._at("+", "-"):
            sign = self._step().text
            term = self._product()
            terms.append(minus(term) if sign == "-" else term)
        return terms[0] if len(terms) == 1 else Apply("+", tuple(terms))

    def _signed(self, read: Callable[[], Tree]) -> Tree:
        if not self._at("+", "-"):
            return read()
        sign = self._step().text
        tree = read()
        return minus(tree) if sign == "-" else tree

    def _product(self) -> Tree:
        if self._kinds(4) == ["num", "num", "/", "num"]:
            return self._plain_mixed()
        factors, divided, is_mixed = [self._power()], False, False
        while True:
            if self._at("*", "/"):
                divided = self._step().text == "/"
                factor = self._signed(self._power)
                factors.append(Apply("inv", (factor,)) if divided else factor)
            elif self._starts():
                if divided:
                    raise NotUnderstood("what stands behind / is one number, or in brackets")
                mixable = self.next == FRACTION and is_whole(factors[-1])
                factors.append(self._power())
                is_mixed |= mixable and is_fraction(factors[-1])
            else:
                break
        if is_mixed:
            return mixed(factors)
        return factors[0] if len(factors) == 1 else _product_of(factors)

    def _kinds(self, count: int) -> list[str]:
        found = self._tokens[self._place : self._place + count]
        return [token.text if token.kind == "op" else token.kind for token in found]

    def _plain_mixed(self) -> Tree:
        """1 1/2, and nothing behind it."""
        whole, above, _, below = (self._step() for _ in range(4))
        top, bottom = number(above.text), number(below.text)
        tree = mixed([number(whole.text), _product_of([top, Apply("inv", (bottom,))])])
        if self._at("*", "/", "^", "!") or self._starts():
            raise NotUnderstood("a mixed number in a product")
        return tree

    def _starts(self) -> bool:
        """Whether a factor follows without a sign; a number does not, since 2 3 is no product."""
        if self.next.kind == "num" and self._place != self._ended:
            raise NotUnderstood("a number follows without a sign")
        return self.next.kind in ("num", *STARTS) or self._at("(", "[", "{", "⌊", "⌈")

    def _power(self) -> Tree:
        tree = self._postfix(self._atom())
        if self._at("^"):
            self._step()
            tree = Apply("^", (tree, self._exponent()))
            self._ended = self._place
            if self._at("^"):
                raise NotUnderstood("a power of a power without brackets")
            tree = self._postfix(tree)
        return tree

    def _postfix(self, tree: Tree) -> Tree:
        if self._at("!"):
            self._step()
            tree = Apply("!", (tree,))
            self._ended = self._place
            if self._at("!"):
                raise NotUnderstood("!! has two meanings")
        if self.next == DEGREE:
            self._step()
            tree = Apply("deg", (tree,))
        return tree

    def _exponent(self) -> Tree:
        return self._signed(self._atom)

    def _atom(self) -> Tree:
        self._depth += 1
        if self._depth > NESTING:
            raise NotUnderstood("it is nested too deeply")
        tree = self._operand(self._step())
        self._depth -= 1
        return tree

    def _operand(self, token: Token) -> Tree:
        match token.kind:
            case "num":
                return self._based(token.text)
            case "name" | "word" | "field":
                return self._symbol(token)
            case "const":
                return Apply(token.text)
            case "fn":
                return self._call(token.text)
        if token.kind == "op" and token.text in OPENS:
            return self._enclosed(token.text)
        if token.kind == "op" and token.text == "|":
            return self._closed(Apply("abs", (self.sum(),)), "|")
        raise NotUnderstood(f"{token.text or 'the end'} where a number could stand")

    def _enclosed(self, opening: str) -> Tree:
        if self._kinds(3) == ["num", ")", "_"]:
            text, _ = self._step().text, self._step()
            return self._based(text)
        tree = self.whole()
        wrapped = {"⌊": Apply("floor", (tree,)), "⌈": Apply("ceil", (tree,))}.get(opening, tree)
        return self._closed(wrapped, OPENS[opening])

    def _closed(self, tree: Tree, closing: str) -> Tree:
        self._expect(closing)
        return tree

    def _symbol(self, token: Token) -> Tree:
        """A letter, with its subscript; letters that are called are no product."""
        if token.kind == "word" and len(token.text) > 1:
            raise NotUnderstood(f"the word {token.text}")
        name = f"\\{token.text}" if len(token.text) > 1 else token.text
        name = f"field {name}" if token.kind == "field" else name
        if self._at("_"):
            self._step()
            name += "_" + "".join(part.text for part in self._group())
        if token.text in "fghFGHPE" and self._at("("):
            raise NotUnderstood(f"{token.text}(…) may be a product")
        return Sym(name)

    def _group(self) -> Sequence[Token]:
        """The tokens of a subscript: one, or those between braces."""
        if not self._at("{"):
            return [self._step()]
        self._step()
        first = self._place
        while not self._at("}"):
            if self._step() == END or self._at("{"):
                raise NotUnderstood("a subscript that has no end")
        self._place += 1
        return self._tokens[first : self._place - 1]

    def _based(self, text: str) -> Num:
        if not self._at("_"):
            return number(text)
        self._step()
        return number(text, base_of(self._group()))

    def _call(self, name: str) -> Tree:
        if name == "frac":
            top, bottom = self._argument(), self._argument()
            return _product_of([top, Apply("inv", (bottom,))])
        if name == "binom":
            return Apply("binom", (self._argument(), self._argument()))
        if name == "sqrt":
            return self._root()
        return self._function(name)

    def _argument(self) -> Tree:
        """What stands between braces, or one digit, or one letter, as LaTeX has it."""
        if self.next.kind == "num":
            return self._digit()
        return self._atom()

    def _digit(self) -> Tree:
        """\\frac12 is a half; what is left of the number is the next argument."""
        text = self.next.text
        if not text.isdecimal():
            raise NotUnderstood("a decimal without braces")
        if len(text) > 1:
            rest = [Token("num", text[0]), Token("num", text[1:])]
            behind = self._tokens[self._place + 1 :]
            self._tokens = (*self._tokens[: self._place], *rest, *behind)
        return number(self._step().text)

    def _root(self) -> Tree:
        degree: Tree = Num(Fraction(2))
        if self._at("["):
            self._step()
            degree = self._closed(self.sum(), "]")
        if self.next.kind == "num" and len(self.next.text) > 1:
            raise NotUnderstood("a root of which digits?")
        return Apply("root", (degree, self._atom()))

    def _function(self, name: str) -> Tree:
        base, power = self._subscript(name), None
        if self._at("^"):
            self._step()
            power = self._exponent()
        if power == minus(ONE):
            if name not in INVERSES:
                raise NotUnderstood(f"{name}^(-1) has two meanings")
            name, power = INVERSES[name], None
        called = _called(name, base, self._arguments(name))
        return called if power is None else Apply("^", (called, power))

    def _subscript(self, name: str) -> Tree | None:
        if not self._at("_"):
            return None
        self._step()
        if name != "log":
            raise NotUnderstood(f"a subscript of {name}")
        if self.next.kind != "num" or not self._has_operand(1):
            return self._argument()
        return number(self._step().text)

    def _has_operand(self, further: int) -> bool:
        """Whether so many tokens further on something begins: \\log_10 x is no \\log_1 of 0x."""
        token = [*self._tokens[self._place + further :], END][0]
        return token.kind in ("num", *STARTS) or token.text in ("(", "[", "{", "|", "⌊", "⌈")

    def _arguments(self, name: str) -> list[Tree]:
        if not self._at("(", "{") or (self._at("{") and name in MANY):
            if name in MANY:
                raise NotUnderstood(f"{name} without brackets")
            return [self._run()]
        closing = OPENS[self._step().text]
        found = [self.sum()]
        while name in MANY and self.next.text == ",":
            self._step()
            found.append(self.sum())
        self._expect(closing)
        return found

    def _run(self) -> Tree:
        """The argument of sin 2x: a product up to a sign, a bracket or another function."""
        factors = [self._signed(self._power)]
        while self.next.kind in ("name", "const"):
            factors.append(self._power())
        if self._at("(", "[", "{", "/"):
            raise NotUnderstood("where the function's argument ends is not clear")
        return factors[0] if len(factors) == 1 else _product_of(factors)


def _product_of(factors: Sequence[Tree]) -> Tree:
    return Apply("*", tuple(factors))


def _called(name: str, base: Tree | None, arguments: list[Tree]) -> Tree:
    match name:
        case "log" if base is not None:
            return Apply("log", (base, *arguments))
        case "lg":
            return Apply("log", (TEN, *arguments))
        case "log":
            return Apply("log of no base", tuple(arguments))
    return Apply(name, tuple(arguments))
