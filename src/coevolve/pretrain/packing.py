"""Documents packed into sequences of equal length, in an order that depends on (seed, step) alone."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

Ids = NDArray[np.int32]


class PackedBatches:
    """Batches of sequences without padding; each sequence begins with a document or a piece of one.

    A document longer than a sequence is split into pieces; the last document of a sequence is cut to fit (the next pass
    over the data shuffles anew, and cuts elsewhere). The documents bring their end-of-text tokens.
    """

    def __init__(self, documents: Sequence[Sequence[int]], length: int, batch_size: int, seed: int) -> None:
        self._pieces: list[Ids] = [
            np.asarray(ids[start : start + length], dtype=np.int32)
            for ids in documents
            for start in range(0, len(ids), length)
        ]
        if sum(len(piece) for piece in self._pieces) < length * batch_size:
            raise ValueError(f"sources: too little text for one batch of {batch_size} sequences of {length} tokens")
        self._length, self._batch_size, self._seed = length, batch_size, seed
        self._epoch, self._first_row = -1, 0
        self._rows: Ids = np.empty((0, length), dtype=np.int32)

    def at(self, step: int) -> torch.Tensor:
        """Return the batch of a step: int64 [batch, length]."""
        wanted = range(step * self._batch_size, (step + 1) * self._batch_size)
        return torch.from_numpy(np.stack([self._row(i) for i in wanted]).astype(np.int64))

    def _row(self, index: int) -> Ids:
        if index < self._first_row:
            self._epoch, self._first_row, self._rows = -1, 0, self._rows[:0]
        while index >= self._first_row + len(self._rows):
            self._first_row += len(self._rows)
            self._epoch += 1
            self._rows = self._pack(self._epoch)
        row: Ids = self._rows[index - self._first_row]
        return row

    def _pack(self, epoch: int) -> Ids:
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._pieces))
        rows: list[Ids] = []
        current: list[Ids] = []
        room = self._length
        for i in order:
            current.append(self._pieces[i][:room])
            room -= len(current[-1])
            if room <= 0:
                rows.append(np.concatenate(current))
                current, room = [], self._length
        return np.stack(rows)
