"""How the pairs of a batch are divided among tiles and cores of a NeuronCore. Plain arithmetic, without the SDK."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PARTITIONS = 128  # rows of the on-chip memory, each with its own lane of the vector engine
WIDTH = 512  # numbers of a row that a tile holds: 128 boxes
EDGES = 4


@dataclass(frozen=True)
class Tile:
    """A rectangle of the batch, which lies in memory as rows of boxes, four numbers each.

    Attributes:
        row: First row.
        rows: How many, up to ``PARTITIONS``.
        column: First number in a row; a box begins there.
        columns: How many numbers, up to ``WIDTH``; whole boxes.
    """

    row: int
    rows: int
    column: int
    columns: int

    @property
    def boxes(self) -> tuple[slice, slice]:
        """Where its boxes are, in ``[rows, 4 × boxes]``."""
        return slice(self.row, self.row + self.rows), slice(self.column, self.column + self.columns)

    @property
    def scores(self) -> tuple[slice, slice]:
        """Where its scores are, in ``[rows, boxes]``."""
        return self.boxes[0], slice(self.column // EDGES, (self.column + self.columns) // EDGES)

    def edge(self, number: int) -> tuple[slice, slice]:
        """Where one coordinate of all its boxes is, within the tile: every fourth column.

        Args:
            number: 0 … 3 for x1, y1, x2, y2.
        """
        return slice(0, self.rows), slice(number, self.columns, EDGES)


def tiles(rows: int, columns: int) -> Iterator[Tile]:
    """Yield the tiles of a batch, row by row; those at the end may be smaller.

    Args:
        rows: Rows.
        columns: Numbers in a row, a multiple of four.
    """
    if columns % EDGES:
        raise ValueError(f"{columns} numbers in a row are no whole boxes")
    for row in range(0, rows, PARTITIONS):
        for column in range(0, columns, WIDTH):
            yield Tile(row, min(PARTITIONS, rows - row), column, min(WIDTH, columns - column))
