"""A clustering in one file, and back: arrays and JSON in a zip archive, nothing that can run.

What can be computed again is not kept: the summary follows from the samples, and what scores new
rows is the model's preprocessing fitted to the same rows once more. The network itself stays where
it is; the file knows its name and the SHA-256 of its weights, so that no other takes its place.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np

from ncp.clustering.assign import Scorer
from ncp.clustering.copies import Copies
from ncp.clustering.gaussian_result import GaussianClustering, family_parts, with_family
from ncp.clustering.knowledge import Heard, Knowledge, Translated
from ncp.clustering.prepare import Settings, fit_preparation, preprocessing_of, smoothed
from ncp.clustering.result import Clustering
from ncp.files import Archive, refusing, write_atomically
from ncp.inference.finish import Finish
from ncp.model import NCP, load
from ncp.network.pretrained import names, short_name
from ncp.posterior import Partitions
from ncp.summary.assignment import confidence
from ncp.summary.ball import credible_ball
from ncp.summary.estimate import PointEstimate
from ncp.summary.rows import merge_rows
from ncp.summary.statistics import posterior_of_k
from ncp.summary.summary import Summary

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["load_clustering", "save_clustering", "saved", "weights_digest"]

FORMAT = "ncp clustering 1"
KIND = "a saved clustering"


def weights_digest(model: NCP) -> str:
    """SHA-256 of a network's weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).tobytes())
    return digest.hexdigest()


def save_clustering(found: Clustering, path: str | os.PathLike[str], table: bool = True) -> None:
    """Write a clustering to exactly this path, whole or not at all.

    Args:
        found: What to write.
        path: Where.
        table: Whether the file holds the data; without them new rows cannot be scored, and there
            is no report.
    """
    write_atomically(path, saved(found, table))


def saved(found: Clustering, table: bool = True) -> bytes:
    """The file that `save_clustering` writes."""
    with_table = table and found.has_table and found.scorer is not None
    frame = found.frame
    if frame is not None and not with_table:
        frame = frame.iloc[:, :0]  # what the rows are called, as the caller calls them
    arrays, family = _arrays(found, with_table, frame)
    names = None if frame is None else [str(name) for name in frame.columns]
    kinds = [] if frame is None else [str(kind) for kind in frame.dtypes]
    categories = [i for i, kind in enumerate(kinds) if kind == "category"]
    more = {"frame": names, "categories": categories, "family": family}
    return _zipped(arrays, _about(found) | more)


def _arrays(
    found: Clustering, with_table: bool, frame: DataFrame | None
) -> tuple[dict[str, np.ndarray], dict[str, Any] | None]:
    """The numbers, and what else is to be said of a Gaussian mixture."""
    arrays: dict[str, np.ndarray] = {
        "cluster": found.labels,
        "confidence": found.confidence,
        "index": found.index,
        "samples": found.samples,
        "estimate": found.summary.estimate.labels,
        **{f"posterior_{name}": array for name, array in found.posterior.to_numpy().items()},
    }
    if with_table:
        assert found.scorer is not None
        arrays["table"] = found.table
        arrays["scorer_labels"] = found.scorer.labels
        arrays["scorer_weights"] = found.scorer.weights
    family = None
    if with_table and isinstance(found, GaussianClustering):
        more, family = family_parts(found)
        arrays |= more
    if frame is not None:
        columns = [frame.index.to_series(), *(frame.iloc[:, i] for i in range(frame.shape[1]))]
        arrays |= {f"frame_{i}": _plain(column) for i, column in enumerate(columns)}
    if found.heard is not None:
        arrays["known"] = found.heard.rows.labels
    return arrays, family


def _about(found: Clustering) -> dict[str, Any]:
    """All that is not an array, plain."""
    estimate = found.summary.estimate
    return {
        "format": FORMAT,
        "columns": list(found.columns),
        "levels": [list(levels) for levels in found.levels],
        "names": list(found.row_names),
        "notes": list(found.notes),
        "warnings": list(found.warnings),
        "model_name": found.model_name,
        "weights": _weights(found),
        "is_conjugate": found.is_conjugate,
        "settings": asdict(found.settings),
        "heard": None if found.heard is None else _said(found.heard),
        "in_range": found.posterior.in_range,
        "finish": None if found.posterior.finish is None else asdict(found.posterior.finish),
        "seconds": found.seconds,
        "stability": found.stability,
        "shortfall": found.shortfall,
        "command": found.command,
        "estimate": {
            "loss": estimate.loss,
            "expected_loss": estimate.expected_loss,
            "hits": estimate.hits,
            "runs": estimate.runs,
        },
    }


