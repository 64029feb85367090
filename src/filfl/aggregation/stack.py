"""The updates of the selected clients as the rows of a matrix, which is never made as a whole.

Robust means need the distances between updates and weighted sums of them. Both are computed in pieces that stay in the
cache, in float64. All distances follow from the matrix of inner products.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from filfl.aggregation.base import Admitted, weighted_mean
from filfl.weights import Weights

Reduce = Callable[[Tensor], Tensor]
"""[rows, piece] -> [piece]"""
PIECE = 1 << 14
"""The number of weights of each client that are read at a time."""


@dataclass(frozen=True)
class Stack:
    """Rows w_k - w_t, or weighted sums of them."""

    updates: Sequence[Admitted]
    w_t: Weights
    mix: Tensor
    """[rows, clients]: the weights of the sums; at first the identity."""
    inner: Tensor
    """[rows, rows]: the inner products of the rows."""

    @classmethod
    def of(cls, updates: Sequence[Admitted], w_t: Weights) -> "Stack":
        n = len(updates)
        inner = torch.zeros(n, n, dtype=torch.float64, device=w_t.vector.device)
        identity = torch.eye(n, dtype=torch.float64, device=w_t.vector.device)
        stack = cls(updates, w_t, identity, inner)
        for _, piece in stack.pieces():
            inner.addmm_(piece, piece.T)
        return stack

    @property
    def n(self) -> int:
        return len(self.mix)

    def mixed(self, mix: Tensor) -> "Stack":
        """The stack of weighted sums of these rows: `mix` is [new rows, rows]."""
        return Stack(self.updates, self.w_t, mix @ self.mix, mix @ self.inner @ mix.T)

    def norms(self) -> Tensor:
        """[rows]"""
        return self.inner.diagonal().clamp(min=0).sqrt()

    def squared_distances(self) -> Tensor:
        """[rows, rows]"""
        squares = self.inner.diagonal()
        return (squares[:, None] + squares[None, :] - 2 * self.inner).clamp(min=0)

    def pieces(self) -> Iterator[tuple[slice, Tensor]]:
        """The rows in pieces: where in the vector, and [rows, piece]."""
        vectors = [update.weights.vector for update in self.updates]
        identity = torch.equal(self.mix, torch.eye(len(vectors)).to(self.mix))
        for start in range(0, len(self.w_t.vector), PIECE):
            here = slice(start, start + PIECE)
            rows = torch.stack([vector[here] for vector in vectors]).double() - self.w_t.vector[here].double()
            yield here, rows if identity else self.mix @ rows

    def mean(self, shares: Tensor) -> Weights:
        """w_t + sum_i share_i row_i, where the shares [rows] sum to 1: a weighted mean of the clients' weights."""
        weights = (shares @ self.mix).tolist()
        used = [k for k, weight in enumerate(weights) if weight]
        return weighted_mean([self.updates[k] for k in used], [weights[k] for k in used], self.w_t)

    def sum(self, shares: Tensor) -> Weights:
        """w_t + sum_i share_i row_i; shares is [rows]."""
        return self.reduced(lambda piece: shares @ piece)

    def reduced(self, reduce: Reduce) -> Weights:
        """w_t + what `reduce` makes of the rows, coordinate by coordinate. Integer buffers are those of the first
        client."""
        w = self.w_t.vector
        result = torch.empty_like(w)
        for here, piece in self.pieces():
            result[here] = (w[here].double() + reduce(piece)).to(w.dtype)
        return Weights(result, self.updates[0].weights.integers)
