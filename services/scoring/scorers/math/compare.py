"""Whether an answer is the reference: like with like, by the policies where readers differ.

The two have types of their own, so that they cannot change places: an answer may say more than the
reference does (a unit, a name), and not less.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from services.scoring.scorers.math.equality import equal, proportional
from services.scoring.scorers.math.kinds import (
    Bracketed,
    Choice,
    Collection,
    Dots,
    Equation,
    Expression,
    Inequality,
    Listing,
    Matrix,
    Named,
    Percent,
    Piece,
    Quantity,
    Ratio,
    Reals,
    Text,
    Value,
)
from services.scoring.scorers.math.limits import NotUnderstood
from services.scoring.scorers.math.names import apart, as_relation, is_same_name, one_by_one
from services.scoring.scorers.math.numbers import same_number
from services.scoring.scorers.math.policies import Policies
from services.scoring.scorers.math.reals import as_reals
from services.scoring.scorers.math.trees import ONE, Apply, Num, Sym, Tree


class Reference(NamedTuple):
    """What is right."""

    value: Value


class Given(NamedTuple):
    """What is to be judged."""

    value: Value


def agrees(reference: Reference, given: Given, policies: Policies) -> bool:
    """Raises TooLarge or Undefined where one of the two has no value."""
    return _Comparison(policies).same(reference.value, given.value)


HUNDREDTH = Fraction(1, 100)


class _Comparison:
    """`a` is always the reference, `b` what is judged."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    def same(self, a: Value, b: Value) -> bool:
        if isinstance(a, Choice) or isinstance(b, Choice):
            return self._choice(a, b)
        if isinstance(a, Named) or isinstance(b, Named):
            return self._named(a, b)
        if isinstance(a, Reals) or isinstance(b, Reals):
            return self._reals(a, b)
        if type(a) is type(b):
            return self._alike(a, b)
        return self._unlike(a, b)

    def _choice(self, a: Value, b: Value) -> bool:
        """By the letter, and by what it stands for where that is said on both sides."""
        match a, b:
            case Choice(letter, one), Choice(other, given):
                return letter == other and self.same(one, given)
            case Choice(letter, one), value:
                return _is_letter(value, letter) or self.same(one, value)
            case value, Choice(letter, one):
                return _is_letter(value, letter) or self.same(value, one)
        return False

    def _alike(self, a: Value, b: Value) -> bool:
        match a, b:
            case (Expression(one), Expression(other)) | (Percent(one), Percent(other)):
                return self._number(one, other)
            case Quantity() as one, Quantity() as other:
                return self._quantity(one, other)
            case Ratio(ones, word), Ratio(others, said):
                return said in (word, word or said) and self._numbers(ones, others)
            case Matrix(ones), Matrix(others):
                pairs = zip(ones, others, strict=False)
                return len(ones) == len(others) and all(self._numbers(*pair) for pair in pairs)
            case Equation(one), Equation(other):
                return proportional(one, other)
            case Inequality(one, closed), Inequality(other, as_closed):
                return closed == as_closed and proportional(one, other, positive=True)
        return self._several(a, b)

    def _several(self, a: Value, b: Value) -> bool:
        match a, b:
            case Bracketed() as one, Bracketed() as other:
                return _brackets(one) == _brackets(other) and self._in_order(one.items, other.items)
            case Listing(ones), Listing(others):
                if apart(ones) != apart(others):
                    return False
                is_ordered = Dots() in (*ones, *others)
                return (self._in_order if is_ordered else self._unordered)(ones, others)
            case Collection(ones), Collection(others):
                return self._unordered(self._once(ones), self._once(others))
        return a == b

    def _unlike(self, a: Value, b: Value) -> bool:
        match a, b:
            case (Expression(), Percent()) | (Percent(), Expression()):
                return self._percent(a, b)
            case Expression(one), Quantity(other):
                return self._number(one, other)
            case Quantity(one, unit), Expression(other):
                is_optional = self._policies.units == "optional" or not unit.bases
                return is_optional and self._number(one, other)
            case (Listing(ones), Collection(others)) | (Collection(ones), Listing(others)):
                return self._unordered(self._once(ones), self._once(others))
        return False

    def _number(self, a: Tree, b: Tree) -> bool:
        return same_number(a, b, self._policies)

    def _numbers(self, a: Sequence[Tree], b: Sequence[Tree]) -> bool:
        return len(a) == len(b) and all(self._number(*pair) for pair in zip(a, b, strict=True))

    def _percent(self, a: Value, b: Value) -> bool:
        assert isinstance(a, Expression | Percent) and isinstance(b, Expression | Percent)
        policy = self._policies.percent
        if policy != "value" and self._number(a.tree, b.tree):
            return True
        worth = [_times(x.tree, HUNDREDTH if type(x) is Percent else ONE.value) for x in (a, b)]
        return policy != "unit" and self._number(*worth)

    def _quantity(self, a: Quantity, b: Quantity) -> bool:
        if a.unit == b.unit:
            return self._number(a.tree, b.tree)
        if a.unit.bases != b.unit.bases:
            return False
        return equal(_times(a.tree, a.unit.factor), _times(b.tree, b.unit.factor))

    def _in_order(self, a: Sequence[Value], b: Sequence[Value]) -> bool:
        return len(a) == len(b) and all(self.same(*pair) for pair in zip(a, b, strict=True))

    def _unordered(self, a: Sequence[Value], b: Sequence[Value]) -> bool:
        """Each of the one is one of the other, and as often."""
        left = [*b]
        for item in a:
            found = next((n for n, other in enumerate(left) if self.same(item, other)), None)
            if found is None:
                return False
            left.pop(found)
        return not left

    def _once(self, items: Sequence[Value]) -> list[Value]:
        """A set knows no number of times."""
        found: list[Value] = []
        for item in items:
            if not any(self.same(other, item) for other in found):
                found.append(item)
        return found

    def _named(self, a: Value, b: Value) -> bool:
        """A name that only one of the two says is no matter; two that differ are one equation."""
        if isinstance(a, Named) and isinstance(b, Named) and is_same_name(a.name, b.name):
            return self.same(a.value, b.value)
        if isinstance(a, Listing) or isinstance(b, Listing):
            a, b = one_by_one(a), one_by_one(b)
            if not (isinstance(a, Named) or isinstance(b, Named)):
                return self.same(a, b)
        if not (isinstance(a, Named) and isinstance(b, Named)):
            if isinstance(a, Equation | Inequality) or isinstance(b, Equation | Inequality):
                return self._relations(a, b)
            return self.same(*(x.value if isinstance(x, Named) else x for x in (a, b)))
        return self._relations(a, b)

    def _relations(self, a: Value, b: Value) -> bool:
        relations = [as_relation(value) for value in (a, b)]
        return type(relations[0]) is type(relations[1]) and self._alike(*relations)

    def _reals(self, a: Value, b: Value) -> bool:
        try:
            pieces = [as_reals(value).pieces for value in (a, b)]
        except NotUnderstood:
            return False
        pairs = zip(*pieces, strict=False)
        return len(pieces[0]) == len(pieces[1]) and all(self._piece(*pair) for pair in pairs)

    def _piece(self, a: Piece, b: Piece) -> bool:
        if (a.low_closed, a.high_closed) != (b.low_closed, b.high_closed):
            return False
        return all(
            one == other or ("oo" not in _ops(one, other) and self._number(one, other))
            for one, other in ((a.low, b.low), (a.high, b.high))
        )


def _is_letter(value: Value, letter: str) -> bool:
    return value == Expression(Sym(letter)) or value == Text((letter.lower(),))


def _ops(*trees: Tree) -> set[str]:
    """The names of the outermost constants, below a minus."""
    inner = [t.args[0] if isinstance(t, Apply) and t.op == "neg" else t for t in trees]
    return {tree.op for tree in inner if isinstance(tree, Apply)}


def _brackets(value: Bracketed) -> str:
    """A vector between angles is a point; all others mean what they look like."""
    return {"⟨⟩": "()"}.get(both := value.opening + value.closing, both)


def _times(tree: Tree, factor: Fraction) -> Tree:
    if isinstance(tree, Num) and tree.base == 10:
        return Num(tree.value * factor)
    return Apply("*", (tree, Num(factor)))
