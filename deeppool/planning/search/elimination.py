"""Variable elimination: the least sum of tables, each of which depends on a few of many variables.

    table a-b   table b-c   table b-d           a ── b ── c
                                                     │
                                                     d

The variable b is *eliminated*: its tables are added up to one of (a, b, c, d), and the least over b is a table of
(a, c, d) in their place. Where the sum would have too many entries, its tables are divided among several sums
("mini-buckets"), each of which chooses b for itself. What is left at the end can then only be too low: a lower
bound. In reverse order, each variable takes the value that is best with those chosen before; that is the least sum,
unless one was divided.

Dechter: Bucket elimination (Artificial Intelligence 1999); Dechter and Rish: Mini-buckets (Journal of the ACM 2003).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from deeppool.costs.table import Floats


@dataclass(frozen=True, slots=True)
class Factor:
    """Numbers that depend on a few variables."""

    variables: tuple[int, ...]
    """In ascending order."""
    table: Floats
    """One axis for each variable; of length 1 where it does not matter."""


class Elimination:
    """The least sum of factors, for all values of the variables that are not eliminated."""

    def __init__(self, factors: Iterable[Factor], sizes: dict[int, int], kept: tuple[int, ...], most: int) -> None:
        """Eliminates all variables but some.

        Args:
            factors: what is summed.
            sizes: number of values of each variable.
            kept: variables that are not eliminated, in ascending order.
            most: entries of a sum of factors.
        """
        self._sizes, self._most = sizes, most
        self._reads: dict[int, list[Factor]] = {variable: [] for variable in sizes}
        for factor in factors:
            self._add(factor)
        self._sums: list[tuple[int, list[Factor]]] = []
        self._constant = 0.0
        self.exact = True
        """Whether no sum was divided."""
        left = dict.fromkeys(variable for variable in sizes if variable not in kept)
        widths = {variable: self._width(variable) for variable in left}
        while left:
            variable = min(left, key=widths.__getitem__)
            del left[variable]
            changed = self._eliminate(variable)
            widths.update((other, self._width(other)) for other in changed if other in left)
        rest = {id(factor): factor for variable in kept for factor in self._reads[variable]}
        zeros = Factor(kept, np.zeros([sizes[variable] for variable in kept]))
        self.least: Floats = added([zeros, *rest.values()]).table + self._constant
        """What the sum cannot be less than, by the values of the kept variables; reached if it is exact."""

    def best(self, kept: dict[int, int]) -> dict[int, int]:
        """Returns values of all variables, those of the kept ones given."""
        chosen = dict(kept)
        for variable, sums in reversed(self._sums):
            total = sum(_row(factor, variable, chosen) for factor in sums)
            chosen[variable] = int(np.argmin(total))
        return chosen

    def _add(self, factor: Factor) -> None:
        for variable in factor.variables:
            self._reads[variable].append(factor)
        if not factor.variables:
            self._constant += float(factor.table)

    def _width(self, variable: int) -> int:
        return len({other for factor in self._reads[variable] for other in factor.variables})

    def _eliminate(self, variable: int) -> set[int]:
        """Replaces the factors of a variable by the least over it; returns the variables of them."""
        factors = self._reads.pop(variable)
        changed = {other for factor in factors for other in factor.variables} - {variable}
        for other in changed:
            self._reads[other] = [factor for factor in self._reads[other] if variable not in factor.variables]
        sums = [added(group) for group in self._groups(factors)]
        self.exact = self.exact and len(sums) <= 1
        self._sums.append((variable, sums))
        for total in sums:
            axis = total.variables.index(variable)
            rest = total.variables[:axis] + total.variables[axis + 1 :]
            self._add(Factor(rest, total.table.min(axis=axis)))
        return changed

    def _groups(self, factors: list[Factor]) -> list[list[Factor]]:
        """Returns the factors, as many together as a sum may have entries."""
        groups: list[list[Factor]] = []
        for factor in sorted(factors, key=lambda factor: -len(factor.variables)):
            for group in groups:
                together = {variable for other in (*group, factor) for variable in other.variables}
                if math.prod(self._sizes[variable] for variable in together) <= self._most:
                    group.append(factor)
                    break
            else:
                groups.append([factor])
        return groups


def added(factors: list[Factor]) -> Factor:
    """Returns the sum of factors: one of all their variables."""
    variables = tuple(sorted({variable for factor in factors for variable in factor.variables}))
    total: Floats = np.zeros((1,) * len(variables))
    for factor in factors:
        lengths = dict(zip(factor.variables, factor.table.shape, strict=True))
        total = total + factor.table.reshape([lengths.get(variable, 1) for variable in variables])
    return Factor(variables, total)


def _row(factor: Factor, variable: int, chosen: dict[int, int]) -> Floats:
    """Returns the numbers of a factor by one variable, the others as chosen."""
    index = tuple(
        slice(None) if other == variable else min(chosen[other], length - 1)
        for other, length in zip(factor.variables, factor.table.shape, strict=True)
    )
    row: Floats = factor.table[index]
    return row
