"""Conflicts over epochs, from records."""

from typing import Any

from made_records import record
from pydantic import Field

from shiftcal.analysis.conflicts import Curves, conflict_history
from shiftcal.records import Epoch


class EpochWithTest(Epoch):
    """An epoch of a run that looked at test images while it trained."""

    test: dict[str, dict[str, float]] = Field(default_factory=dict)


def epoch(number: int, **more: Any) -> EpochWithTest:
    return EpochWithTest(epoch=number, loss=1.0, accuracy=0.5, seconds=1.0, **more)


def test_rates_cosines_and_metrics_are_those_of_epochs_that_have_them() -> None:
    history = (
        epoch(1, learning_rate=0.1, validation={"accuracy": 0.4, "ece": 0.2}),
        epoch(2, learning_rate=0.1, validation={"accuracy": 0.5, "ece": 0.1}, conflict_rate=0.3, mean_cosine=-0.1),
        epoch(3, learning_rate=0.01, validation={"accuracy": 0.6, "ece": 0.05}, conflict_rate=0.4, mean_cosine=0.0),
    )
    found = conflict_history(record("fgr", 0, 0.1).model_copy(update={"history": history}))
    assert found.rate == Curves((2, 3), (0.3, 0.4))
    assert found.cosine == Curves((2, 3), (-0.1, 0.0))
    assert found.measured["validation"]["ece"] == Curves((1, 2, 3), (0.2, 0.1, 0.05))
    assert (found.start, found.decays) == (2, (3,))


def test_test_images_are_preferred_to_validation() -> None:
    test = {"clean": {"accuracy": 0.7, "ece": 0.03}, "shifted": {"accuracy": 0.4, "ece": 0.3}}
    history = (epoch(1, validation={"ece": 0.5}), epoch(2, validation={"ece": 0.4}, test=test))
    found = conflict_history(record("fgr", 0, 0.1).model_copy(update={"history": history}))
    assert set(found.measured) == {"clean", "shifted"}
    assert found.measured["shifted"]["ece"] == Curves((2,), (0.3,))
    assert found.rate.epochs == ()
    assert found.start is None


def test_a_cosine_schedule_has_no_decays() -> None:
    history = tuple(epoch(k, learning_rate=rate) for k, rate in enumerate((0.1, 0.05, 0.01, 0.001), start=1))
    assert conflict_history(record("fgr", 0, 0.1).model_copy(update={"history": history})).decays == ()
