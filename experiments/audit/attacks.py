"""Which items are behind an upload: presence, size of rows, sign along the common line.

For binary cross-entropy on a dot product the gradient of item row i is (σ(ŷᵢ) - yᵢ) · w∘p times
a count: all rows of a user lie on one line, and the side of zero is the label.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from experiments.audit.upload import (
    Bools,
    Facts,
    Floats,
    Guess,
    NotApplicableError,
    Upload,
    embedding_rows,
    item_rows,
)

ON_THE_LINE = 0.99
"""Least |cosine| of a row with a line that it is said to be on."""
CANDIDATES = 256
"""Rows whose lines are tried for a consensus, evenly spread over the catalogue."""

Attack = Callable[[Upload, Facts], Guess]


def presence(upload: Upload, facts: Facts) -> Guess:
    """Names every item with a row that is not zero."""
    present_I = _present(item_rows(upload, facts.num_items))
    return Guess(present_I.astype(np.float64), present_I)


def magnitude(upload: Upload, facts: Facts) -> Guess:
    """Names the items with the largest rows, as many as there are positives among samples."""
    lengths = [np.linalg.norm(t, axis=1) for t in _tables(item_rows(upload, facts.num_items))]
    scores_I = sum((n / max(n.max(), 1e-300) for n in lengths), np.zeros(facts.num_items))
    touched_I = scores_I > 0
    share = 1.0 if facts.closed_form else 1 / (1 + facts.negatives)
    count = _mean_items(upload, facts) if facts.dense else int(touched_I.sum()) * share
    return Guess(scores_I, top(scores_I, count), touched_I)


def direction(upload: Upload, facts: Facts) -> Guess:
    """Splits the rows by their side of the line that most of them are closest to."""
    rows_IX = max(_tables(embedding_rows(upload, facts.num_items)), key=_straightness)
    return _split(rows_IX, _main_line(rows_IX), _nonzero(rows_IX), facts)


def consensus(upload: Upload, facts: Facts) -> Guess:
    """The same along the line that most rows are exactly on, after dropping all other rows.

    What is made up without the user's loss, such as Gaussian pseudo-rows, is on no common line.
    In a sum over users it finds one user's own rows.
    """
    tables = _tables(embedding_rows(upload, facts.num_items))
    found = [(consensus_line(rows_IX), rows_IX) for rows_IX in tables]
    (line_X, on_I), rows_IX = max(found, key=lambda pair: int(pair[0][1].sum()))
    return _split(rows_IX, line_X, on_I, facts)


def residual(upload: Upload, facts: Facts) -> Guess:
    """Items whose row is not what an item that the user lacks would have, for implicit ALS.

    Rows are cᵢ(rᵢ - p·qᵢ) p: along the line of p they are -|p|² v·qᵢ for all items but the
    user's, v = p/|p|, which gives |p|² as the median ratio.
    """
    if not (facts.dense and facts.closed_form):
        raise NotApplicableError("users do not upload residuals of every item")
    (name, rows_IX), *_ = embedding_rows(upload, facts.num_items).items()
    line_X = _main_line(rows_IX)
    items_I = upload.shared_before[name].double().numpy() @ line_X
    along_I = rows_IX @ line_X
    used_I = items_I != 0
    size = np.median(-along_I[used_I] / items_I[used_I]) if used_I.any() else 0.0
    scores_I: Floats = np.abs(along_I + size * items_I)
    return Guess(scores_I, scores_I > _largest_gap(scores_I))


def top(scores_I: Floats, count: float) -> Bools:
    """The ``count`` items of the highest scores above zero, in order of items where equal."""
    named_I = np.zeros(len(scores_I), dtype=bool)
    named_I[np.argsort(-scores_I, kind="stable")[: max(0, round(count))]] = True
    return named_I & (scores_I > 0)


def consensus_line(rows_IX: Floats) -> tuple[Floats, Bools]:
    """The direction (X,) of the row with most other rows on its line, and which are (I,)."""
    present_I = _nonzero(rows_IX)
    if not present_I.any():
        return np.zeros(rows_IX.shape[1]), present_I
    units_RX = _units(rows_IX[present_I])
    tried = units_RX[:: -(-len(units_RX) // CANDIDATES)]
    on_CR = np.abs(tried @ units_RX.T) >= ON_THE_LINE
    best = int(on_CR.sum(1).argmax())
    on_I = np.zeros(len(rows_IX), dtype=bool)
    on_I[np.flatnonzero(present_I)[on_CR[best]]] = True
    return tried[best], on_I


def _split(rows_IX: Floats, line_X: Floats, used_I: Bools, facts: Facts) -> Guess:
    if facts.closed_form and not facts.dense:
        raise NotApplicableError("only a user's own items have rows, which presence names")
    along_I, touched_I = np.where(used_I, rows_IX @ line_X, 0.0), _nonzero(rows_IX)
    if facts.closed_form and facts.dense:
        # No negatives were drawn: the rows of a user's items are the long ones.
        lengths_I = np.abs(along_I)
        return Guess(lengths_I, lengths_I > _largest_gap(lengths_I), touched_I)
    # More negatives are drawn than positives: these are the smaller side.
    if (along_I > 0).sum() > (along_I < 0).sum():
        along_I = -along_I
    scores_I: Floats = along_I
    return Guess(scores_I, scores_I > 0, touched_I)


def _largest_gap(values_I: Floats) -> float:
    """The threshold of Otsu (1979): that which leaves the least variance on both sides."""
    ordered = np.sort(values_I)
    below, total = np.cumsum(ordered)[:-1], ordered.sum()
    left = np.arange(1, len(ordered))
    right = len(ordered) - left
    between = left * right * (below / left - (total - below) / right) ** 2
    place = int(between.argmax())
    return float((ordered[place] + ordered[place + 1]) / 2)


def _main_line(rows_IX: Floats) -> Floats:
    """The direction (X,) of the greatest sum of squared cosines with the rows."""
    units = _units(rows_IX[_nonzero(rows_IX)])
    if not len(units):
        return np.zeros(rows_IX.shape[1])
    line: Floats = np.linalg.eigh(units.T @ units)[1][:, -1]
    return line


def _straightness(rows_IX: Floats) -> float:
    """Mean squared cosine of the rows with their main line; 1 where all are on it."""
    units = _units(rows_IX[_nonzero(rows_IX)])
    return float(((units @ _main_line(rows_IX)) ** 2).mean()) if len(units) else 0.0


def _units(rows_RX: Floats) -> Floats:
    units: Floats = rows_RX / np.linalg.norm(rows_RX, axis=1, keepdims=True)
    return units


def _nonzero(rows_IX: Floats) -> Bools:
    found: Bools = np.any(rows_IX != 0, axis=1)
    return found


def _present(tables: dict[str, Floats]) -> Bools:
    found: Bools = np.any([_nonzero(t) for t in _tables(tables)], axis=0)
    return found


def _tables(tables: dict[str, Floats]) -> list[Floats]:
    if not tables:
        raise NotApplicableError("no uploaded tensor has a row an item that can be read")
    return list(tables.values())


def _mean_items(upload: Upload, facts: Facts) -> float:
    return min(facts.items_per_user * upload.num_users, facts.num_items)


ATTACKS: dict[str, Attack] = {
    "presence": presence,
    "magnitude": magnitude,
    "direction": direction,
    "consensus": consensus,
    "residual": residual,
}
"""Without training anything; ``imia`` is in ``experiments.audit.imia``."""