def _weights(found: Clustering) -> str:
    return weights_digest(found.model) if found.model is not None else found.weights


def _zipped(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    # mypy takes the unpacked arrays for the allow_pickle flag
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    with ZipFile(buffer, "a", ZIP_DEFLATED) as archive:
        archive.writestr("about.json", json.dumps(about))
    return buffer.getvalue()


def _plain(column: Any) -> np.ndarray:
    """A column without Python objects: as it is if it can be, else as text."""
    values = column.to_numpy()
    if values.dtype.kind in "biufmM":
        return np.asarray(values)
    if column.dtype.kind in "iufb":  # pandas' own numbers, with missing values
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.where(column.isna(), "", column.astype(str)).astype(np.str_)


def load_clustering(
    path: str | os.PathLike[str], model: str | os.PathLike[str] | NCP | None = None
) -> Clustering:
    """Read what `save_clustering` wrote; anything else is refused with a `ValueError`.

    Args:
        path: The file.
        model: The network that made it, its name or its file. It is needed for new rows only, and
            found by itself if it came with the package.
    """
    with refusing(KIND):
        file = Archive(Path(path).read_bytes())
        about = json.loads(file.text("about.json"))
        if about["format"] != FORMAT:
            raise ValueError(f"format {about['format']!r}")
        arrays = {name: file[name] for name in file.names}
        settings = Settings(**about["settings"])
        posterior = _posterior(arrays, about)
        found = Clustering(
            table=arrays.get("table", np.zeros((len(arrays["cluster"]), 0))),
            columns=tuple(about["columns"]),
            levels=tuple(tuple(levels) for levels in about["levels"]),
            labels=arrays["cluster"],
            confidence=arrays["confidence"],
            posterior=posterior,
            summary=_summary(arrays, about["estimate"], posterior),
            index=arrays["index"],
            samples=arrays["samples"],
            notes=tuple(about["notes"]),
            warnings=tuple(about["warnings"]),
            model=_network(about, model),
            model_name=about["model_name"],
            settings=settings,
            seconds=float(about["seconds"]),
            stability=float(about["stability"]),
            shortfall=float(about["shortfall"]),
            command=str(about["command"]),
            scorer=None,
            is_conjugate=bool(about["is_conjugate"]),
            weights=str(about["weights"]),
            frame=_frame(about, arrays),
            names=tuple(about["names"]),
            heard=_heard(about["heard"], arrays),
        )
        _check(found)
        if about["family"] is not None:
            return with_family(found, arrays, about["family"])
        if found.model is None or not found.has_table:
            return found
        return _with_scorer(found, found.model, arrays)


def _said(heard: Heard) -> dict[str, Any]:
    """What was known, by position; the known labels are an array of their own."""
    rows = heard.rows
    return {
        "names": list(rows.names),
        "together": [list(link) for link in rows.together],
        "apart": [list(link) for link in rows.apart],
        "number": [None if n is None else int(n) for n in rows.number],
        "at_any_price": heard.knowledge.at_any_price,
        "log_probability": heard.log_probability,
        "n_draws": heard.n_draws,
    }


def _heard(said: Mapping[str, Any] | None, arrays: Mapping[str, np.ndarray]) -> Heard | None:
    if said is None:
        return None
    together, apart = (tuple(tuple(link) for link in said[name]) for name in ("together", "apart"))
    labels, names, number = arrays["known"], tuple(said["names"]), tuple(said["number"])
    index = arrays.get("frame_0")

    def told(links: tuple[tuple[int, ...], ...]) -> Any:
        if index is None:
            return links
        return tuple(tuple(index[i].item() for i in link) for link in links)

    knowledge = Knowledge(
        [None if k < 0 else names[k] for k in labels] if names else None,
        told(together),
        told(apart),
        number[0],
        number[1],
        number[2],
        bool(said["at_any_price"]),
    )
    rows = Translated(labels, names, together, apart, number)
    return Heard(knowledge, rows, float(said["log_probability"]), float(said["n_draws"]))


def _posterior(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> Partitions:
    fields = {
        name.removeprefix("posterior_"): array
        for name, array in arrays.items()
        if name.startswith("posterior_")
    }
    how = about["finish"]
    finish = None if how is None else Finish(**how)
    return Partitions(**fields, in_range=bool(about["in_range"]), finish=finish)


def _summary(
    arrays: Mapping[str, np.ndarray], estimate: Mapping[str, Any], posterior: Partitions
) -> Summary:
    labels = arrays["estimate"]
    rows, weights = merge_rows(posterior.labels, posterior.weights)
    loss: Any = "binder" if estimate["loss"] == "binder" else "vi"
    return Summary(
        posterior_of_k(rows, weights),
        PointEstimate(labels=labels, **estimate),
        credible_ball(labels, rows, weights, loss),
        confidence(labels, rows, weights),
    )


def _network(about: Mapping[str, Any], model: str | os.PathLike[str] | NCP | None) -> NCP | None:
    """The network that made the result, or None if it is not here."""
    if model is None:
        if about["model_name"] not in names():
            return None
        network = load(about["model_name"])
        return network if weights_digest(network) == about["weights"] else None
    network = model if isinstance(model, NCP) else load(model)
    if weights_digest(network) != about["weights"]:
        name = "a model" if isinstance(model, NCP) else short_name(model)
        raise ValueError(
            f"Expected the weights of {about['model_name']!r} that made this result but got "
            f"others ({name})"
        )
    return network


def _frame(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> DataFrame | None:
    columns = about["frame"]
    if columns is None:
        return None
    from pandas import DataFrame, Index

    values = [arrays[f"frame_{i + 1}"] for i in range(len(columns))]
    frame = DataFrame(dict(enumerate(values)), index=Index(arrays["frame_0"]))
    frame = frame.astype(dict.fromkeys(about.get("categories", ()), "category"))
    frame.columns = Index(columns)
    return frame


def _check(found: Clustering) -> None:
    """That the arrays fit to each other."""
    n, k = found.n_points, found.n_clusters
    shapes = {found.confidence.shape, found.samples.shape[1:], found.table.shape[:1], (n,)}
    right = len(shapes) == 1 and len(found.names or ()) == n
    right &= found.index.shape == found.summary.estimate.labels.shape
    right &= bool(np.all((found.index >= 0) & (found.index < n)))
    right &= bool(np.all((found.labels >= -1) & (found.labels < k)))
    if found.heard is not None:
        right &= _fits(found.heard.rows, n)
    right &= found.samples.dtype.kind == "i" and found.labels.dtype.kind == "i"
    if not right:
        raise ValueError("its arrays do not fit to each other")


def _fits(known: Translated, n: int) -> bool:
    labels, names = known.labels, known.names
    right = labels.shape == (n,) and labels.dtype.kind == "i" and len(known.number) == 3
    right &= bool(np.all((labels >= -1) & (labels < len(names))))
    linked = [row for link in (*known.together, *known.apart) for row in link]
    return right and all(type(row) is int and 0 <= row < n for row in linked)


def _with_scorer(found: Clustering, model: NCP, arrays: Mapping[str, np.ndarray]) -> Clustering:
    labels, weights = arrays["scorer_labels"], arrays["scorer_weights"]
    if labels.shape != (len(weights), len(found.index)) or labels.dtype.kind != "i":
        raise ValueError("its arrays do not fit to each other")
    columns, index = found.data, found.index
    copies = None if preprocessing_of(model) is None or found.heard else Copies.among(columns)
    if copies is not None:
        columns, index = copies.different, copies.of[index]
    preparation, features = fit_preparation(model, smoothed(model, columns), index, found.settings)
    scorer = Scorer(preparation, features, labels, weights, found.summary.estimate.labels)
    return replace(found, scorer=scorer)
