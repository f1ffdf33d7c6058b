from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from shiftcal import metrics
from shiftcal.auditing.audit import audit_predictions
from shiftcal.auditing.tables import read_predictions
from shiftcal.cli import app

RNG = np.random.default_rng(0)
Z = 2 * RNG.standard_normal((40, 3))
P = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
Y = RNG.integers(0, 3, 40)


def csv(path: Path, columns: dict[str, object]) -> Path:
    rows = [",".join(columns)] + [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(rows) + "\n")
    return path


def logits(values: np.ndarray = Z) -> dict[str, object]:
    return {f"logits_{k}": values[:, k].tolist() for k in range(values.shape[1])}


def write(kind: str, folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    if kind == "npz":
        np.savez(folder / "p.npz", target=Y, logits=Z)
        return [folder / "p.npz"]
    if kind == "npy":
        np.save(folder / "target.npy", Y)
        np.save(folder / "logits.npy", Z)
        return [folder / "logits.npy", folder / "target.npy"]
    if kind == "csv":
        return [csv(folder / "p.csv", {"target": Y.tolist(), **logits()})]
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"target": Y.tolist(), **logits()}), folder / "p.parquet")
    return [folder / "p.parquet"]


@pytest.mark.parametrize("kind", ["npz", "npy", "csv", "parquet"])
def test_every_kind_of_file_is_read_alike(kind: str, tmp_path: Path) -> None:
    sets = read_predictions(write(kind, tmp_path))
    assert torch.equal(sets.clean.logits, torch.from_numpy(Z))
    assert torch.equal(sets.clean.targets, torch.from_numpy(Y))
    assert sets.validation is None
    assert sets.shifts == {}


def test_probabilities_are_taken_as_they_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", target=Y, probabilities=P)
    clean = read_predictions([tmp_path / "p.npz"]).clean
    assert metrics.ece(clean.logits.softmax(-1), clean.targets) == pytest.approx(metrics.ece(P, Y), abs=1e-9)
    sure = np.eye(3)[Y]  # exact zeros
    np.savez(tmp_path / "q.npz", target=Y, probabilities=sure)
    clean = read_predictions([tmp_path / "q.npz"]).clean
    torch.testing.assert_close(clean.logits.softmax(-1), torch.from_numpy(sure))


def test_rows_are_sorted_into_test_sets(tmp_path: Path) -> None:
    columns = {
        "id": list(range(40)),
        "target": Y.tolist(),
        "split": ["validation"] * 10 + ["test"] * 30,
        "domain": [""] * 20 + ["fog"] * 12 + ["camera"] * 8,
        "severity": [""] * 20 + [1] * 6 + [2] * 6 + [0] * 8,
    }
    sets = read_predictions([csv(tmp_path / "p.csv", columns | logits())])
    assert sets.counts == {"test": 10, "validation": 10, "fog": 12, "camera": 8}
    assert set(sets.shifts) == {("fog", 1), ("fog", 2), ("camera", None)}
    assert torch.equal(sets.shifts["fog", 2].logits, torch.from_numpy(Z[26:32]))
    assert torch.equal(sets.validation.targets, torch.from_numpy(Y[:10]))


def test_a_corruption_is_a_shift_and_nothing_is_swallowed(tmp_path: Path) -> None:
    half = {"target": Y.tolist(), "corruption": [""] * 20 + ["fog"] * 20, "severity": [0] * 20 + [3] * 20, **logits()}
    assert read_predictions([csv(tmp_path / "a.csv", half)]).counts == {"test": 20, "fog": 20}
    with pytest.raises(ValueError, match="severity 3 without one"):
        read_predictions([csv(tmp_path / "b.csv", {k: v for k, v in half.items() if k != "corruption"})])
    with pytest.raises(ValueError, match=r"one column of shift, domain, corruption. .*domain and corruption"):
        read_predictions([csv(tmp_path / "c.csv", half | {"domain": ["x"] * 40})])
    with pytest.warns(UserWarning, match="columns that are not used: noise"):
        read_predictions([csv(tmp_path / "d.csv", half | {"noise": ["x"] * 40})])


def test_ids_put_rows_in_order_and_tell_leaks(tmp_path: Path) -> None:
    order = RNG.permutation(40)
    first = csv(tmp_path / "a.csv", {"id": list(range(40)), "target": Y.tolist(), **logits()})
    mixed = {"id": order.tolist(), "target": Y[order].tolist(), "shift": ["fog"] * 40, **logits(Z[order])}
    sets = read_predictions([first, csv(tmp_path / "b.csv", mixed)])
    assert torch.equal(sets.clean.logits, sets.shifts["fog", None].logits)
    with pytest.raises(ValueError, match=r"each id once in a test set. .*the test set"):
        read_predictions([first, first])
    seen = csv(tmp_path / "c.csv", {"id": [3, 50], "target": [0, 1], "split": ["val"] * 2, **logits(Z[:2])})
    with pytest.raises(ValueError, match=r"validation rows that are not in the test set. .*1 ids in both, such as '3'"):
        read_predictions([first, seen])
    with pytest.warns(UserWarning, match="may be too narrow"):
        read_predictions([
            csv(tmp_path / "d.csv", {"target": Y.tolist(), **logits()}),
            csv(tmp_path / "e.csv", {k: v for k, v in mixed.items() if k != "id"}),
        ])  # fmt: skip


def test_validation_rows_have_no_shift(tmp_path: Path) -> None:
    columns = {"target": Y.tolist(), "split": ["val"] * 10 + ["test"] * 30, "shift": ["x"] * 10 + [""] * 30}
    with pytest.raises(ValueError, match="validation rows without a shift"):
        read_predictions([csv(tmp_path / "p.csv", columns | logits())])


def test_probabilities_on_the_edges_of_bins_stay_there(tmp_path: Path) -> None:
    """Shares of the votes of thirty trees: taken as logarithms and back, some fall into the next bin."""
    votes = RNG.multinomial(30, [0.5, 0.3, 0.2], size=2000)
    shares, right = votes / 30, votes.argmax(1)
    # Those on an edge are right, their neighbours wrong.
    targets = np.where(np.isin(votes.max(1), (12, 18)), right, (right + 1) % 3)
    halves = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for path, rows in zip(halves, (slice(0, 900), slice(900, None)), strict=True):
        np.savez(path, target=targets[rows], probabilities=shares[rows])
    record = audit_predictions(read_predictions(halves))
    p = torch.from_numpy(shares)
    assert record.clean.ece == pytest.approx(metrics.ece(p, torch.from_numpy(targets)), abs=1e-12)
    assert record.clean.aurc == pytest.approx(metrics.aurc(p, torch.from_numpy(targets)), abs=1e-12)
    there_and_back = torch.from_numpy(np.log(np.maximum(shares, 1e-300))).softmax(-1)
    assert abs(metrics.ece(there_and_back, torch.from_numpy(targets)) - record.clean.ece) > 1e-4


def test_a_probability_of_zero_counts_as_in_the_library(tmp_path: Path) -> None:
    sure = np.eye(3)[(Y + (np.arange(40) % 5 == 0)) % 3]  # every fifth is wrong
    np.savez(tmp_path / "p.npz", target=Y, probabilities=sure)
    clean = read_predictions([tmp_path / "p.npz"]).clean
    found = metrics.nll(clean.logits.softmax(-1), clean.targets)
    assert found == pytest.approx(metrics.nll(sure, Y), rel=1e-9)


def test_several_files_are_one_audit(tmp_path: Path) -> None:
    first = csv(tmp_path / "a.csv", {"target": Y.tolist(), **logits()})
    second = csv(tmp_path / "b.csv", {"target": Y.tolist(), "shift": ["fog"] * 40, **logits()})
    assert read_predictions([first, second]).counts == {"test": 40, "fog": 40}


BAD = {
    "NaN": (lambda: {"target": Y, "logits": np.where(Z.max() == Z, np.nan, Z)}, "1 of 40 rows have NaN"),
    "sums": (lambda: {"target": Y, "probabilities": P * 0.9}, "row .* sums to 0.9"),
    "logits as probabilities": (lambda: {"target": Y, "probabilities": Z}, "are these logits"),
    "labels": (lambda: {"target": Y + 1, "logits": Z}, r"targets in 0..2. .* with 1..3"),
    "no rows": (lambda: {"target": Y[:0], "logits": Z[:0]}, "at least one row"),
    "one column": (lambda: {"target": Y, "logits": Z[:, :1]}, "K ≥ 2"),
    "lengths": (lambda: {"target": Y[:5], "logits": Z}, r"\[40, 3\] and \[5\] targets"),
    "fractions": (lambda: {"target": Y + 0.5, "logits": Z}, "class indices in target"),
    "both": (lambda: {"target": Y, "logits": Z, "probabilities": P}, "one of `logits` and `probabilities`"),
    "neither": (lambda: {"target": Y, "scores": Z}, "one of `logits` and `probabilities`"),
    "ids": (lambda: {"target": Y, "logits": Z, "id": np.zeros(40)}, "each id once in a test set"),
    "split": (lambda: {"target": Y, "logits": Z, "split": np.full(40, "train")}, "`validation` or `test`"),
    "severity": (lambda: {"target": Y, "logits": Z, "shift": np.full(40, "f"), "severity": Z[:, 0]}, "severities"),
    "no clean": (lambda: {"target": Y, "logits": Z, "shift": np.full(40, "fog")}, "clean test set"),
    "endless": (lambda: {"target": np.where(Y == 0, np.inf, Y), "logits": Z}, "class indices in target"),
    "severities": (lambda: {"target": Y, "logits": Z, "shift": Y + 5, "severity": np.full(40, np.inf)}, "severities"),
    "one shift": (lambda: {"target": Y, "logits": Z, "shift": np.array("fog")}, "shift for each of 40 rows"),
    "objects": (lambda: {"target": Y, "logits": Z.astype(object)}, "a whole file"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arrays_are_one_clear_line(name: str, tmp_path: Path) -> None:
    make, match = BAD[name]
    np.savez(tmp_path / "p.npz", **make())
    with pytest.raises(ValueError, match=match):
        read_predictions([tmp_path / "p.npz"])
    answer = CliRunner().invoke(app, ["audit", "--predictions", str(tmp_path / "p.npz"), "--out", str(tmp_path / "a")])
    assert answer.exit_code == 2
    assert len(answer.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "a").exists()


def test_bad_tables_are_one_clear_line(tmp_path: Path) -> None:
    table = {"target": Y.tolist(), **logits()}
    del table["logits_1"]
    with pytest.raises(ValueError, match="without logits_1"):
        read_predictions([csv(tmp_path / "a.csv", table)])
    with pytest.raises(ValueError, match=r"numbers in the column logits_0. .*'x'"):
        read_predictions([csv(tmp_path / "b.csv", {"target": Y.tolist(), **logits(), "logits_0": ["x"] * 40})])
    (tmp_path / "c.csv").write_text("target,logits_0,logits_1\n0,1,2\n1,2\n")
    with pytest.raises(ValueError, match="line 3, with 2"):
        read_predictions([tmp_path / "c.csv"])
    (tmp_path / "d.csv").write_text("")
    with pytest.raises(ValueError, match="the columns target and logits_0"):
        read_predictions([tmp_path / "d.csv"])
    (tmp_path / "e.npz").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(ValueError, match="a whole file"):
        read_predictions([tmp_path / "e.npz"])
    (tmp_path / "f.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="a whole file"):
        read_predictions([tmp_path / "f.parquet"])
    with pytest.raises(ValueError, match=r"a \.npz, \.npy, \.csv or \.parquet file"):
        read_predictions([csv(tmp_path / "g.txt", table)])
    np.savez(tmp_path / "h.npz", target=Y, logits=np.c_[Z, Z])
    with pytest.raises(ValueError, match="of one number of classes"):
        read_predictions([csv(tmp_path / "i.csv", {"target": Y.tolist(), **logits()}), tmp_path / "h.npz"])


def test_probabilities_named_logits_are_suspected(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", target=Y, logits=P)
    with pytest.warns(UserWarning, match="are these probabilities, not logits"):
        read_predictions([tmp_path / "p.npz"])


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self):  # type: ignore[no-untyped-def]
            return Path.touch, (tmp_path / "ran",)

    np.save(tmp_path / "target.npy", np.array([Runs()], dtype=object), allow_pickle=True)
    np.save(tmp_path / "logits.npy", Z)
    with pytest.raises(ValueError, match="a whole file"):
        read_predictions([tmp_path / "logits.npy"])
    assert not (tmp_path / "ran").exists()


def test_paths_may_be_text_and_one_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", target=Y, logits=Z)
    expected = read_predictions([tmp_path / "p.npz"]).clean.logits
    for given in (str(tmp_path / "p.npz"), [str(tmp_path / "p.npz")], tmp_path / "p.npz"):
        assert torch.equal(read_predictions(given).clean.logits, expected)


def test_one_row_is_audited(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", target=Y[:1], logits=Z[:1])
    answer = CliRunner().invoke(app, ["audit", "--predictions", str(tmp_path / "p.npz"), "--out", str(tmp_path / "a")])
    assert answer.exit_code == 0, answer.output
    assert "only 1 clean test images" in answer.output


def test_rounded_probabilities_are_taken(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    exact = rng.dirichlet(np.full(30, 0.5), 400)
    target, rounded = exact.argmax(1), exact.round(3)
    assert np.abs(rounded.sum(1) - 1).max() > 2e-3
    np.savez(tmp_path / "p.npz", target=target, probabilities=rounded)
    with pytest.warns(UserWarning, match=r"sum to 1 within .*, as rounded ones do; those that are off by more"):
        sets = read_predictions([tmp_path / "p.npz"])
    found = sets.clean.probabilities.numpy()
    far = np.abs(rounded.sum(1) - 1) > 1e-3 + 1e-6
    assert 0 < far.sum() < len(far)
    np.testing.assert_allclose(found[far], rounded[far] / rounded[far].sum(1, keepdims=True), atol=1e-9)
    assert np.array_equal(found[~far], rounded[~far]), "what lies on an edge of a bin stays there"
    np.savez(tmp_path / "p.npz", target=target, probabilities=0.97 * exact)
    with pytest.raises(ValueError, match="rows that sum to 1"):
        read_predictions([tmp_path / "p.npz"])


def test_targets_may_be_names_where_the_columns_have_some(tmp_path: Path) -> None:
    names = np.array(["cat", "cow", "dog"])
    table = csv(tmp_path / "p.csv", {"target": names[Y].tolist(), **logits()})
    np.savez(tmp_path / "p.npz", target=names[Y], logits=Z)
    np.savez(tmp_path / "bytes.npz", target=names[Y].astype("S"), logits=Z)
    for file in (table, tmp_path / "p.npz", tmp_path / "bytes.npz"):
        assert read_predictions([file], names.tolist()).clean.targets.tolist() == Y.tolist()
        with pytest.raises(ValueError, match=r"class indices in target \(or --classes FILE"):
            read_predictions([file])
        with pytest.raises(ValueError, match=r"names of the 3 of --classes.* with 'cow'`. Did you mean 'cows'"):
            read_predictions([file], ["cat", "cows", "dog"])
    odd = csv(tmp_path / "odd.csv", {"target": [0, 1, "x"], **logits(Z[:3])})
    for classes in ([], ["cat", "cow", "dog"]):
        with pytest.raises(ValueError, match=r"class indices in target.* with 'x'"):
            read_predictions([odd], classes)
    (tmp_path / "names.txt").write_text("cat\ncow\ndog\n")
    words = ["audit", "--predictions", str(table), "--classes", str(tmp_path / "names.txt")]
    answer = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "a")])
    assert answer.exit_code == 0, answer.output


def test_semicolons_are_told(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("target;logits_0;logits_1\n0;1;2\n")
    with pytest.raises(ValueError, match=r"columns separated by commas.*where semicolons"):
        read_predictions([tmp_path / "p.csv"])
